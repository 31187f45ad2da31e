"""P8: waiting is first come, first served, and woken; giving up leaves nothing."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future

import pytest

from lockapp.core.values import LockSpec, LockState
from lockapp.exceptions import WaitTimeout
from lockapp.lease import Lease
from tests.contract.fronts import Contender, People, done
from tests.contract.places import MemoryPlace, Place, RedisPlace
from tests.contract.processes import actor, freeze, line
from tests.timing import pause, scaled, stopwatch, wait_until


def shown(place: Place, name: str = "order:1") -> LockState:
    state = place.engine.show(name)
    assert state is not None
    return state


def wait_for_queue(place: Place, length: int) -> None:
    wait_until(lambda: shown(place).waiter_count == length, what=f"{length} waiter(s)")


def queue_up(place: Place, contenders: list[Contender], **options: float) -> list[Future[Lease]]:
    """Have contenders wait, one after the other."""
    waiting = []
    for number, contender in enumerate(contenders, shown(place).waiter_count + 1):
        lock = place.lock(why=f"waiter {number}", **{"wait": 20, **options})
        waiting.append(contender.start_acquire(lock))
        wait_for_queue(place, number)
    return waiting


@pytest.mark.offers("queue")
def test_waiters_get_the_lock_in_the_order_in_which_they_came(place: Place, people: People) -> None:
    """Five of them; each passes it on."""
    ann = people("ann")
    crowd = people("b", "c", "d", "e", "f")
    lease = ann.acquire(place.lock())
    waiting = queue_up(place, crowd)
    assert [w.description["why"] for w in shown(place).waiters] == [
        f"waiter {number}" for number in range(1, 6)
    ]
    ann.release(lease)
    fences = []
    for contender, future in zip(crowd, waiting, strict=True):
        handed = done(future)
        assert [f.done() for f in waiting].count(True) == len(fences) + 1
        fences.append(handed.fence)
        assert handed.waited > 0
        contender.release(handed)
    assert fences == sorted(fences)


@pytest.mark.offers("queue")
def test_release_hands_the_lock_over_in_the_same_step(place: Place, people: People) -> None:
    """When release returns, the next one holds it; in between there was no free moment."""
    ann, bob, cid = people("ann", "bob", "cid")
    for _ in range(10):
        lease = ann.acquire(place.lock())
        (waiting,) = queue_up(place, [bob])
        ann.release(lease)
        assert cid.try_acquire(place.lock()) is None
        state = shown(place)
        assert state.holders[0].description["why"] == "waiter 1"
        assert state.waiter_count == 0
        handed = done(waiting)
        assert handed.fence == state.holders[0].fence
        bob.release(handed)


@pytest.mark.offers("queue")
def test_nobody_passes_a_live_waiter(place: Place, people: People) -> None:
    """Also somebody who comes at the moment when the lease runs out by itself."""
    ann, bob, cid = people("ann", "bob", "cid")
    place.lock()
    lease = ann.acquire(place.lock(ttl=0.3, renew=False))
    (waiting,) = queue_up(place, [bob])
    late = cid.start_acquire(place.lock(wait=20))
    wait_until(lambda: lease.lost)
    handed = done(waiting)
    assert not late.done()
    bob.release(handed)
    cid.release(done(late))


@pytest.mark.offers("queue")
def test_a_waiter_is_woken_at_once(place: Place, people: People) -> None:
    """Long before its slice ends."""
    ann, bob = people("ann", "bob")
    times = []
    for _ in range(5):
        lease = ann.acquire(place.lock())
        (waiting,) = queue_up(place, [bob])
        with stopwatch() as watch:
            ann.release(lease)
            handed = done(waiting)
        times.append(watch.seconds)
        bob.release(handed)
    assert min(times) < scaled(0.05)


def _at_rest(place: RedisPlace) -> bool:
    before = place.requests()
    pause(0.2)
    return place.requests() == before


def test_waiting_costs_less_than_one_command_per_second(
    redis_place: RedisPlace, people: People
) -> None:
    """Two waiters for two seconds, counted at the server."""
    ann, bob, cid = people("ann", "bob", "cid")
    lease = ann.acquire(redis_place.lock())
    waiting = queue_up(redis_place, [bob, cid])
    wait_until(lambda: redis_place.server.blocked("blpop") == 2, what="both to block")
    wait_until(lambda: _at_rest(redis_place), what="the watchdog's first round to end")
    before = redis_place.requests()
    pause(2)
    assert redis_place.requests() - before < 2 * 2
    ann.release(lease)
    bob.release(done(waiting[0]))
    cid.release(done(waiting[1]))


def test_waiting_in_memory_costs_no_step(memory_place: MemoryPlace, people: People) -> None:
    """A waiter sleeps until it is woken."""
    place = memory_place
    ann, bob, cid = people("ann", "bob", "cid")
    lease = ann.acquire(place.lock())
    waiting = queue_up(place, [bob, cid])
    asked: list[str] = []
    real = place.server.acquire
    place.server.acquire = lambda policy, spec, token, *rest: (
        asked.append(token), real(policy, spec, token, *rest),
    )[1]  # fmt: skip
    pause(1)
    assert asked == []
    ann.release(lease)
    bob.release(done(waiting[0]))
    cid.release(done(waiting[1]))


def test_a_waiter_takes_over_from_a_holder_that_died(place: Place, people: People) -> None:
    """Nobody has to come by: the lease runs out and the waiter has it soon after."""
    ann, bob = people("ann", "bob")
    with stopwatch() as watch:
        ann.acquire(place.lock(ttl=0.4, renew=False))
        handed = bob.acquire(place.lock(wait=10))
    assert 0.39 < watch.seconds < scaled(2.5), "a slice is 5 s"
    bob.release(handed)


def test_giving_up_leaves_nothing_in_the_queue(place: Place, people: People) -> None:
    """Ten who waited in vain; the one who stayed gets the lock."""
    ann, zoe = people("ann", "zoe")
    crowd = [people(f"c{number}") for number in range(10)]
    lease = ann.acquire(place.lock())
    waiting = [each.start_acquire(place.lock(wait=0.3)) for each in crowd]
    patient = zoe.start_acquire(place.lock(wait=20))
    for future in waiting:
        with pytest.raises(WaitTimeout):
            done(future)
    wait_for_queue(place, 1)
    ann.release(lease)
    zoe.release(done(patient))


def test_waiting_lasts_as_long_as_it_may_and_no_longer(place: Place, people: People) -> None:
    """Also across slices."""
    place.engine = place.another_engine(waiting_slice=0.1)
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    with stopwatch() as watch, pytest.raises(WaitTimeout):
        bob.acquire(place.lock(), wait=0.45)
    assert 0.45 <= watch.seconds < scaled(2)
    ann.release(lease)


def test_a_waiter_that_fell_silent_is_passed_over(place: Place, people: People) -> None:
    """It has not been seen for two slices when its turn comes."""
    place.engine = place.another_engine(waiting_slice=0.15)
    ann, bob, ghost = people("ann", "bob", "ghost")
    lease = ann.acquire(place.lock())
    haunt(place, ghost)
    (waiting,) = queue_up(place, [bob])
    pause(0.4)
    with stopwatch() as watch:
        ann.release(lease)
        handed = done(waiting)
    assert watch.seconds < scaled(1.5), "a claim window is 3 s"
    assert "expired" not in place.kinds()
    bob.release(handed)


@pytest.mark.offers("claims")
def test_a_waiter_that_died_costs_one_claim_window(place: Place, people: People) -> None:
    """It is handed the lock, does not take it up, and the next one gets it."""
    place.engine = place.another_engine(claim_window=0.3, waiting_slice=0.6)
    ann, bob, ghost = people("ann", "bob", "ghost")
    lease = ann.acquire(place.lock())
    haunt(place, ghost)
    (waiting,) = queue_up(place, [bob])
    with stopwatch() as watch:
        ann.release(lease)
        handed = done(waiting)
    # Who waits behind looks again at its slice's end at the latest.
    assert 0.25 < watch.seconds < scaled(1.5)
    ended = next(event for event in place.events() if event.kind == "expired")
    assert ended.detail["why"] == "claim"
    bob.release(handed)


def haunt(place: Place, ghost: Contender) -> None:
    """Put a waiter into the queue that will never be heard of again."""
    spec = LockSpec("order:1", ttl_ms=30_000, max_hold_ms=0)
    ghost.step(place.engine, lambda port: port.acquire(spec, "0" * 32, "{}", queue=True))
    wait_for_queue(place, 1)


def test_a_killed_process_costs_its_successors_one_claim_window(
    redis_place: RedisPlace, people: People
) -> None:
    """Three waiters of one process, killed: they don't lapse one after the other."""
    place = redis_place
    place.engine = place.another_engine(claim_window=0.5, waiting_slice=1)
    ann, bob = people("ann", "bob")
    leases = [ann.acquire(place.lock(f"order:{number}")) for number in range(3)]
    with actor(place, "wait", "3", name="order:") as doomed:
        assert line(doomed) == "waiting"
        for number in range(3):
            wait_until(lambda: shown(place, f"order:{number}").waiter_count == 1)  # noqa: B023
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.wait()
    with stopwatch() as watch:
        for lease in leases:
            ann.release(lease)
        for number in range(3):
            bob.release(bob.acquire(place.lock(f"order:{number}", wait=10)))
    assert watch.seconds < scaled(3)


def test_a_frozen_waiter_does_not_take_a_stale_grant_for_its_own(
    redis_place: RedisPlace, people: People
) -> None:
    """Frozen across its claim: when it wakes somebody else holds the lock, and it waits."""
    place = redis_place
    place.engine = place.another_engine(claim_window=0.3, waiting_slice=0.6)
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock("order:0"))
    with actor(place, "wait", "1", name="order:") as frozen:
        assert line(frozen) == "waiting"
        wait_until(lambda: shown(place, "order:0").waiter_count == 1)
        freeze(frozen)
        ann.release(lease)
        taken = bob.acquire(place.lock("order:0", wait=10))
        os.kill(frozen.pid, signal.SIGCONT)
        wait_until(lambda: shown(place, "order:0").waiter_count == 1, limit_s=10)
        assert shown(place, "order:0").holders[0].fence == taken.fence
        frozen.kill()
        frozen.wait()
    bob.release(taken)
    place.engine.sweep()
    wait_until(lambda: place.engine.sweep() or place.engine.show("order:0") is None)
