"""P11: a free name has no keys, threads or connections; what died is reclaimed."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lockapp.core import sweeping
from lockapp.exceptions import WaitTimeout
from lockapp.holding import RELEASING
from lockapp.lock import Lock
from tests.contract.fronts import People
from tests.contract.places import LASTING, Place, RedisPlace
from tests.contract.processes import actor, line
from tests.servers import RedisServer
from tests.timing import wait_until


def test_used_names_leave_nothing_behind(place: Place, people: People) -> None:
    """Two hundred names, some with a waiter that gave up."""
    ann, bob = people("ann", "bob")
    for number in range(200):
        lock = place.lock(f"order:{number}")
        lease = ann.acquire(lock)
        if number % 10 == 0:
            with pytest.raises(WaitTimeout):
                bob.acquire(lock, wait=0.01)
        ann.release(lease)
    assert place.litter() == []
    assert place.engine.snapshot().total == 0


def test_the_keys_that_stay_do_not_grow_with_the_names(redis_place: RedisPlace) -> None:
    """A handful per prefix, however many names have been used; no channel."""
    place = redis_place
    for number in range(100):
        place.lock(f"order:{number}").acquire().release()
    keys = {key.rsplit(":", 1)[-1] for key in place.client.scan_iter(f"{place.prefix}:*")}
    assert keys <= LASTING
    families = place.client.hgetall(place.key("counts"))
    assert len(families) <= 4
    # A process listens on one channel of its own, for as long as its watchdog lives.
    assert len(place.client.pubsub_channels(f"{place.prefix}:*")) <= 1
    wait_until(lambda: place.client.pubsub_channels(f"{place.prefix}:*") == [])


def test_threads_and_connections_end_when_nothing_is_held(
    redis_place: RedisPlace, people: People
) -> None:
    """Soon after the last release, without anybody closing anything."""
    place = redis_place
    before = connections(place)
    crowd = [people(f"c{number}") for number in range(8)]
    for number, contender in enumerate(crowd):
        contender.release(contender.acquire(place.lock(f"order:{number}")))
    wait_until(lambda: connections(place) == before)
    wait_until(lambda: not watchdogs())


def test_a_watchdog_that_sleeps_until_a_renewal_notices_that_it_is_not_needed(
    redis_place: RedisPlace, people: People
) -> None:
    """Nobody wakes it when he releases, and the renewal would be due in twenty seconds."""
    place = redis_place
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=60))
    ports = [place.engine.sync, *place.engine._loops.values()]
    wait_until(lambda: any(port.watchdog._heap for port in ports))
    ann.release(lease)
    wait_until(lambda: connections(place) == 0)


def connections(place: RedisPlace) -> int:
    return sum(client["name"] == "lockapp" for client in place.client.client_list())


def watchdogs() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("lockapp-watchdog")]


def test_a_closed_engine_can_be_used_again(place: Place, people: People) -> None:
    """Closing it gives connections up, and nothing else."""
    ann = people("ann")
    lease = ann.acquire(place.lock())
    place.engine.close()
    ann.renew(lease)
    ann.release(lease)
    place.engine.close()
    ann.release(ann.acquire(place.lock()))


def test_a_lease_that_is_found_as_garbage_together_with_its_engine_is_undone(place: Place) -> None:
    """The collector finalises them in any order, and the undoing needs what belongs to both."""

    def leave() -> None:
        engine = place.make_engine("dropped", place.engine.options)
        lease = Lock(engine, "order:1", ttl=60).acquire()
        lease._state = RELEASING  # as an interrupt leaves it, right before the release is sent
        engine.observer = lambda *_: lease
        engine.close()
        wait_until(lambda: not watchdogs())

    gc.disable()
    try:
        leave()
        assert place.engine.show("order:1")
        gc.collect()
        wait_until(lambda: not place.engine.show("order:1"), what="the lease to be undone")
    finally:
        gc.enable()


def test_a_connection_whose_end_was_interrupted_keeps_no_watchdog(redis_place: RedisPlace) -> None:
    """A signal struck in the finaliser that strikes it off the list of open ones."""

    class Gone:
        pass

    redis_place.lock().acquire().release()
    transport = redis_place.engine.sync.transport  # type: ignore[attr-defined]
    connection = Gone()
    transport._open.data.add(weakref.ref(connection))
    del connection
    wait_until(lambda: not watchdogs())


def test_a_process_without_file_numbers_has_a_watchdog_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks by itself as long as nobody can wake it."""

    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", none_left)
        with place.lock(ttl=1.5) as lease:
            until = lease.valid_until
            wait_until(lambda: lease.valid_until > until, what="it to be renewed")


def test_killed_waiters_leave_nothing_behind(redis_place: RedisPlace) -> None:
    """Ten waiters of a process, killed: their places lapse and go with the lock."""
    place = redis_place
    place.engine = place.another_engine(claim_window=0.3)
    leases = [place.lock(f"order:{number}", ttl=2).acquire() for number in range(10)]
    before = connections(place)
    with actor(place, "wait", "10", name="order:") as doomed:
        assert line(doomed) == "waiting"
        for number in range(10):
            wait_until(lambda: place.engine.show(f"order:{number}").waiter_count == 1)  # type: ignore[union-attr]  # noqa: B023
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.wait()
    for lease in leases:
        lease.release()
    wait_until(lambda: place.litter() == [])
    wait_until(lambda: connections(place) <= before)


def test_many_names_waited_for_in_vain_leave_server_and_process_as_they_were(
    fresh_redis: RedisServer, prefix: str
) -> None:
    """Five hundred names, fifty waiters that gave up, ten that were killed.

    Compared: keys, channels and connections of a server that nobody else uses, and our own files.
    """
    place = RedisPlace(fresh_redis, prefix)
    place.engine = place.another_engine(claim_window=0.3)
    # What stays, however many names there are.
    with place.lock("order:warm", ttl=1), ThreadPoolExecutor(1) as other:
        assert other.submit(gave_up, place, "order:warm").result()

    def base() -> tuple[int, list[object], int, int]:
        client = place.client
        files = len(list(Path("/proc/self/fd").iterdir()))
        return client.dbsize(), client.pubsub_channels(), len(client.client_list()), files

    settled = partial(wait_until, lambda: not watchdogs() and not place.client.pubsub_channels())
    settled()
    before = base()
    leases = [place.lock(f"order:{number}", ttl=10).acquire() for number in range(500)]
    with ThreadPoolExecutor(10) as crowd:
        outcomes = list(
            crowd.map(partial(gave_up, place), (f"order:{number}" for number in range(50)))
        )
    assert outcomes == [True] * 50
    with actor(place, "wait", "10", name="order:") as doomed:
        assert line(doomed) == "waiting"
        for number in range(10):
            wait_until(lambda: place.engine.show(f"order:{number}").waiter_count == 1)  # type: ignore[union-attr]  # noqa: B023
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.wait()
    assert base() != before
    for lease in leases:
        lease.release()
    wait_until(lambda: place.litter() == [], limit_s=10, every_s=0.05)
    settled()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: base() == before, every_s=0.05)
    assert base() == before
    place.close()


def gave_up(place: RedisPlace, name: str) -> bool:
    try:
        place.lock(name, wait=0.05).acquire()
    except WaitTimeout:
        return True
    return False


def test_an_expired_holder_is_reclaimed_while_anyone_uses_the_engine(
    redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed; others only come and go under other names. The event is written."""
    monkeypatch.setattr(sweeping, "LOOK_EVERY_S", 0.5)
    place = redis_place
    with actor(place, "hold", "0.4") as holder:
        assert line(holder).startswith("held")
        holder.kill()
        holder.wait()

    def used() -> bool:
        with place.lock("order:2", ttl=0.5):
            return place.kinds() == ["acquired", "expired"]

    wait_until(used, limit_s=12, every_s=0.1)
    assert place.engine.snapshot().total == 0


def test_sweeping_reclaims_every_expired_holder_and_touches_no_live_one(
    place: Place, people: People
) -> None:
    """Fifty that ran out, two that did not."""
    ann, bob = people("ann", "bob")
    live = [ann.acquire(place.lock(f"live:{n}", ttl=60, renew=False)) for n in range(2)]
    dead = [ann.acquire(place.lock(f"dead:{n}", ttl=0.1, renew=False)) for n in range(50)]
    wait_until(lambda: all(lease.lost for lease in dead))
    before = [place.raw(lease.name) for lease in live]
    wait_until(lambda: place.engine.sweep() == 0 and place.engine.snapshot().total == 2)
    assert [place.raw(lease.name) for lease in live] == before
    fences = {
        kind: {event.fence for event in place.events() if event.kind == kind}
        for kind in ("acquired", "expired")
    }
    # More than fifty when a machine was so busy that a lease was over before it was heard of: it
    # is asked for again then.
    assert fences["expired"] >= {lease.fence for lease in dead}
    assert fences["acquired"] - fences["expired"] == {lease.fence for lease in live}
    assert sum(event.kind == "expired" for event in place.events()) == len(fences["expired"])
    for lease in live:
        ann.release(lease)
    bob.release(bob.acquire(place.lock("dead:1"), wait=0))


def test_the_list_of_locks_shows_what_is_held_in_pages(place: Place, people: People) -> None:
    """Earliest deadline first; gone when released."""
    ann = people("ann")
    leases = [ann.acquire(place.lock(f"job:{n}", ttl=30 + n, why=f"no {n}")) for n in range(7)]
    first, second = place.engine.snapshot(0, 5), place.engine.snapshot(5, 5)
    assert (first.total, len(first.locks), len(second.locks)) == (7, 5, 2)
    shown = [*first.locks, *second.locks]
    assert [lock.name for lock in shown] == [f"job:{number}" for number in range(7)]
    assert {lock.family for lock in shown} == {"job"}
    assert [lock.holders[0].fence for lock in shown] == [lease.fence for lease in leases]
    assert shown[3].holders[0].description["why"] == "no 3"
    assert 32 < shown[3].holders[0].remaining_ms / 1000 <= 33
    for lease in leases:
        ann.release(lease)
    assert place.engine.snapshot().locks == ()


def test_a_second_engine_sees_the_same_list(place: Place, people: People) -> None:
    """What is shown comes from the server, not from who asks."""
    ann = people("ann")
    other = place.another_engine()
    lease = ann.acquire(place.lock())
    assert other.snapshot().locks == place.engine.snapshot().locks or (
        other.show("order:1").holders[0].fence == lease.fence  # type: ignore[union-attr]
    )
    ann.release(lease)
    assert Lock(other, "order:1").engine.show("order:1") is None
