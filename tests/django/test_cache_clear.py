"""`cache.clear()` empties a database: what the check W002 warns of is true, and its cure works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import caches

from lockapp.checks import check_neighbours
from lockapp.conf import configs
from lockapp.exceptions import LeaseLost, NotAcquired
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.servers import RedisServer
from tests.timing import wait_until

CACHE_DATABASE = 1


@pytest.fixture(autouse=True)
def cached(settings: Any, fresh_redis: RedisServer) -> Iterator[None]:
    """A django-redis cache in a database of the server, with something in it."""
    base = fresh_redis.url.rsplit("/", 1)[0]
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{base}/{CACHE_DATABASE}",
        }
    }
    caches["default"].set("page", "html")
    yield
    caches["default"].client.get_client().connection_pool.disconnect()  # type: ignore[attr-defined]


def hold(settings: Any, server: RedisServer, database: int, **options: Any) -> Lease:
    settings.LOCKAPP = {"default": {"LOCATION": f"{server.url.rsplit('/', 1)[0]}/{database}"}}
    return Lock(locks["default"], "order:1", **options).acquire()


def test_a_lock_in_a_database_of_its_own_survives_the_clearing_of_the_cache(
    settings: Any, fresh_redis: RedisServer
) -> None:
    """Nobody else gets in, the lease can be renewed, and the check has nothing to say."""
    lease = hold(settings, fresh_redis, CACHE_DATABASE + 1)
    assert check_neighbours() == []
    caches["default"].clear()
    assert caches["default"].get("page") is None
    other = configs()["default"].build()
    with pytest.raises(NotAcquired):
        Lock(other, "order:1", wait=0).acquire()
    lease.renew()
    lease.release()
    other.close()


def test_a_lock_in_the_caches_database_is_wiped_and_its_holder_learns_it_when_it_renews(
    settings: Any, fresh_redis: RedisServer
) -> None:
    """By itself, long before its lease would have run out; and somebody else is let in."""
    lease = hold(settings, fresh_redis, CACHE_DATABASE, ttl=300)
    assert [message.id for message in check_neighbours()] == ["lockapp.W002"]
    caches["default"].clear()
    assert lease.live, "it can't know yet"
    other = configs()["default"].build()
    nexts = Lock(other, "order:1", wait=0).acquire()
    assert nexts.fence > lease.fence
    lease.engine.sync.watchdog.notice(lease.name)  # its renewal is due now, not in a minute
    wait_until(lambda: lease.lost, what="the next renewal")
    assert lease.lost_reason != "expired"
    with pytest.raises(LeaseLost):
        lease.check()
    nexts.release()
    other.close()
