"""The notice channel breaks, is refused, or outlives a change of roles: it comes back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.core.values import ForceOutcome
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.integration.fault_scene import NAME, Loop
from tests.servers import RedisServer, free_port
from tests.timing import pause, wait_until

TTL_S = 600.0
"""No renewal is due while a test runs: what the holder learns, it learns by the channel."""


class Holder:
    """Somebody who holds the lock, on one front."""

    def __init__(self, front: str) -> None:
        self.loop = Loop() if front == "async" else None
        self.engines: list[RedisEngine] = []

    def hold(self, url: str, prefix: str) -> Lease:
        engine = RedisEngine("holder", url, EngineOptions(prefix=prefix))
        self.engines.append(engine)
        lock = Lock(engine, NAME, ttl=TTL_S)
        return lock.acquire() if self.loop is None else self.loop.run(lock.aacquire())

    def release(self, lease: Lease) -> None:
        if self.loop is None:
            lease.release()
        else:
            self.loop.run(lease.arelease())

    def close(self) -> None:
        for engine in self.engines:
            wait_until(partial(self._ended, engine), every_s=0.05)
        if self.loop is not None:
            self.loop.close()

    def _ended(self, engine: RedisEngine) -> bool:
        """Close, and say whether the watchdog has ended."""
        engine.close()
        if self.loop is None:
            return engine.sync.watchdog._thread is None
        self.loop.run(engine.aclose())
        return engine._loops[self.loop.loop].watchdog._task is None


@pytest.fixture(params=["sync", "async"])
def holder(request: pytest.FixtureRequest) -> Iterator[Holder]:
    """On either front; closed in the end."""
    made = Holder(request.param)
    yield made
    made.close()


def channels(server: RedisServer) -> list[Any]:
    return list(server.client.pubsub_channels("*"))


@pytest.fixture
def operator(fresh_redis: RedisServer, prefix: str) -> Iterator[RedisEngine]:
    """Somebody else, with an open connection."""
    engine = RedisEngine("operator", fresh_redis.url, EngineOptions(prefix=prefix))
    engine.ping()
    # So that its channel, which it has for a moment, is not taken for the holder's.
    watchdog = engine.sync.watchdog
    looked = watchdog._sweeps
    wait_until(lambda: looked.look_at and not watchdog._thread, what="its watchdog to end")
    yield engine
    engine.close()


def ask(operator: RedisEngine, lease: Lease) -> None:
    assert operator.revoke(NAME, lease.fence, actor="op") is ForceOutcome.ASKED


def assert_hears(lease: Lease) -> None:
    wait_until(lambda: lease.revoke_requested, what="the holder to hear of it")


def test_a_change_of_roles_and_back_leaves_the_channel_alone(
    fresh_redis: RedisServer, prefix: str, holder: Holder, operator: RedisEngine
) -> None:
    """The same subscription goes on, so that nothing published after it is missed."""
    lease = holder.hold(fresh_redis.url, prefix)
    wait_until(lambda: channels(fresh_redis), what="the channel")
    before = [it["id"] for it in fresh_redis.client.client_list(_type="pubsub")]
    fresh_redis.client.replicaof("127.0.0.1", free_port())  # a master that is away
    fresh_redis.client.replicaof("NO", "ONE")
    ask(operator, lease)
    assert_hears(lease)
    after = [it["id"] for it in fresh_redis.client.client_list(_type="pubsub")]
    assert len(before) == 1
    assert set(before) <= set(after)
    holder.release(lease)


def test_a_channel_that_was_refused_is_opened_as_soon_as_the_server_lets_us(
    fresh_redis: RedisServer, prefix: str, holder: Holder, operator: RedisEngine
) -> None:
    """Tried again without a flood of connections. What was told meanwhile is asked for then."""
    client = fresh_redis.client
    allow = partial(client.execute_command, "ACL", "SETUSER", "locks")
    allow("on", ">word", "~*", "+@all", "allchannels")

    def refused() -> int:
        return int(client.info("errorstats").get("errorstat_NOPERM", {}).get("count", 0))

    lease = holder.hold(fresh_redis.url.replace("redis://", "redis://locks:word@"), prefix)
    wait_until(lambda: channels(fresh_redis), what="the channel")
    allow("resetchannels")  # breaks it, too
    wait_until(refused, what="a failed attempt")
    ask(operator, lease)
    before = refused()
    pause(1.5)
    assert 1 <= refused() - before <= 3
    assert not lease.revoke_requested
    allow("allchannels")
    assert_hears(lease)
    holder.release(lease)
