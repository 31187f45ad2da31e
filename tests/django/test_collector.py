"""Events become rows exactly once, in order, and what is missing is said.

The server is real. What is killed, and several collectors at once, is in
test_collector_processes.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management.base import BaseCommand
from django.db import DatabaseError, DataError, connection, transaction
from django.utils import timezone

from lockapp.audit.collector import Collected, collect
from lockapp.context import holder_details
from lockapp.core.options import EngineOptions
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.redis import RedisEngine
from lockapp.exceptions import EngineUnavailable, LeaseLost
from lockapp.lock import Lock
from lockapp.management.subcommands.collecting import Collect
from lockapp.models import EventCursor, LockEvent
from lockapp.naming import lock_name
from lockapp.primitives import RWLock, Semaphore
from lockapp.querysets import LockEventQuerySet
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.django_db
Kind = LockEvent.Kind


@pytest.fixture
def make_engine(prefix: str) -> Iterator[Callable[..., RedisEngine]]:
    """Build engines on a server, under this test's prefix."""
    made: list[RedisEngine] = []

    def make(server: RedisServer, **options: Any) -> RedisEngine:
        parsed = EngineOptions.parse({"prefix": prefix, **options})
        made.append(RedisEngine("default", server.url, parsed))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(redis_server: RedisServer, make_engine: Callable[..., RedisEngine]) -> RedisEngine:
    """An engine on the shared server."""
    return make_engine(redis_server)


@pytest.fixture
def own(fresh_redis: RedisServer, make_engine: Callable[..., RedisEngine]) -> RedisEngine:
    """An engine on a server of the test's own."""
    return make_engine(fresh_redis)


def use(engine: RedisEngine, name: str = "order:1", times: int = 1) -> None:
    """Acquire and release, which makes two events each time."""
    for _ in range(times):
        Lock(engine, name, wait=0).acquire().release()


def kinds(**which: Any) -> list[str]:
    return list(LockEvent.objects.filter(**which).order_by("id").values_list("kind", flat=True))


def gaps() -> list[tuple[str, int | None]]:
    """Why each gap is one, and how many events it lacks."""
    return [(gap.detail["why"], gap.missing) for gap in LockEvent.objects.gaps().order_by("id")]


def key_of(engine: RedisEngine, what: str) -> str:
    return str(getattr(engine.sync.shards[0], what))  # type: ignore[attr-defined]


# ------------------------------------------------------------------ what a row says


def test_an_acquisition_and_a_release_become_two_rows(engine: RedisEngine) -> None:
    """With the lock, its fence, the time and who it was, on both."""
    before = timezone.now() - timedelta(seconds=1)
    details = {"task": "shop.report", "task_id": "t-1", "user": "ann", "path": "/orders/"}
    with holder_details(**details):
        lease = Lock(engine, lock_name("order", "年"), wait=0, why="nightly").acquire()
        lease.release()
    assert collect(engine).stored == 2
    acquired, released = LockEvent.objects.order_by("id")
    assert (acquired.kind, released.kind) == (Kind.ACQUIRED, Kind.RELEASED)
    for row in (acquired, released):
        assert row.readable_name == "order:年"
        assert row.family == "order"
        assert row.fence == lease.fence
        assert before <= row.at <= timezone.now() + timedelta(seconds=1)
        assert {key: getattr(row, key) for key in details} == details
        assert row.host
        assert row.pid
    assert acquired.detail["ttl_ms"] == engine.options.ttl_ms
    assert acquired.detail["description"]["why"] == "nightly"
    assert released.detail["held_ms"] >= 0


def test_a_second_run_stores_nothing_again(engine: RedisEngine) -> None:
    """Nor does it write to the database at all."""
    use(engine, times=3)
    assert collect(engine).stored == 6
    version = EventCursor.objects.get().version
    assert collect(engine) == Collected()
    assert EventCursor.objects.get().version == version
    use(engine)
    assert collect(engine).stored == 2
    assert gaps() == []


def test_a_release_collected_later_still_says_whose_lease_it_was(engine: RedisEngine) -> None:
    """The engine describes a holder once, when it grants."""
    with holder_details(user="ann"):
        lease = Lock(engine, "order:1", wait=0).acquire()
    collect(engine)
    lease.release()
    collect(engine)
    assert LockEvent.objects.get(kind=Kind.RELEASED).user == "ann"


def test_a_forced_release_says_who_and_why_and_whose(engine: RedisEngine) -> None:
    """Actor and reason have columns of their own."""
    with holder_details(user="ann"):
        lease = Lock(engine, "order:1", wait=0).acquire()
    engine.force_release("order:1", lease.fence, actor="bob", reason="stuck since noon")
    collect(engine)
    row = LockEvent.objects.get(kind=Kind.FORCED)
    assert (row.actor, row.reason, row.user) == ("bob", "stuck since noon", "ann")


def test_a_writer_that_becomes_a_reader_is_an_event_of_its_lease(engine: RedisEngine) -> None:
    """The one between its grant and its end; whose lease it was is known of it too."""
    with holder_details(user="ann"), RWLock(engine, "kb:7", wait=0).write() as lease:
        lease.downgrade()
    assert collect(engine).stored == 3
    rows = LockEvent.objects.order_by("id")
    assert [row.kind for row in rows] == [Kind.ACQUIRED, Kind.DOWNGRADED, Kind.RELEASED]
    assert {(row.fence, row.user) for row in rows} == {(lease.fence, "ann")}
    assert rows[1].get_kind_display() == "downgraded"
    assert "held_ms" in rows[1].detail


def test_a_request_to_let_go_is_recorded_with_who_and_why(engine: RedisEngine) -> None:
    """It ends nothing, so it is not counted among what was lost."""
    with Lock(engine, "order:1", wait=0) as lease:
        engine.revoke("order:1", lease.fence, actor="op", reason="deploy")
    collect(engine)
    assert kinds() == [Kind.ACQUIRED, Kind.REVOKED, Kind.RELEASED]
    row = LockEvent.objects.get(kind=Kind.REVOKED)
    assert (row.actor, row.reason, row.fence) == ("op", "deploy", lease.fence)
    assert not LockEvent.objects.lost().exists()


def test_each_permit_of_a_semaphore_has_its_own_history(engine: RedisEngine) -> None:
    """Told apart by the fence, also when one of them is taken away."""
    gpu = Semaphore(engine, "gpu", 2, wait=0)
    with holder_details(user="ann"):
        first = gpu.acquire()
    with holder_details(user="bob"):
        second = gpu.acquire()
    engine.force_release("gpu", second.fence, actor="op", reason="stuck")
    first.release()
    collect(engine)
    ended = LockEvent.objects.exclude(kind=Kind.ACQUIRED).order_by("id")
    assert [(row.kind, row.fence, row.user) for row in ended] == [
        (Kind.FORCED, second.fence, "bob"),
        (Kind.RELEASED, first.fence, "ann"),
    ]


@pytest.mark.keeps_threads  # the lease is left to expire on purpose; its watchdog lingers
def test_expired_leases_are_reclaimed_by_the_collector(engine: RedisEngine) -> None:
    """Their rows are there in the same run."""
    lease = Lock(engine, "order:1", ttl=0.5, wait=0, renew=False).acquire()
    done = Collected()

    def reclaimed() -> bool:
        nonlocal done
        done += collect(engine)
        return bool(LockEvent.objects.lost())

    wait_until(reclaimed, every_s=0.05, what="the expiry is collected")
    assert kinds() == [Kind.ACQUIRED, Kind.EXPIRED]
    assert LockEvent.objects.lost().get().fence == lease.fence
    assert engine.show("order:1") is None


def test_names_that_differ_in_case_or_spaces_stay_apart(engine: RedisEngine) -> None:
    """Whatever the database thinks of equal text."""
    for name in ("Order:7", "order:7", "x", "x%20"):
        use(engine, name)
    collect(engine)
    for name in ("Order:7", "order:7", "x", "x%20"):
        found = LockEvent.objects.for_lock(name)
        assert [row.name for row in found] == [name, name]


def test_text_that_a_database_refuses_does_not_stop_the_collection(engine: RedisEngine) -> None:
    """NUL, overlong text: a path comes from whoever asks."""
    with holder_details(path="/a\x00b/" + "x" * 5000, user="\x00", task_id="t" * 999):
        use(engine)
    use(engine, "n" * 3000)
    assert collect(engine).stored == 4
    row = LockEvent.objects.filter(kind=Kind.ACQUIRED).earliest("id")
    assert row.path.startswith("/a\ufffdb/")
    assert len(row.path) == 500
    assert LockEvent.objects.for_lock("n" * 3000).count() == 2


def test_a_database_without_these_characters_gets_them_spelled_out(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old character set must not keep everything that follows from being stored."""
    insert = LockEventQuerySet.bulk_create

    def latin(self: Any, rows: list[LockEvent], *args: Any) -> Any:
        if any(not row.user.isascii() for row in rows):
            raise DataError("Incorrect string value")
        return insert(self, rows, *args)

    monkeypatch.setattr(LockEventQuerySet, "bulk_create", latin)
    with holder_details(user="梅"):
        use(engine)
    assert collect(engine).stored == 2
    assert LockEvent.objects.filter(user=r"\u6885").count() == 2
    assert gaps() == []


def test_a_site_without_time_zones_stores_its_local_time(
    engine: RedisEngine, settings: Any
) -> None:
    """With USE_TZ off a database refuses a time that knows its zone."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Shanghai"
    use(engine)
    assert collect(engine).stored == 2
    at = LockEvent.objects.latest("id").at
    assert at.tzinfo is None
    local = datetime.now(UTC).astimezone(ZoneInfo("Asia/Shanghai")).replace(tzinfo=None)
    assert abs(local - at) < timedelta(seconds=scaled(5))


def test_a_memory_engine_is_collected_within_its_process(prefix: str) -> None:
    """The same rows come of it."""
    engine = MemoryEngine("default", prefix, EngineOptions())
    lease = Lock(engine, "order:1", wait=0).acquire()
    engine.force_release("order:1", lease.fence, actor="bob", reason="stuck")
    Lock(engine, "order:2", wait=0).acquire().release()
    assert collect(engine).stored == 4
    assert kinds() == [Kind.ACQUIRED, Kind.FORCED, Kind.ACQUIRED, Kind.RELEASED]
    forced = LockEvent.objects.get(kind=Kind.FORCED)
    assert (forced.actor, forced.reason, bool(forced.host)) == ("bob", "stuck", True)
    assert collect(engine) == Collected()
    with contextlib.suppress(LeaseLost):
        lease.release()
    engine.close()


def test_lag_tells_how_long_an_event_waited(engine: RedisEngine) -> None:
    """For a graph of whether beat keeps up."""
    use(engine)
    started = timezone.now()
    wait_until(lambda: timezone.now() - started > timedelta(milliseconds=60))
    assert 50 <= collect(engine).lag_ms < scaled(30_000)


def test_a_lag_is_told_when_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """By the command; a collector that keeps up has nothing to say."""
    told = Collect(BaseCommand())
    told._tell({"default": Collected(stored=3, lag_ms=900)})
    told._tell({"default": Collected(stored=3, lag_ms=125_000)})
    assert capsys.readouterr().out.splitlines() == [
        "default: 3 events stored",
        "default: 3 events stored, the oldest 2 min 5 s after it happened",
    ]


# ------------------------------------------------------------------ the stream


def test_batches_leave_nothing_out(engine: RedisEngine) -> None:
    """Whatever the size, also when the stream ends with a full one."""
    use(engine, times=10)
    assert collect(engine, batch=4).stored == 20
    use(engine, times=4)
    assert collect(engine, batch=4).stored == 8
    numbers = LockEvent.objects.order_by("id").values_list("number", flat=True)
    assert list(numbers) == list(range(1, 29))


def test_the_stream_is_trimmed_after_the_commit(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """By whole nodes of the stream, so a few stored events may stay in it."""
    use(engine, times=300)
    collect(engine)
    assert redis_server.client.xlen(key_of(engine, "events")) <= 101


def test_nothing_is_trimmed_when_the_database_fails(
    engine: RedisEngine, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock doesn't notice, the events wait, and all are stored once it works again."""
    use(engine, times=150)

    def fail(*_: object, **__: object) -> None:
        raise DatabaseError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("lockapp.querysets.LockEventQuerySet.bulk_create", fail)
        with pytest.raises(DatabaseError, match="disk full"):
            collect(engine)
    assert redis_server.client.xlen(key_of(engine, "events")) == 300
    use(engine)
    assert collect(engine).stored == 302
    assert gaps() == []


def test_events_that_left_the_stream_unread_become_a_gap(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """With their number, dated by what follows."""
    use(engine)
    collect(engine)
    use(engine, times=5)
    redis_server.client.xtrim(key_of(engine, "events"), maxlen=4, approximate=False)
    done = collect(engine)
    assert (done.stored, done.gaps) == (4, 1)
    gap = LockEvent.objects.gaps().get()
    assert gap.missing == 6
    assert (gap.detail["after_number"], gap.detail["before_number"]) == (2, 9)
    assert kinds()[2] == Kind.GAP
    assert gap.at == LockEvent.objects.get(number=9).at


def test_an_emptied_stream_shows_as_a_gap_with_the_next_event(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """The counter knows how many there were."""
    use(engine)
    collect(engine)
    use(engine, times=2)
    redis_server.client.delete(key_of(engine, "events"))
    assert collect(engine) == Collected()
    use(engine)
    assert (collect(engine).stored, gaps()) == (2, [("jump", 4)])


def test_an_event_that_could_not_be_appended_becomes_a_gap(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """The lock went on without its audit log, and the log says so."""
    use(engine)
    collect(engine)
    client, stream = redis_server.client, key_of(engine, "events")
    client.rename(stream, f"{stream}.away")
    client.set(stream, "not a stream")
    use(engine)
    client.delete(stream)
    client.rename(f"{stream}.away", stream)
    use(engine)
    assert collect(engine).stored == 2
    assert gaps() == [("jump", 2)]
    client.delete(stream)


def test_a_log_that_starts_late_says_what_it_lacks(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """Events that were dropped before the first collection are a gap too."""
    use(engine, times=3)
    redis_server.client.xtrim(key_of(engine, "events"), maxlen=1, approximate=False)
    collect(engine)
    assert gaps() == [("jump", 5)]


# ------------------------------------------------------------------ histories that go back


def test_a_server_that_lost_its_data_starts_a_new_history(
    own: RedisEngine, fresh_redis: RedisServer
) -> None:
    """All of the new events are stored, and one gap without a number says what happened."""
    use(own, times=5)
    collect(own)
    fresh_redis.restart(empty=True)
    own.close()
    collect(own)
    assert gaps() == [("server", None)]
    use(own, times=2)
    assert collect(own).stored == 4
    use(own, times=20)
    assert collect(own).stored == 40
    assert gaps() == [("server", None)]
    assert len(kinds(kind=Kind.ACQUIRED)) == 27


def test_a_restart_with_its_data_goes_on_where_it_was(
    own: RedisEngine, fresh_redis: RedisServer
) -> None:
    """Nothing is stored twice; that the end may be missing is said, since nobody can know."""
    use(own, times=5)
    collect(own)
    use(own)
    fresh_redis.restart(empty=False)
    use(own)
    done = collect(own)
    assert (done.stored, done.known) == (4, 0)
    assert gaps() == [("server", None)]
    numbers = LockEvent.objects.exclude(kind=Kind.GAP).order_by("id")
    assert [row.number for row in numbers] == list(range(1, 15))


def test_a_promoted_replica_that_lagged_is_read_again_without_doubles(
    fresh_redis: RedisServer, make_engine: Callable[..., RedisEngine]
) -> None:
    """Events that only the former master had stay stored; the new ones reuse their numbers."""
    engine = make_engine(fresh_redis)
    client = fresh_redis.client
    use(engine, times=5)
    fresh_redis.client.save()  # this is how far the replica got
    use(engine, "order:2", times=3)
    collect(engine)
    fresh_redis.kill()
    fresh_redis.start()
    use(engine, "order:3", times=2)
    done = collect(engine)
    assert done.stored == 4
    assert gaps() == [("server", None)]
    for name, count in (("order:1", 10), ("order:2", 6), ("order:3", 4)):
        assert LockEvent.objects.for_lock(name).count() == count
    assert client is not fresh_redis.client


def test_a_flushed_server_starts_a_new_history(own: RedisEngine, fresh_redis: RedisServer) -> None:
    """Also when the new one has outgrown the old by the time anybody looks."""
    use(own)
    collect(own)
    fresh_redis.client.flushall()
    use(own, times=10)
    assert collect(own).stored == 20
    assert gaps() == [("back", None)]


def test_a_cursor_ahead_of_the_stream_does_not_stall(
    own: RedisEngine, fresh_redis: RedisServer
) -> None:
    """A server clock that was in the future, a restored database."""
    use(own)
    collect(own)
    EventCursor.objects.update(stream_id=f"{2**50}-0", number=10**9)
    use(own, times=2)
    for _ in range(3):
        collect(own, batch=2)
    use(own)
    collect(own, batch=2)
    assert len(kinds(kind=Kind.RELEASED)) == 4
    assert gaps() == [("back", None)]


def test_a_lost_cursor_stores_nothing_twice(engine: RedisEngine) -> None:
    """What the table has is recognised by what it says."""
    use(engine, times=3)
    collect(engine)
    EventCursor.objects.all().delete()
    use(engine)
    done = collect(engine)
    assert (done.stored, done.known, gaps()) == (2, 6, [])


def test_a_lost_counter_neither_stalls_nor_fills_the_log(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """Deleted by hand, or evicted: the events go on from 1."""
    use(engine, times=10)
    collect(engine)
    redis_server.client.delete(key_of(engine, "number"))
    for _ in range(3):
        assert collect(engine, batch=5).gaps == 0
    use(engine, times=2)
    assert collect(engine, batch=5).stored == 4
    assert gaps() == [("back", None)]


# ------------------------------------------------------------------ whose transaction


@pytest.mark.django_db(transaction=True)
def test_a_callers_transaction_is_refused(engine: RedisEngine) -> None:
    """Rolled back, the rows would be gone and the stream trimmed."""
    use(engine)
    with pytest.raises(RuntimeError), transaction.atomic():
        collect(engine)
    assert collect(engine).stored == 2


def test_an_unreachable_engine_is_told(own: RedisEngine, fresh_redis: RedisServer) -> None:
    """Not taken for "no events"; what was stored stays."""
    use(own)
    collect(own)
    fresh_redis.kill()
    with pytest.raises(EngineUnavailable):
        collect(own)
    assert len(kinds()) == 2


def test_what_fails_after_the_commit_is_only_logged(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are stored; the next run trims."""
    use(engine)

    def fail(*_: object) -> None:
        raise EngineUnavailable("cut off", alias="default", reason="reset")

    monkeypatch.setattr(engine, "trim_events", fail)
    assert collect(engine).stored == 2
    assert "could not trim" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_lock_is_not_delayed_by_a_locked_database(engine: RedisEngine) -> None:
    """Acquire and release don't know that there is a table."""
    with transaction.atomic():
        LockEvent.objects.create(identity="x", alias="default", kind="gap", at=timezone.now())
        started = timezone.now()
        use(engine, times=10)
        assert timezone.now() - started < timedelta(seconds=scaled(2))
        assert connection.in_atomic_block
    assert collect(engine).stored == 20
