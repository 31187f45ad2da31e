"""`on_unavailable`: what a lock is content with when nobody can be asked, and what is told."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from lockapp.core.values import EventRecord
from lockapp.engines import backlog
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import (
    AlreadyHeld,
    EngineMisconfigured,
    EngineUnavailable,
    LeaseLost,
    NotAcquired,
    NotHeld,
    ScriptError,
    WaitTimeout,
)
from lockapp.lock import Lock
from lockapp.owner import current_owner
from lockapp.primitives import MultiLock, RWLock, Semaphore
from tests.contract.conftest import Far
from tests.contract.fronts import People, done
from tests.contract.places import RedisPlace
from tests.contract.processes import in_forked_child
from tests.proxy import Fault, TcpProxy
from tests.servers import RedisServer
from tests.timing import await_until, pause, scaled, wait_until

MODES = ("local", "open")


@pytest.fixture
def cut_off(far: Far, proxy: TcpProxy) -> RedisEngine:
    """An engine that has used its server and can't reach it any more."""
    engine = far(connect_timeout=10, command_timeout=10)  # refused at once: nothing is waited for
    with Lock(engine, "order:before"):
        pass
    proxy.refuse()
    return engine


def told(engine: RedisEngine, place: RedisPlace, many: int) -> list[EventRecord]:
    """The events of degraded runs, once there are so many."""

    def found() -> list[EventRecord]:
        return [event for event in place.events() if event.kind == "degraded"]

    wait_until(lambda: len(found()) >= many, what="the runs to be recorded")
    wait_until(lambda: not engine.sync.watchdog.has_work(), what="the watchdog to be done")
    return found()


# ------------------------------------------------------------------ local


def test_locally_the_threads_and_tasks_of_one_process_exclude_each_other(
    cut_off: RedisEngine, people: People
) -> None:
    """First come, first served; and the lease says what it is."""
    ann, bob, eve = people("ann", "bob", "eve")
    lock = Lock(cut_off, "order:1", wait=20, on_unavailable="local")
    lease = ann.acquire(lock)
    assert lease.degraded == "local"
    assert lease.live
    assert not lease.lost
    lease.check()
    assert bob.try_acquire(lock) is None
    first = bob.start_acquire(lock)
    server = cut_off.local.server  # type: ignore[attr-defined]
    wait_until(lambda: len(server.records["order:1"].queue) == 1)
    second = eve.start_acquire(lock)
    wait_until(lambda: len(server.records["order:1"].queue) == 2)
    ann.renew(lease)
    ann.release(lease)
    ann.release(lease)
    lease = done(first)
    assert not second.done()
    bob.release(lease)
    eve.release(done(second))
    assert not server.records


def test_both_fronts_share_the_locks_of_a_process(cut_off: RedisEngine) -> None:
    """A thread excludes a task."""
    sync, loops = People("sync"), People("async")
    try:
        ann, bob = sync("ann"), loops("bob")
        lock = Lock(cut_off, "order:1", on_unavailable="local")
        lease = ann.acquire(lock)
        assert bob.try_acquire(lock) is None
        waiting = bob.start_acquire(lock, 20)
        ann.release(lease)
        bob.release(done(waiting))
    finally:
        sync.close()
        loops.close()


def test_locally_other_processes_are_not_excluded(far: Far, proxy: TcpProxy) -> None:
    """Each has locks of its own, and so has each alias."""
    proxy.refuse()
    one, other = far(), far()
    with (
        Lock(one, "order:1", on_unavailable="local") as here,
        Lock(other, "order:1", on_unavailable="local") as there,
    ):
        assert here.degraded == there.degraded == "local"


def test_waiting_locally_is_bounded_by_what_is_left_of_the_wait(
    far: Far, proxy: TcpProxy, people: People
) -> None:
    """Contended is contended: by somebody of this process, who is named."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, (ann, bob) = far(), people("ann", "bob")
    lease = ann.acquire(Lock(engine, "order:1", why="first", on_unavailable="local"))
    lock = Lock(engine, "order:1", on_unavailable="local")
    with pytest.raises(WaitTimeout) as error:
        bob.acquire(lock, wait=scaled(1.5))
    assert error.value.holder.description["why"] == "first"
    # A second of it went by without an answer; all of it anew would come to 2.5.
    assert scaled(1.5) <= error.value.waited < scaled(2.4)
    with pytest.raises(NotAcquired) as refusal:
        bob.acquire(lock, wait=0)
    assert not isinstance(refusal.value, WaitTimeout)
    ann.release(lease)


def test_a_local_lease_is_renewed_and_lost_as_any_other(
    cut_off: RedisEngine, people: People
) -> None:
    """It outlives its ttl, ends at max_hold, and whoever waits gets it then."""
    ann, bob = people("ann", "bob")
    heard: list[str] = []
    lease = ann.acquire(
        Lock(
            cut_off,
            "order:1",
            ttl=scaled(1),
            max_hold=scaled(1.2),
            on_unavailable="local",
            on_lost=lambda lease: heard.append(lease.lost_reason),
        )
    )
    until = lease.valid_until
    wait_until(lambda: lease.valid_until > until, what="it to be renewed")
    bob.release(bob.acquire(Lock(cut_off, "order:1", wait=10, on_unavailable="local")))
    wait_until(lambda: heard)
    assert heard == ["max_hold"]
    with pytest.raises(LeaseLost):
        ann.release(lease)


def test_a_local_lease_stays_local_when_the_server_is_back(
    cut_off: RedisEngine, proxy: TcpProxy, redis_place: RedisPlace, people: People
) -> None:
    """Another process may have the lock of the server meanwhile: see the page on degradation."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(Lock(cut_off, "order:1", on_unavailable="local"))
    proxy.heal()
    told(cut_off, redis_place, 1)
    assert redis_place.engine.show("order:1") is None
    other = bob.acquire(redis_place.lock(wait=0))
    assert lease.live
    assert not other.degraded
    ann.release(lease)
    assert redis_place.engine.show("order:1").holders[0].fence == other.fence
    bob.release(other)


# ------------------------------------------------------------------ open


def test_openly_all_run_and_each_lease_says_so(cut_off: RedisEngine, people: People) -> None:
    """Nothing is claimed and nothing complains."""
    ann, bob = people("ann", "bob")
    lock = Lock(cut_off, "order:1", ttl=scaled(0.1), max_hold=scaled(0.2), on_unavailable="open")
    one, other = ann.acquire(lock), bob.acquire(lock)
    assert one.degraded == other.degraded == "open"
    pause(0.3)
    for asker, lease in ((ann, one), (bob, other)):
        lease.check()
        assert not lease.lost
        assert lease.lost_reason == ""
        asker.renew(lease)
        asker.release(lease)
        asker.release(lease)
        assert not lease.lost
        with pytest.raises(NotHeld):
            lease.check()
    assert ann.within(lock, lambda lease: lease.degraded) == "open"


def test_an_open_lease_that_is_dropped_is_forgotten(cut_off: RedisEngine) -> None:
    """Quietly: there is nothing to give back."""
    lock = Lock(cut_off, "order:1", on_unavailable="open")
    lock.acquire()
    lock.acquire().release()


# ------------------------------------------------------------------ both


@pytest.mark.parametrize("mode", MODES)
def test_a_degraded_lease_has_no_fencing_token(
    cut_off: RedisEngine, people: People, mode: Any
) -> None:
    """Zero: whatever compares tokens refuses it, also among processes that can't see each other."""
    ann = people("ann")
    before = ann.within(Lock(cut_off, "order:1", on_unavailable=mode), lambda lease: lease.fence)
    assert before == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_owner_is_the_same_whether_the_server_is_there_or_not(
    cut_off: RedisEngine, mode: Any
) -> None:
    """It can't wait for itself, may enter a reentrant lock again, and counts as under the lock."""
    lock = Lock(cut_off, "order:1", on_unavailable=mode, reentrant=True)
    with lock as outer:
        assert cut_off.holds("order:1", current_owner())
        with pytest.raises(AlreadyHeld):
            Lock(cut_off, "order:1", on_unavailable=mode).acquire(wait=5)
        with lock as inner:
            assert inner is outer
            assert inner.holds == 2
        assert cut_off.holds("order:1", current_owner())
    assert not cut_off.holds("order:1", current_owner())


@pytest.mark.parametrize("mode", MODES)
def test_only_who_could_not_ask_is_degraded(
    redis_place: RedisPlace, people: People, mode: Any
) -> None:
    """Contended, misconfigured and a failing script are answers."""
    ann, bob = people("ann", "bob")
    lock = redis_place.lock(on_unavailable=mode)
    lease = ann.acquire(lock)
    assert lease.degraded == ""
    for wait, error in ((0, NotAcquired), (0.05, WaitTimeout)):
        with pytest.raises(error):
            bob.acquire(lock, wait=wait)
    ann.release(lease)
    redis_place.client.set(redis_place.key("lock:order:1"), "not a hash")
    with pytest.raises(ScriptError):
        bob.acquire(lock)
    redis_place.client.delete(redis_place.key("lock:order:1"))
    before = redis_place.client.hget(redis_place.key("meta"), "format")
    redis_place.client.hset(redis_place.key("meta"), "format", "0")
    with pytest.raises(EngineMisconfigured):
        bob.acquire(Lock(redis_place.another_engine(), "order:1", on_unavailable=mode))
    redis_place.client.hset(redis_place.key("meta"), "format", before)
    assert "degraded" not in redis_place.kinds()


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_refuses_has_been_asked(fresh_redis: RedisServer, mode: Any) -> None:
    """Out of memory: somebody has to do something, and until then it fails."""
    place = RedisPlace(fresh_redis, "full")
    with place.lock("order:before"):
        pass
    fresh_redis.config(maxmemory=1)
    with pytest.raises(EngineUnavailable) as error:
        place.lock(on_unavailable=mode).acquire()
    assert error.value.reason == "refused"
    fresh_redis.config(maxmemory=0)
    place.close()


@pytest.mark.parametrize("mode", MODES)
def test_what_the_request_did_all_the_same_is_undone(
    far: Far, proxy: TcpProxy, redis_place: RedisPlace, people: People, mode: Any
) -> None:
    """The server granted it and its answer was lost: nobody waits for that lease to end."""
    engine, (ann, bob) = far(), people("ann", "bob")
    first = Lock(engine, "order:0", on_unavailable=mode)
    wait_until(lambda: ann.within(first, lambda lease: lease.degraded) == "", what="an answer")
    wait_until(lambda: all(_calm(port) for port in [engine._sync, *engine._loops.values()] if port))
    proxy.inject(Fault.DROP_REPLIES)
    lease = ann.acquire(Lock(engine, "order:1", ttl=60, on_unavailable=mode))
    assert lease.degraded == mode
    wait_until(lambda: redis_place.engine.show("order:1"), what="the request to arrive")
    proxy.heal()
    bob.release(bob.acquire(redis_place.lock(wait=scaled(10))))
    assert lease.live
    ann.release(lease)
    kinds = [kind for kind in redis_place.kinds() if kind != "degraded"]
    assert kinds == ["acquired", "released"] * 2


def _calm(port: Any) -> bool:
    idle, used = port.transport._idle, port.transport._open
    return bool(port.watchdog._sweeps.look_at and idle and len(idle) == len(used))


@pytest.mark.parametrize("mode", MODES)
def test_the_default_is_the_engines(far: Far, proxy: TcpProxy, mode: Any) -> None:
    """And a lock may say otherwise."""
    proxy.refuse()
    engine = far(on_unavailable=mode)
    with Lock(engine, "order:1") as lease:
        assert lease.degraded == mode
    with pytest.raises(EngineUnavailable):
        Lock(engine, "order:1", on_unavailable="raise").acquire()


def test_what_is_no_answer_to_it_is_refused_where_it_is_written(redis_place: RedisPlace) -> None:
    """With the words that are."""
    for wrong in ("ignore", None, True, "Open"):
        with pytest.raises(ValueError, match="'raise', 'local', 'open'"):
            redis_place.lock(on_unavailable=wrong)


# ------------------------------------------------------------------ other shapes


def test_a_semaphore_lets_in_as_many_per_process(cut_off: RedisEngine, people: People) -> None:
    """Each permit is a lease of its own."""
    ann, bob, eve = people("ann", "bob", "eve")
    permits = Semaphore(cut_off, "gpu", 2, on_unavailable="local")
    first, second = ann.acquire(permits), ann.acquire(permits)
    assert eve.try_acquire(permits) is None
    ann.release(first)
    third = bob.acquire(permits)
    ann.release(second)
    bob.release(third)


def test_readers_and_a_writer_exclude_each_other_locally(
    cut_off: RedisEngine, people: People
) -> None:
    """And a writer may become a reader."""
    ann, bob = people("ann", "bob")
    both = RWLock(cut_off, "kb", on_unavailable="local")
    lease = ann.acquire(both.write())
    assert bob.try_acquire(both.read()) is None
    lease.downgrade()
    bob.release(bob.acquire(both.read()))
    ann.release(lease)
    unlocked = ann.acquire(RWLock(cut_off, "kb", on_unavailable="open").write())
    unlocked.downgrade()
    assert unlocked.spec.weight == 1
    ann.release(unlocked)


def test_of_several_at_once_each_is_degraded_by_itself(
    cut_off: RedisEngine, people: People
) -> None:
    """All or none still; and they must agree on what to be content with."""
    ann, bob = people("ann", "bob")
    names = ("account:1", "account:2")
    joint = MultiLock([Lock(cut_off, name, on_unavailable="local", wait=0) for name in names])
    held = ann.acquire(joint)  # type: ignore[arg-type]
    assert held.degraded == "local"
    assert [lease.degraded for lease in held.leases] == ["local", "local"]  # type: ignore[attr-defined]
    assert bob.try_acquire(joint) is None  # type: ignore[arg-type]
    ann.release(held)
    raising = MultiLock([Lock(cut_off, name, wait=0) for name in names])
    with pytest.raises(EngineUnavailable):
        bob.acquire(raising)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="agree"):
        MultiLock([Lock(cut_off, "a"), Lock(cut_off, "b", on_unavailable="open")])


# ------------------------------------------------------------------ what is told


@pytest.mark.parametrize("mode", MODES)
def test_each_run_is_an_event_once_the_server_is_back(
    cut_off: RedisEngine, proxy: TcpProxy, redis_place: RedisPlace, people: People, mode: Any
) -> None:
    """Recorded by the watchdog, which finds the server by itself: nobody asks for anything."""
    ann = people("ann")
    lock = Lock(cut_off, "order:1", why="monthly run", on_unavailable=mode)
    for _ in range(3):
        assert ann.within(lock, lambda lease: lease.degraded) == mode
    wait_until(lambda: cut_off.circuit.is_open)
    proxy.heal()
    events = told(cut_off, redis_place, 3)
    assert [event.name for event in events] == ["order:1"] * 3
    assert {event.fence for event in events} == {0}
    assert {event.detail["mode"] for event in events} == {mode}
    assert events[0].detail["reason"] in ("connect", "reset", "open")
    assert json.loads(events[0].detail["description"])["why"] == "monthly run"
    at_ms = [int(event.detail["at_ms"]) for event in events]
    assert at_ms == sorted(at_ms)
    assert 0 <= events[0].at_us // 1000 - at_ms[0] < 60_000
    wait_until(lambda: not cut_off.circuit.is_open)


def test_a_run_that_did_not_come_about_is_none(
    cut_off: RedisEngine, proxy: TcpProxy, redis_place: RedisPlace, people: People
) -> None:
    """Who was turned away locally ran nothing."""
    ann, bob = people("ann", "bob")
    lock = Lock(cut_off, "order:1", on_unavailable="local")
    lease = ann.acquire(lock)
    assert bob.try_acquire(lock) is None
    ann.release(lease)
    proxy.heal()
    assert len(told(cut_off, redis_place, 1)) == 1


def test_what_there_was_no_room_for_is_counted(
    cut_off: RedisEngine,
    proxy: TcpProxy,
    redis_place: RedisPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost without a word, and memory does not grow without bound."""
    monkeypatch.setattr(backlog, "MOST", 2)
    for number in range(7):
        with Lock(cut_off, f"order:{number}", on_unavailable="open"):
            pass
    proxy.heal()
    events = told(cut_off, redis_place, 3)
    assert [event.name for event in events] == ["order:0", "order:1", ""]
    assert events[-1].detail["mode"] == "unreported"
    assert events[-1].detail["reason"] == "5"


def test_more_runs_than_fit_into_one_call_are_all_recorded(
    cut_off: RedisEngine,
    proxy: TcpProxy,
    redis_place: RedisPlace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, each once."""
    monkeypatch.setattr(backlog, "BATCH", 3)
    names = [f"order:{number}" for number in range(10)]
    for name in names:
        with Lock(cut_off, name, on_unavailable="open"):
            pass
    proxy.heal()
    assert [event.name for event in told(cut_off, redis_place, 10)] == names


def test_a_log_that_can_not_be_written_keeps_nobody_from_running(
    cut_off: RedisEngine, proxy: TcpProxy, redis_place: RedisPlace
) -> None:
    """The events are lost then, and the hole in their numbers shows it."""
    number = redis_place.engine.stream_identity().last_number
    with Lock(cut_off, "order:1", on_unavailable="open"):
        pass
    redis_place.break_audit()
    proxy.heal()
    wait_until(lambda: not cut_off.sync.watchdog.has_work())
    redis_place.mend_audit()
    wait_until(lambda: redis_place.engine.stream_identity().last_number > number)


@pytest.mark.parametrize("mode", MODES)
def test_each_run_is_an_alert(
    cut_off: RedisEngine, people: People, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    """In the log, for those who watch it, and to the observer."""
    seen: list[tuple[str, Any]] = []
    cut_off.observer = lambda kind, subject: seen.append((kind, subject))
    ann = people("ann")
    with caplog.at_level(logging.ERROR, "lockapp"):
        lease = ann.acquire(Lock(cut_off, "order:1", on_unavailable=mode))
        ann.release(lease)
    runs = [record for record in caplog.records if hasattr(record, "lockapp_degraded")]
    assert [(run.levelname, run.lockapp_name, run.lockapp_degraded) for run in runs] == [
        ("ERROR", "order:1", mode)
    ]
    assert runs[0].lockapp_reason in ("connect", "reset")
    assert runs[0].lockapp_alias == cut_off.alias
    assert [subject for kind, subject in seen if kind == "degraded"] == [lease]
    ended = ["acquired", "degraded", "released"] if mode == "local" else ["degraded"]
    assert [kind for kind, _ in seen if kind not in ("unavailable", "restored")] == ended


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_while_it_is_told_leaves_nothing_held(
    cut_off: RedisEngine, people: People, mode: Any, interrupt: type[BaseException]
) -> None:
    """Whoever hears of the run is interrupted, and the caller never gets its lease."""

    def interrupted(kind: str, subject: Any) -> None:
        if kind == "degraded":
            raise interrupt

    lock = Lock(cut_off, "order:1", on_unavailable=mode, wait=0)
    ann, bob = people("ann", "bob")
    cut_off.observer = interrupted
    with pytest.raises(interrupt) as caught:
        ann.acquire(lock)
    cut_off.observer = None
    records = cut_off.local.server.records  # type: ignore[attr-defined]
    wait_until(lambda: not records, what="the local lock to be free")
    for each in (ann, bob):
        each.release(each.acquire(lock))
    del caught  # until here it kept the frames alive, and the lease in them


def test_a_forked_child_reports_its_own_runs_only(
    cut_off: RedisEngine, proxy: TcpProxy, redis_place: RedisPlace
) -> None:
    """And has neither its parent's local locks nor its open ones."""
    local = Lock(cut_off, "order:1", on_unavailable="local").acquire()
    unlocked = Lock(cut_off, "order:2", on_unavailable="open").acquire()

    def child() -> object:
        seen = [local.lost_reason, unlocked.lost_reason]
        with Lock(cut_off, "order:1", wait=0, on_unavailable="local") as lease:
            seen.append(lease.degraded)
        return seen

    assert in_forked_child(child) == ["forked", "forked", "local"]
    assert local.live
    assert unlocked.live
    local.release()
    unlocked.release()
    proxy.heal()
    assert len(told(cut_off, redis_place, 2)) == 2


# ------------------------------------------------------------------ real servers


@pytest.mark.parametrize("how", ["killed", "hung"])
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_dies_or_hangs_and_is_back(
    fresh_redis: RedisServer, people: People, mode: Any, how: str
) -> None:
    """Work goes on, quickly once the outage is known, and the server's locks are used again."""
    place = RedisPlace(fresh_redis, "gone")
    engine = place.another_engine(connect_timeout=0.3, command_timeout=0.3)
    ann = people("ann")
    lock = Lock(engine, "order:1", wait=5, on_unavailable=mode)
    runs: list[str] = []

    def run() -> str:
        runs.append(ann.within(lock, lambda lease: lease.degraded))
        return runs[-1]

    # On a busy machine an answer may be too late for so short a timeout.
    wait_until(lambda: run() == "", what="the server to answer in time")
    if how == "killed":
        fresh_redis.kill()
    else:
        fresh_redis.pause()
    for _ in range(5):
        assert run() == mode
    assert engine.circuit.is_open  # type: ignore[attr-defined]
    if how == "killed":
        fresh_redis.start()
    else:
        fresh_redis.resume()
    wait_until(lambda: not engine.circuit.is_open, what="the watchdog to find the server")  # type: ignore[attr-defined]
    wait_until(lambda: run() == "", what="its locks to be used again")
    recorded = runs.count(mode)
    wait_until(lambda: place.kinds().count("degraded") == recorded, what="every run to be recorded")
    place.close()


def test_a_lock_that_is_given_up_while_waiting_locally_leaves_nothing(
    cut_off: RedisEngine,
) -> None:
    """Cancelled in the local queue."""
    lock = Lock(cut_off, "order:1", wait=30, on_unavailable="local")
    held = lock.acquire()
    server = cut_off.local.server  # type: ignore[attr-defined]

    async def give_up() -> None:
        task = asyncio.create_task(lock.aacquire())
        await await_until(lambda: server.records["order:1"].queue)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    held.release()
    wait_until(lambda: not any(r.holders or r.queue for r in server.records.values()))
