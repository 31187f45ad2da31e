"""Failover, and leases that count only when replicas have them: real servers, real Sentinels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.core.run import run_sync
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import EngineUnavailable, LeaseLost
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.contract.fronts import People
from tests.history import Stay, judge
from tests.sentinels import REPLICATION, Watched
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

Make = Callable[..., RedisEngine]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """One master, two replicas, three Sentinels; to be harmed."""
    with Watched() as service:
        yield service
        for each in service.servers:
            if each.running:
                each.resume()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes engines of a place, as processes of their own would have them."""
    made: list[RedisEngine] = []

    def of(place: Any, **options: Any) -> RedisEngine:
        made.append(RedisEngine(f"e{len(made)}", place.url, EngineOptions.parse(options)))
        return made[-1]

    yield of
    for engine in made:
        engine.close()


@pytest.fixture(params=["sync", "async"])
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    """Contenders of either front."""
    made = People(request.param)
    yield made
    made.close()


def moved(watched: Watched) -> float:
    """Wait for a failover; return when a Sentinel first named the new master."""
    old = watched.servers[0].port
    wait_until(lambda: watched.master.port != old, limit_s=30, every_s=0.01, what="a failover")
    return time.monotonic()


def released(lease: Lease) -> bool:
    """Release it, unless the engine can't be asked at this moment."""
    try:
        lease.release()
    except EngineUnavailable:
        return False
    return True


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_waiters_and_holders_go_on_after_a_failover(
    watched: Watched, make: Make, harm: str
) -> None:
    """Nobody tells them: a second after the new master is known waiters are there to be woken.

    A holder goes on holding what it held, and is told when it is taken away; the next token is
    larger than the last.
    """
    engine = make(watched)
    kept = Lock(engine, "order:1", ttl=60).acquire()
    first = Lock(engine, "order:2", ttl=60).acquire()
    others = [Lock(make(watched), "order:2", ttl=5, wait=60) for _ in range(2)]
    taken: list[tuple[float, int]] = []

    def sync_waiter() -> None:
        with others[0] as lease:
            taken.append((time.monotonic(), lease.fence))

    async def async_waiter() -> None:
        async with others[1] as lease:
            taken.append((time.monotonic(), lease.fence))

    waiting: list[Future[None]] = []
    with ThreadPoolExecutor(2) as pool:
        waiting.append(pool.submit(sync_waiter))
        waiting.append(pool.submit(lambda: asyncio.run(async_waiter())))
        wait_until(lambda: (state := engine.show("order:2")) and state.waiter_count == 2)
        getattr(watched.master, harm)()
        moved(watched)
        wait_until(lambda: released(first), every_s=0.05, what="the release")
        at = time.monotonic()
        for each in waiting:
            each.result(scaled(20))
    assert max(when for when, _ in taken) - at < scaled(1)
    assert first.fence < min(fence for _, fence in taken)
    assert not kept.lost
    wait_until(lambda: (state := engine.show("order:1")) and state.holders[0].fence == kept.fence)
    kept.renew()
    # The notice channel has moved, too: long before the next renewal the holder hears of this.
    make(watched).force_release("order:1", kept.fence, actor="operator")
    wait_until(lambda: kept.lost, limit_s=4, what="the notice")


@pytest.mark.parametrize(("acks", "doubled"), [(0, 1), (1, 0)])
def test_a_master_that_was_frozen_grants_nothing_that_replicas_must_have(
    watched: Watched, make: Make, acks: int, doubled: int
) -> None:
    """It wakes, knows of no failover, and grants what the new master has granted."""
    options = {"min_replicas_acked": acks, "command_timeout": scaled(0.5)}
    spec = Lock(make(watched, **options), "order:1", ttl=60).spec
    # Of a process that was frozen, too: nobody in it has noticed anything.
    sleeper: Any = make(watched, **options).make_sync_port()
    sleeper.transport.on_connect = lambda: None
    run_sync(sleeper.ping())
    old = watched.servers[0]
    old.pause()
    moved(watched)
    since = time.monotonic()
    first = Lock(make(watched, **options), "order:1", ttl=60, renew=False).acquire(wait=scaled(20))
    stays = [Stay("awake", "order:1", first.fence, since, first.valid_until)]
    old.resume()
    since = time.monotonic()
    granted: Any = None
    with contextlib.suppress(EngineUnavailable):
        granted = run_sync(sleeper.acquire(spec, "token", "{}", queue=False))
    if granted is not None:
        assert granted.fence > first.fence
        stays.append(Stay("sleeper", "order:1", granted.fence, since, since + 50))
    run_sync(sleeper.rest())
    assert sum(fault.kind == "overlap" for fault in judge(stays, [])) == doubled


# ------------------------------------------------------------------ acknowledged by replicas


def reached(master: RedisServer) -> bool:
    """Whether the replica has what is written to the master now."""
    with master.client.client() as connection:
        connection.set("settled", 1, px=1000)
        return connection.wait(1, 100) == 1


@pytest.fixture
def alone() -> Iterator[RedisServer]:
    """A server without replicas."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server, without Sentinels, and its replica."""
    with RedisServer(*REPLICATION) as master:
        following = ("--replicaof", f"127.0.0.1 {master.port}")
        with RedisServer(*REPLICATION, *following) as replica:
            wait_until(lambda: reached(master), limit_s=20, what="the replica to catch up")
            yield master, replica
            replica.resume()


def test_too_few_replicas_is_unavailable_and_leaves_nothing(
    alone: RedisServer, make: Make, people: People
) -> None:
    """What was granted is undone, one lock or several at once."""
    engine = make(alone, min_replicas_acked=1, command_timeout=0.2, tombstone=0.1)
    ann = people("ann")
    with pytest.raises(EngineUnavailable, match="0 of 1") as told:
        ann.acquire(Lock(engine, "order:1", wait=0))
    assert told.value.reason == "unacked"
    specs = [Lock(engine, f"order:{number}").spec for number in (1, 2)]
    step = lambda port: port.acquire_all(specs, ["a", "b"], "{}")  # noqa: E731
    wait_until(lambda: engine.snapshot().total == 0, what="the undo")
    with pytest.raises(EngineUnavailable, match="0 of 1"):
        ann.step(engine, step)


def test_a_lease_that_replicas_have_is_like_any_other(
    pair: tuple[RedisServer, RedisServer], make: Make, people: People
) -> None:
    """Granted, handed over, and prolonged; the replica knows it when the holder does."""
    master, replica = pair
    engine = make(master, min_replicas_acked=1, command_timeout=scaled(5))
    ann, bob = people("ann", "bob")
    lease = ann.acquire(Lock(engine, "order:1"))
    assert replica.client.hlen("lockapp:{0}:lock:order:1")
    waiting = bob.start_acquire(Lock(engine, "order:1", wait=20))
    wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count)
    ann.release(lease)
    handed = waiting.result(scaled(10))
    assert handed.confirmed
    bob.renew(handed)
    bob.release(handed)


def test_a_renewal_that_no_replica_has_prolongs_nothing(
    pair: tuple[RedisServer, RedisServer], make: Make, people: People
) -> None:
    """The holder's own clock ends the lease when it was to end, and the next one waits on."""
    master, replica = pair
    engine = make(master, min_replicas_acked=1, command_timeout=scaled(1.5))
    ann = people("ann")
    wait_until(lambda: reached(master), what="the replica to catch up")
    lease = ann.acquire(Lock(engine, "order:1", ttl=scaled(3)))
    until = lease.valid_until
    replica.pause()
    with pytest.raises(EngineUnavailable, match="0 of 1"):
        ann.renew(lease)
    assert lease.valid_until == until
    wait_until(lambda: lease.lost, what="the end of the lease")
    with pytest.raises(LeaseLost):
        lease.check()
    with contextlib.suppress(LeaseLost):
        ann.release(lease)  # or it would be renewed after all when the replica goes on


def test_a_waiter_is_not_let_in_before_replicas_know(
    pair: tuple[RedisServer, RedisServer], make: Make, people: People
) -> None:
    """Handed the lock while the replica hangs, it has it when that goes on; or gives it back."""
    master, replica = pair
    engine = make(master, min_replicas_acked=1, command_timeout=scaled(1), tombstone=0.1)
    ann, bob = people("ann", "bob")
    for mended in (True, False):
        wait_until(lambda: reached(master), what="the replica to catch up")
        lease = ann.acquire(Lock(engine, "order:1", renew=False))
        waiting = bob.start_acquire(Lock(engine, "order:1", wait=scaled(20) if mended else 1))
        wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count)
        replica.pause()
        ann.release(lease)
        given = threading.Event()
        waiting.add_done_callback(lambda _, given=given: given.set())
        assert mended is not given.wait(1.5 if mended else scaled(20))
        replica.resume()
        if mended:
            bob.release(waiting.result(scaled(20)))
        else:
            with pytest.raises(EngineUnavailable, match="0 of 1"):
                waiting.result()
        wait_until(lambda: engine.snapshot().total == 0, what="the lock to be free")
