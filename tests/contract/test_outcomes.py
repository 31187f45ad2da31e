"""P4: contended, unavailable, lost and not held are never mixed up; nothing runs unlocked."""

from __future__ import annotations

import pickle

import pytest

from lockapp.exceptions import (
    AlreadyHeld,
    EngineUnavailable,
    LeaseLost,
    LockAppError,
    NotAcquired,
    NotHeld,
    WaitTimeout,
)
from lockapp.lock import Lock
from tests.contract.fronts import People
from tests.contract.places import Place, RedisPlace
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch, wait_until


def test_contended_says_who_holds_it_and_for_how_long(place: Place, people: People) -> None:
    """Without waiting: NotAcquired, with the holder as people read it."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(ttl=30, why="monthly run"))
    with pytest.raises(NotAcquired) as refusal:
        bob.acquire(place.lock(), wait=0)
    error = refusal.value
    assert not isinstance(error, WaitTimeout)
    assert error.name == "order:1"
    assert error.waited == 0
    assert error.holder.fence == lease.fence
    assert error.holder.description["why"] == "monthly run"
    assert 28 < error.retry_after <= 30
    assert "monthly run" in str(error)
    assert pickle.loads(pickle.dumps(error)).holder == error.holder
    ann.release(lease)


def test_contention_is_an_outcome_of_trying(place: Place, people: People) -> None:
    """try_acquire returns None and raises nothing."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    assert bob.try_acquire(place.lock()) is None
    assert bob.try_acquire(place.lock(), wait=0.05) is None
    ann.release(lease)
    again = bob.try_acquire(place.lock())
    assert again is not None
    bob.release(again)


def test_waiting_in_vain_is_a_timeout(place: Place, people: People) -> None:
    """WaitTimeout is a NotAcquired and a TimeoutError, and took as long as it says."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    with stopwatch() as watch, pytest.raises(WaitTimeout) as refusal:
        bob.acquire(place.lock(), wait=0.3)
    assert isinstance(refusal.value, TimeoutError)
    assert isinstance(refusal.value, NotAcquired)
    assert 0.3 <= refusal.value.waited <= watch.seconds
    assert watch.seconds < scaled(1)
    assert refusal.value.holder.fence == lease.fence
    ann.release(lease)


def test_lost_and_not_held_are_two_things(place: Place, people: People) -> None:
    """Lost: had it and must stop. Not held: gave it back."""
    ann = people("ann")
    lost = ann.acquire(place.lock("order:1", ttl=0.05, renew=False))
    wait_until(lambda: place.engine.show("order:1") is None)
    with pytest.raises(LeaseLost):
        lost.check()
    with pytest.raises(LeaseLost):
        ann.release(lost)
    given_back = ann.acquire(place.lock("order:2"))
    ann.release(given_back)
    assert not given_back.lost
    with pytest.raises(NotHeld):
        given_back.check()
    with pytest.raises(NotHeld):
        ann.renew(given_back)


def test_a_lost_lease_stays_lost_after_its_release(place: Place, people: People) -> None:
    """Whoever looks after the block learns it too."""
    ann = people("ann")
    kept = []
    ann.within(
        place.lock(ttl=0.05, renew=False),
        lambda lease: (
            kept.append(lease),
            wait_until(lambda: place.engine.show("order:1") is None),
        ),
    )
    assert kept[0].lost
    assert kept[0].lost_reason == "expired"
    ann.release(kept[0])


def test_asking_for_what_one_holds_is_an_error_at_once(place: Place, people: People) -> None:
    """Waiting for it would be waiting for oneself; the outer lease is untouched."""
    ann = people("ann")
    lease = ann.acquire(place.lock())
    before = place.raw("order:1")
    with stopwatch() as watch, pytest.raises(AlreadyHeld) as error:
        ann.acquire(place.lock(), wait=5)
    assert watch.seconds < scaled(1)
    assert error.value.fence == lease.fence
    with pytest.raises(AlreadyHeld):
        ann.try_acquire(place.lock())
    assert place.raw("order:1") == before
    ann.release(lease)


def test_asking_again_is_an_error_also_after_an_earlier_lease_was_lost(
    place: Place, people: People
) -> None:
    """The end of a former lease must not make the present one forgotten."""
    ann = people("ann")
    former = ann.acquire(place.lock(ttl=0.05, renew=False))
    wait_until(lambda: former.lost)
    present = ann.acquire(place.lock(), wait=2)
    with pytest.raises(LeaseLost):
        ann.release(former)
    with pytest.raises(AlreadyHeld):
        ann.acquire(place.lock(), wait=0.1)
    ann.release(present)


def test_the_body_never_runs_without_the_lock(place: Place, people: People) -> None:
    """A block whose wait was in vain raises, runs nothing and releases nothing."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    before = place.raw("order:1")
    ran = []
    with pytest.raises(WaitTimeout):
        bob.within(place.lock(wait=0.1), ran.append)
    with pytest.raises(NotAcquired):
        bob.within(place.lock(wait=0), ran.append)
    assert ran == []
    assert place.raw("order:1") == before
    ann.release(lease)


def test_a_dead_engine_is_not_a_busy_lock(fresh_redis: RedisServer, people: People) -> None:
    """Unavailable within the connect timeout, however long one was ready to wait."""
    place = RedisPlace(fresh_redis, "dead")
    ann = people("ann")
    ann.release(ann.acquire(place.lock()))
    fresh_redis.kill()
    for wait in (0, 30):
        with stopwatch() as watch, pytest.raises(EngineUnavailable) as error:
            ann.acquire(place.lock(), wait=wait)
        assert not isinstance(error.value, NotAcquired)
        assert watch.seconds < scaled(1.5)
    ran = []
    with pytest.raises(EngineUnavailable):
        ann.within(place.lock(), ran.append)
    with pytest.raises(EngineUnavailable):
        ann.try_acquire(place.lock())
    assert ran == []
    fresh_redis.start()  # so that the undoing of the first request comes to its end
    place.close()


def test_a_frozen_engine_is_not_a_busy_lock(fresh_redis: RedisServer, people: People) -> None:
    """A server that takes connections and answers nothing costs one command timeout."""
    place = RedisPlace(fresh_redis, "frozen")
    engine = place.another_engine(command_timeout=0.3, connect_timeout=0.3)
    ann = people("ann")
    ann.release(ann.acquire(Lock(engine, "order:1")))
    fresh_redis.pause()
    with stopwatch() as watch, pytest.raises(EngineUnavailable) as error:
        ann.acquire(Lock(engine, "order:1"), wait=0)
    # "connect" when the watchdog, which looks once more after a release, has the idle connection.
    assert error.value.reason in ("timeout", "connect")
    assert watch.seconds < scaled(1.5)
    fresh_redis.resume()
    ann.release(ann.acquire(Lock(engine, "order:1"), wait=5))
    place.close()


def test_a_server_that_refuses_writes_is_not_a_busy_lock(
    fresh_redis: RedisServer, people: People
) -> None:
    """Read-only replica, no memory left: unavailable, and what is held can be given back."""
    place = RedisPlace(fresh_redis, "refusing")
    ann = people("ann")
    held = ann.acquire(place.lock("order:1"))
    fresh_redis.config(maxmemory=1)
    with pytest.raises(EngineUnavailable) as full:
        ann.acquire(place.lock("order:2"), wait=5)
    assert full.value.reason == "refused"
    ann.renew(held)
    ann.release(held)
    fresh_redis.config(maxmemory=0)
    fresh_redis.client.replicaof("127.0.0.1", "1")
    with pytest.raises(EngineUnavailable) as replica:
        ann.acquire(place.lock("order:2"), wait=0)
    assert replica.value.reason == "transient"
    fresh_redis.client.replicaof("NO", "ONE")
    ann.release(ann.acquire(place.lock("order:2"), wait=0))
    place.close()


def test_every_outcome_is_a_lockapp_error() -> None:
    """One root, and branches that do not cross."""
    outcomes = (NotAcquired, EngineUnavailable, LeaseLost, NotHeld, AlreadyHeld)
    for outcome in outcomes:
        assert issubclass(outcome, LockAppError)
        assert [other for other in outcomes if issubclass(outcome, other)] == [outcome]
