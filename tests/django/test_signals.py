"""Signals tell what happened and change nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.dispatch import Signal

from lockapp import signals
from lockapp.engines.redis import RedisEngine
from lockapp.exceptions import LeaseLost, NotAcquired
from lockapp.handler import lock

ALL = ("lock_acquired", "lock_released", "lock_contended", "lease_lost", "lock_forced")


@contextmanager
def connected(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What every signal said, in order."""
    said: list[tuple[str, dict[str, Any]]] = []
    receivers = []
    for name in ALL:

        def receiver(sender: Any, _signal: str = name, **about: Any) -> None:
            said.append((_signal, {"sender": sender, **about}))

        getattr(signals, name).connect(receiver)
        receivers.append((name, receiver))
    yield said
    for name, receiver in receivers:
        getattr(signals, name).disconnect(receiver)


def test_a_life_of_a_lock_is_told(redis_locks: Any, heard: list[Any]) -> None:
    """Acquired, contended (by somebody else), released."""

    def contend() -> None:
        with pytest.raises(NotAcquired):
            lock("order", 1).acquire(wait=0)

    with lock("order", 1) as lease:
        thread = threading.Thread(target=contend)
        thread.start()
        thread.join()
    assert [name for name, _ in heard] == ["lock_acquired", "lock_contended", "lock_released"]
    for _, about in heard:
        assert about["sender"] is RedisEngine
        assert (about["alias"], about["name"]) == ("default", "order:1")
    assert heard[0][1]["lease"] is lease
    assert heard[1][1]["lock"].name == "order:1"
    assert heard[2][1]["lease"] is lease


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_lost_lease_is_told_once(redis_locks: Any, heard: list[Any]) -> None:
    """With its reason, whoever notices."""
    lease = lock("order", 1).acquire()
    redis_locks["default"].force_release("order:1", lease.fence, actor="alice", reason="stuck")
    with pytest.raises(LeaseLost):
        lease.release()
    told = [about for name, about in heard if name == "lease_lost"]
    assert [about["lease"].lost_reason for about in told] == ["forced"]


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_forced_release_is_told_where_it_was_done(redis_locks: Any, heard: list[Any]) -> None:
    """Once, with who did it and why; a page that is out of date does nothing and tells nothing."""
    engine = redis_locks["default"]
    lease = lock("order", 1).acquire()
    for fence in (lease.fence - 1, lease.fence, lease.fence):
        engine.force_release("order:1", fence, actor="alice", reason="stuck")
    told = [about["forced"] for name, about in heard if name == "lock_forced"]
    assert told == [("order:1", lease.fence, "alice", "stuck")]
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
async def test_a_forced_release_is_told_in_an_event_loop_too(
    redis_locks: Any, heard: list[Any]
) -> None:
    """The same, awaited."""
    lease = await lock("order", 1).aacquire()
    await redis_locks["default"].aforce_release("order:1", lease.fence, actor="bob")
    assert [about["forced"].actor for name, about in heard if name == "lock_forced"] == ["bob"]
    with pytest.raises(LeaseLost):
        await lease.arelease()
    await redis_locks.aclose_all()


def test_a_raising_receiver_changes_no_outcome(
    redis_locks: Any, caplog: pytest.LogCaptureFixture, heard: list[Any]
) -> None:
    """The lock is acquired and released, the others hear of it, the error is logged."""

    def fail(**about: Any) -> None:
        raise RuntimeError("receiver is broken")

    with (
        caplog.at_level(logging.ERROR),
        connected(signals.lock_acquired, fail),
        connected(signals.lock_released, fail),
    ):
        with lock("order", 1) as lease:
            assert lease.live
        assert redis_locks["default"].show("order:1") is None
    assert [name for name, _ in heard] == ["lock_acquired", "lock_released"]
    logged = [record for record in caplog.records if record.name == "django.dispatch"]
    assert len(logged) == 2


async def test_receivers_hear_of_locks_in_an_event_loop(redis_locks: Any, heard: list[Any]) -> None:
    """They are called as plain functions there as well."""
    async with lock("order", 1):
        assert [name for name, _ in heard] == ["lock_acquired"]
    assert [name for name, _ in heard] == ["lock_acquired", "lock_released"]
    await redis_locks.aclose_all()


def test_an_asynchronous_receiver_is_refused() -> None:
    """When it is connected, not when a lock is acquired."""

    async def receiver(**about: Any) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        signals.lock_acquired.connect(receiver)
