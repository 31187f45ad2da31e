"""P1: while a lease is valid, nobody else is granted the same name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lockapp.lock import Lock
from tests.contract.fronts import People, done
from tests.contract.journal import Journal
from tests.contract.places import Place, RedisPlace
from tests.timing import wait_until

ROOT = Path(__file__).parents[2]


def test_contenders_never_overlap_and_their_fences_grow(
    place: Place, people: People, journal: Journal
) -> None:
    """Six contenders for one name, each twelve times."""
    lock = place.lock(wait=20)
    visits = [
        contender.start_visits(lock, journal, 12, 0.001)
        for contender in people("a", "b", "c", "d", "e", "f")
    ]
    for visit in visits:
        done(visit)
    journal.assert_exclusive(visits=72)


def test_threads_and_tasks_of_several_loops_exclude_each_other(
    place: Place, journal: Journal
) -> None:
    """One queue for both fronts; a grant may come from another thread or loop."""
    threads, tasks = People("sync"), People("async")
    contenders = [*threads("a", "b"), *tasks("c", "d")]
    tasks.another_loop()
    contenders += tasks("e", "f")
    lock = place.lock(wait=20)
    visits = [contender.start_visits(lock, journal, 12, 0.001) for contender in contenders]
    for visit in visits:
        done(visit)
    threads.close()
    tasks.close()
    journal.assert_exclusive(visits=72)


def test_engines_of_one_place_share_their_locks(place: Place, people: People) -> None:
    """Two aliases that name one server are not two worlds."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    other = Lock(place.another_engine(), "order:1")
    assert bob.try_acquire(other) is None
    ann.release(lease)
    again = bob.acquire(other, wait=0)
    assert again.fence > lease.fence
    bob.release(again)


def test_other_names_are_free(place: Place, people: People) -> None:
    """A lock binds its own name only."""
    ann, bob = people("ann", "bob")
    held = ann.acquire(place.lock("order:1"))
    other = bob.acquire(place.lock("order:2"), wait=0)
    ann.release(held)
    bob.release(other)


def test_nobody_is_granted_a_lease_that_its_holder_still_believes_in(
    place: Place, people: People
) -> None:
    """A waits on a lease that runs out: when it gets the lock, the old holder knows."""
    ann, bob = people("ann", "bob")
    for _ in range(5):
        old = ann.acquire(place.lock(ttl=0.15, renew=False))
        new = bob.acquire(place.lock(wait=5))
        assert old.lost
        bob.release(new)


def test_a_forced_release_is_the_named_exception(place: Place, people: People) -> None:
    """An operator may take a lease away; the next is granted, and the loser learns of it."""
    ann, bob = people("ann", "bob")
    place.engine = place.another_engine(tombstone=1)
    lock = place.lock()
    taken = ann.acquire(lock)
    place.engine.force_release("order:1", taken.fence, actor="operator", reason="stuck")
    given = bob.acquire(lock, wait=0)
    assert given.fence > taken.fence
    assert wait_until(lambda: _renewal_tells(ann, taken))
    bob.release(given)


def _renewal_tells(contender: object, lease: object) -> bool:
    from lockapp.exceptions import LeaseLost

    try:
        contender.renew(lease)  # type: ignore[attr-defined]
    except LeaseLost as loss:
        return loss.reason == "forced" and "operator" in loss.note
    return False


def test_processes_exclude_each_other(redis_place: RedisPlace, tmp_path: Path) -> None:
    """Three processes, both fronts; each makes a file that must not exist while it is inside."""
    arguments = [redis_place.url, redis_place.prefix, "order:1", "visit", str(tmp_path), "40"]
    command = [sys.executable, "-m", "tests.contract.actor", *arguments]
    actors = [
        subprocess.Popen([*command, front], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for front in ("sync", "async", "sync")
    ]
    fences: list[int] = []
    for actor in actors:
        out, _ = actor.communicate(timeout=40)
        assert actor.returncode == 0, out
        fences += map(int, out.split())
    assert len(set(fences)) == 120
    assert [event.fence for event in redis_place.events() if event.kind == "acquired"] == sorted(
        fences
    )
