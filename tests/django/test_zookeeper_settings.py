"""What ZooKeeper can't promise is refused where it is declared, in words that help."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from lockapp import lock, single_flight
from lockapp.celery.slot import Slot
from lockapp.handler import locks

SOMEWHERE = "zk://ann:s3cret@127.0.0.1:1/shop"


@pytest.fixture
def configured(settings: Any) -> Any:
    """Puts the default engine on a ZooKeeper that nobody asks."""

    def configure(location: str = SOMEWHERE, **options: Any) -> None:
        engine = "lockapp.engines.zookeeper.ZooKeeperEngine"
        settings.LOCKAPP = {"default": {"ENGINE": engine, "LOCATION": location, "OPTIONS": options}}

    configure()
    return configure


def test_a_single_flight_is_refused(configured: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(ImproperlyConfigured, match="using="):
        single_flight("rag", compute=lambda: 1, ttl=5)


def test_a_place_in_a_queue_is_refused(configured: Any) -> None:
    """A message outlives the process that sent it, its place would not."""
    with pytest.raises(ImproperlyConfigured, match="scope='running'"):
        Slot(locks["default"], "queued", "task", "order:1", 60)


def test_a_ttl_that_no_session_keeps_is_refused(configured: Any) -> None:
    """Of a lock, and of the settings: what to change is said."""
    with pytest.raises(ValueError, match="session_timeout"):
        lock("order", 1, ttl=31)
    configured(session_timeout=10)
    with pytest.raises(ImproperlyConfigured, match=r"OPTIONS.*session_timeout"):
        lock("order", 1)


def test_a_wrong_address_is_told_without_its_password(configured: Any) -> None:
    """And what one looks like."""
    configured("zk://ann:s3cret@127.0.0.1:x/shop")
    with pytest.raises(ImproperlyConfigured, match=r"zk://user:password@host:2181") as refusal:
        lock("order", 1)
    assert "s3cret" not in str(refusal.value)
