"""Semaphore, read/write lock, several locks, reentrance: other shapes of the same promises."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

from lockapp.core.values import EVERYBODY, ForceOutcome
from lockapp.exceptions import AlreadyHeld, LeaseLost, NotAcquired, NotHeld, WaitTimeout
from lockapp.owner import current_owner
from lockapp.primitives import MultiLock, RWLock, Semaphore
from tests.contract.fronts import People, done
from tests.contract.places import Place
from tests.timing import pause, wait_until

NAME = "order:1"


def waiting(place: Place, name: str = NAME) -> int:
    """How many wait for it."""
    state = place.engine.show(name)
    return 0 if state is None else state.waiter_count


# ------------------------------------------------------------------ semaphore


@pytest.mark.offers("sharing")
def test_a_semaphore_grants_its_limit_and_no_more(place: Place, people: People) -> None:
    """Each permit is a lease of its own, with its own fence; all are listed."""
    gpu = Semaphore(place.engine, NAME, 2)
    ann, bob, cid = people("ann", "bob", "cid")
    first, second = ann.acquire(gpu), bob.acquire(gpu)
    with pytest.raises(NotAcquired):
        cid.acquire(gpu, wait=0)
    state = place.engine.show(NAME)
    assert state is not None
    assert state.limit == 2
    assert {holder.fence for holder in state.holders} == {first.fence, second.fence}
    assert first.fence < second.fence
    third = cid.start_acquire(gpu, 10)
    wait_until(lambda: waiting(place) == 1)
    ann.release(first)
    assert done(third).fence > second.fence
    bob.release(second)
    cid.release(done(third))


@pytest.mark.offers("sharing")
def test_a_semaphore_is_never_overfull_under_contention(place: Place, people: People) -> None:
    """Many visitors, three permits: never a fourth inside, and everybody gets in."""
    gpu = Semaphore(place.engine, NAME, 3, wait=20)
    guard, inside, most, visits = threading.Lock(), 0, 0, Counter[str]()

    def stay(name: str) -> Any:
        def body(lease: Any) -> None:
            nonlocal inside, most
            with guard:
                inside += 1
                most = max(most, inside)
                visits[name] += 1
            pause(0.001)
            with guard:
                inside -= 1

        return body

    names = [f"p{number}" for number in range(6)]
    crowd = people(*names)
    for _ in range(8):
        for future in [
            one.start_within(gpu, stay(name)) for one, name in zip(crowd, names, strict=True)
        ]:
            done(future)
    assert 1 <= most <= 3
    assert visits == dict.fromkeys(names, 8)


@pytest.mark.offers("sharing")
def test_one_owner_may_hold_several_permits(place: Place, people: People) -> None:
    """A semaphore has no notion of re-entry; each release gives one permit back."""
    gpu = Semaphore(place.engine, NAME, 2)
    ann = people("ann")
    first, second = ann.acquire(gpu), ann.acquire(gpu)
    assert ann.try_acquire(gpu) is None
    ann.release(second)
    third = ann.acquire(gpu)
    for lease in (first, third):
        ann.release(lease)


@pytest.mark.offers("sharing")
def test_those_who_know_a_smaller_limit_are_respected(place: Place, people: People) -> None:
    """A raised limit takes effect when the holders that know the old one have gone."""
    ann, bob, cid = people("ann", "bob", "cid")
    old, new = Semaphore(place.engine, NAME, 1), Semaphore(place.engine, NAME, 2)
    first = ann.acquire(old)
    assert bob.try_acquire(new) is None
    ann.release(first)
    second, third = bob.acquire(new), cid.acquire(new)
    assert ann.try_acquire(old) is None
    assert ann.try_acquire(place.lock(NAME)) is None, "a mutex of that name excludes it as well"
    bob.release(second)
    cid.release(third)


@pytest.mark.parametrize("limit", [0, -1, EVERYBODY, True, 1.5, "2"])
def test_a_limit_that_makes_no_sense_is_refused(place: Place, limit: Any) -> None:
    """Where it is written."""
    with pytest.raises((TypeError, ValueError), match="limit"):
        Semaphore(place.engine, NAME, limit)


# ------------------------------------------------------------------ read/write


@pytest.mark.offers("sharing")
def test_readers_share_and_a_writer_is_alone(place: Place, people: People) -> None:
    """No writer beside anybody, no reader beside a writer."""
    kb = RWLock(place.engine, NAME)
    ann, bob, cid = people("ann", "bob", "cid")
    one, two = ann.acquire(kb.read()), bob.acquire(kb.read())
    assert cid.try_acquire(kb.write()) is None
    ann.release(one)
    bob.release(two)
    three = cid.acquire(kb.write())
    assert ann.try_acquire(kb.read()) is None
    assert bob.try_acquire(kb.write()) is None
    cid.release(three)


@pytest.mark.offers("sharing")
def test_neither_side_starves_the_other(place: Place, people: People) -> None:
    """In order of arrival: readers, a writer, and the readers that came after it."""
    kb = RWLock(place.engine, NAME, wait=20)
    ann, bob, cid, dan, eve = people("ann", "bob", "cid", "dan", "eve")
    first = ann.acquire(kb.read())
    writer = bob.start_acquire(kb.write())
    wait_until(lambda: waiting(place) == 1)
    late = []
    for number, reader in enumerate((cid, dan), 2):
        late.append(reader.start_acquire(kb.read()))
        wait_until(lambda: waiting(place) == number)  # noqa: B023
    last = eve.start_acquire(kb.write())
    wait_until(lambda: waiting(place) == 4)
    assert not any(future.done() for future in (writer, *late, last))
    ann.release(first)
    written = done(writer)
    assert not any(future.done() for future in (*late, last))
    bob.release(written)
    readers = [done(future) for future in late]
    assert not last.done()
    for reader, lease in zip((cid, dan), readers, strict=True):
        reader.release(lease)
    eve.release(done(last))


@pytest.mark.offers("sharing")
def test_a_writer_becomes_a_reader_without_letting_go(place: Place, people: People) -> None:
    """Readers that wait come in beside it; a writer does not come between."""
    kb = RWLock(place.engine, NAME, wait=20)
    ann, bob, cid = people("ann", "bob", "cid")
    lease = ann.acquire(kb.write())
    reader = bob.start_acquire(kb.read())
    wait_until(lambda: waiting(place) == 1)
    writer = cid.start_acquire(kb.write())
    wait_until(lambda: waiting(place) == 2)
    fence = lease.fence
    lease.downgrade()
    beside = done(reader)
    assert lease.live
    assert lease.fence == fence
    assert not writer.done()
    assert "downgraded" in place.kinds()
    lease.downgrade()  # again: nothing changes
    assert place.kinds().count("downgraded") == 1
    ann.release(lease)
    assert not writer.done()
    bob.release(beside)
    cid.release(done(writer))


@pytest.mark.offers("sharing")
def test_a_lost_lease_cannot_be_downgraded(place: Place, people: People) -> None:
    """It says so, and lets nobody in."""
    kb = RWLock(place.engine, NAME)
    ann = people("ann")
    lease = ann.acquire(kb.write())
    assert place.engine.force_release(NAME, lease.fence, actor="op") is ForceOutcome.RELEASED
    with pytest.raises(LeaseLost) as loss:
        lease.downgrade()
    assert loss.value.reason == "forced"


@pytest.mark.offers("sharing")
def test_a_reader_that_asks_for_more_is_told_at_once(place: Place, people: People) -> None:
    """An upgrade would wait for itself."""
    kb = RWLock(place.engine, NAME)
    ann = people("ann")
    lease = ann.acquire(kb.read())
    with pytest.raises(AlreadyHeld):
        ann.acquire(kb.write())
    ann.release(lease)


# ------------------------------------------------------------------ several at once


def test_all_or_none(place: Place, people: People) -> None:
    """One that is held refuses the rest, and nothing is held afterwards."""
    ann, bob = people("ann", "bob")
    names = ["order:1", "order:2", "order:3"]
    joint = MultiLock([place.lock(name) for name in names])
    lease = ann.acquire(place.lock("order:2"))
    with pytest.raises(NotAcquired) as refusal:
        bob.acquire(joint, wait=0)
    assert refusal.value.name
    assert place.engine.snapshot().total == 1
    ann.release(lease)
    held = bob.acquire(joint, wait=0)
    assert sorted(held.fences) == names
    assert place.engine.snapshot().total == 3
    held.check()
    bob.release(held)
    assert place.engine.snapshot().total == 0
    bob.release(held)  # a second call does nothing


def test_waiting_for_several_never_deadlocks(place: Place, people: People) -> None:
    """Whatever order they are named in; exclusion holds for each of them."""
    names = [f"order:{number}" for number in range(4)]
    guard, inside = threading.Lock(), Counter[str]()
    overlaps: list[str] = []
    crowd = people("ann", "bob", "cid", "dan")
    chance = random.Random(7)

    def body(wanted: list[str]) -> Any:
        def stay(lease: Any) -> None:
            with guard:
                inside.update(wanted)
                overlaps.extend(name for name in wanted if inside[name] > 1)
            pause(0.001)
            with guard:
                inside.subtract(wanted)

        return stay

    for _ in range(6):
        futures = []
        for one in crowd:
            wanted = chance.sample(names, 3)
            joint = MultiLock([place.lock(name, wait=20) for name in wanted])
            futures.append(one.start_within(joint, body(wanted)))
        for future in futures:
            done(future)
    assert overlaps == []


def test_giving_up_gives_back_what_was_taken(place: Place, people: People) -> None:
    """The wait is for all of them together."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock("order:2"))
    joint = MultiLock([place.lock("order:1"), place.lock("order:2"), place.lock("order:3")])
    with pytest.raises(WaitTimeout):
        bob.acquire(joint, wait=0.1)
    assert place.engine.snapshot().total == 1
    ann.release(lease)


def test_a_multilock_needs_different_locks_of_one_engine(place: Place) -> None:
    """Said where it is put together."""
    lock = place.lock("order:1")
    for locks in ([], [lock, place.lock("order:1")]):
        with pytest.raises(ValueError, match="multilock"):
            MultiLock(locks)


# ------------------------------------------------------------------ who holds it


def test_a_reentrant_lock_is_given_back_with_the_last_release(place: Place, people: People) -> None:
    """Counted per task or thread; others wait all the same."""
    ann, bob = people("ann", "bob")
    lock = place.lock(NAME, reentrant=True)
    outer = ann.acquire(lock)
    inner = ann.acquire(lock)
    assert inner.fence == outer.fence
    assert bob.try_acquire(lock) is None
    ann.release(inner)
    assert outer.live
    assert bob.try_acquire(lock) is None
    ann.release(outer)
    bob.release(bob.acquire(lock, wait=0))


def test_blocks_of_a_reentrant_lock_nest(place: Place) -> None:
    """The inner end gives nothing back."""
    lock = place.lock(NAME, reentrant=True)
    with lock as outer:
        with lock as inner:
            assert inner is outer
        assert outer.live
        assert place.engine.show(NAME) is not None
    assert place.engine.show(NAME) is None


def test_one_can_ask_who_holds_a_lock(place: Place, people: People) -> None:
    """For people; nothing is decided by it."""
    ann = people("ann")
    lock = place.lock(NAME, why="stocktaking")
    assert not lock.is_locked()
    assert lock.holder() is None
    lease = ann.acquire(lock)
    assert lock.is_locked()
    holder = lock.holder()
    assert holder is not None
    assert holder.fence == lease.fence
    assert holder.description["why"] == "stocktaking"
    ann.release(lease)


@pytest.mark.offers("sharing")
def test_the_owner_alone_is_known_to_hold_it(place: Place) -> None:
    """What `assert_locked` asks: this task or thread, a lease that is live."""
    engine, me = place.engine, current_owner()
    seen: list[bool] = []
    with place.lock(NAME):
        assert engine.holds(NAME, me)
        thread = threading.Thread(target=lambda: seen.append(engine.holds(NAME, current_owner())))
        thread.start()
        thread.join()
    assert seen == [False]
    assert not engine.holds(NAME, me)
    with Semaphore(engine, NAME, 3):
        assert engine.holds(NAME, me)


def test_code_that_needs_a_lock_can_say_so(redis_locks: Any) -> None:
    """`assert_locked` raises where the caller forgot the lock."""
    from lockapp import assert_locked, lock

    with pytest.raises(NotHeld, match="must run under it"):
        assert_locked("order", 7)
    with lock("order", 7):
        assert_locked("order", 7)
