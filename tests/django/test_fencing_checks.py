"""`manage.py check --database`: engines whose claims the stored fences will refuse."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.db import connection
from django.utils import timezone

from lockapp import lock
from lockapp.checks import TAG
from lockapp.fencing import fenced_atomic
from lockapp.models import Fence

MEMORY = "lockapp.engines.memory.MemoryEngine"


def told(**options: Any) -> list[str]:
    """What the check says, as Django runs it."""
    found = checks.run_checks(**(options or {"databases": ["default"]}))
    assert all(message.hint for message in found)
    return [message.msg for message in found if message.id == "lockapp.W017"]


def configure(settings: Any, alias: str = "default", epoch: int = 1) -> None:
    engine = {"ENGINE": MEMORY, "OPTIONS": {"fence_epoch": epoch}}
    settings.LOCKAPP = {"default": {"ENGINE": MEMORY, "OPTIONS": {"fence_epoch": 9}}, alias: engine}


def claim(using: str) -> None:
    with lock("order", 1, using=using) as lease, fenced_atomic(lease):
        pass


@pytest.mark.django_db
def test_an_epoch_that_was_lowered_is_told(settings: Any) -> None:
    """And not one that was kept or raised."""
    configure(settings, epoch=2)
    assert told() == []
    claim("default")
    for epoch, messages in ((2, 0), (3, 0), (1, 1)):
        configure(settings, epoch=epoch)
        assert len(told()) == messages
    assert "'default MemoryEngine' claimed with epoch 2; 'default MemoryEngine' has 1" in told()[0]


@pytest.mark.django_db
def test_an_engine_that_was_exchanged_without_a_higher_epoch_is_told(settings: Any) -> None:
    """Another alias, or another kind under the same one; two that are both there are two."""
    configure(settings, alias="old", epoch=2)
    claim("old")
    assert told() == []
    for epoch, messages in ((1, 1), (2, 1), (3, 0)):
        configure(settings, alias="new", epoch=epoch)
        assert len(told()) == messages
    settings.LOCKAPP = {"default": {"ENGINE": MEMORY}}
    Fence.objects.update(engine="default RedisEngine", claimed_at=timezone.now())
    assert len(told()) == 1


@pytest.mark.django_db(transaction=True)  # MariaDB commits before it renames a table
def test_nothing_is_asked_without_leave_or_without_a_table(settings: Any) -> None:
    """Plain `check` asks no database, and `migrate` checks before there is a table."""
    configure(settings, epoch=2)
    claim("default")
    configure(settings)
    assert len(told()) == 1
    assert told(tags=None) == told(tags=[TAG]) == []
    settings.LOCKAPP = {}
    assert told() == [], "the settings are another check's"
    configure(settings)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE lockapp_fence RENAME TO elsewhere")
        assert told() == []
        cursor.execute("ALTER TABLE elsewhere RENAME TO lockapp_fence")
