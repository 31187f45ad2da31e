"""``manage.py lockapp verify``: finds exactly what was planted, and nothing in a true history.

Faults are planted in the table by hand; true histories are made by contenders on a real server.
"""

from __future__ import annotations

import io
import json
import subprocess
import tracemalloc
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper

from lockapp.audit import verify as verify_module
from lockapp.audit.collector import collect
from lockapp.audit.verify import Part, Verification
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.management.subcommands import verifying
from lockapp.models import EventCursor, LockEvent
from lockapp.naming import family_of, name_digest
from lockapp.primitives import RWLock, Semaphore
from tests.servers import RedisServer
from tests.soak.worker import command
from tests.timing import wait_until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.django_db
BEGAN = datetime(2026, 11, 30, 12, tzinfo=UTC)

Row = tuple[str, str, int, int]
"""Kind, lock, fence, second it happened."""
GOOD: list[Row] = [
    ("acquired", "order:1", 1001, 1),
    ("acquired", "order:2", 1002, 2),
    ("released", "order:1", 1001, 3),
    ("acquired", "order:1", 1003, 4),
    ("expired", "order:2", 1002, 5),
    ("forced", "order:1", 1003, 6),
    ("acquired", "user:1", 1004, 7),
    ("abandoned", "user:1", 1004, 8),
]


def rows_of(rows: Iterable[Row], **more: Any) -> list[LockEvent]:
    """Spell out rows as the collector stores them, numbered from 1."""
    granted: dict[tuple[str, int], int] = {}
    made = []
    for number, (kind, name, fence, at_s) in enumerate(rows, 1):
        if kind == "acquired":
            granted[name, fence] = at_s
            detail: dict[str, Any] = {
                "waited_ms": 0, "ttl_ms": 30_000, "weight": "1", "limit": "1",
                "max_hold_ms": 3_600_000,
            }  # fmt: skip
        else:
            detail = {"held_ms": (at_s - granted.get((name, fence), at_s)) * 1000}
        made.append(
            LockEvent(
                identity=f"{number:048x}", alias="default", stream_id=f"{number}-0", number=number,
                kind=kind, name=name, name_digest=name_digest(name), family=family_of(name),
                fence=fence, at=BEGAN + timedelta(seconds=at_s), detail=detail, **more,
            )
        )  # fmt: skip
    return made


def plant(rows: list[LockEvent]) -> None:
    """Write rows in this order, each with an identity of its own."""
    for nth, row in enumerate(rows):
        row.identity = f"{nth:048x}"
    LockEvent.objects.bulk_create(rows)


def verify(*arguments: str) -> dict[str, Any]:
    """Return what ``verify --json`` says; its exit code must agree."""
    out = io.StringIO()
    code = 0
    try:
        call_command("lockapp", "verify", "--json", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        code = error.returncode
        if code != 5:
            raise
    said: dict[str, Any] = json.loads(out.getvalue())
    assert code == (5 if said["fault_count"] else 0)
    return said


def stored(*arguments: str) -> list[tuple[str, str]]:
    """Return kind and lock of each fault in the rows."""
    said = verify("--stored", *arguments)
    return [(fault["kind"], fault["name"]) for fault in said["faults"]]


# ------------------------------------------------------------------ planted faults


def test_a_good_history_has_no_fault() -> None:
    plant(rows_of(GOOD))
    said = verify("--stored")
    assert said["faults"] == []
    assert said["events"] == {
        "acquired": 4, "released": 1, "expired": 1, "forced": 1, "abandoned": 1
    }  # fmt: skip


def test_two_exclusive_leases_at_once_are_found() -> None:
    """The second was granted before the first had ended."""
    rows = [
        *GOOD[:2],
        ("acquired", "order:1", 1003, 3),
        ("released", "order:1", 1001, 4),
        *GOOD[4:],
    ]
    plant(rows_of(rows))
    assert stored() == [("overlap", "order:1")]


@pytest.mark.parametrize(("limit", "faults"), [(2, []), (1, [("overlap", "order:1")])])
def test_permits_are_judged_by_their_limit(limit: int, faults: list[Any]) -> None:
    """The smallest of those who hold applies."""
    rows = rows_of([*GOOD[:2], ("acquired", "order:1", 1003, 3), ("released", "order:1", 1001, 4),
                    *GOOD[4:]])  # fmt: skip
    rows[0].detail["limit"] = str(limit)
    rows[2].detail["limit"] = "2"
    plant(rows)
    assert stored() == faults


def test_a_writer_beside_a_reader_is_found() -> None:
    """By weight."""
    rows = rows_of([*GOOD[:2], ("acquired", "order:1", 1003, 3), ("released", "order:1", 1001, 4),
                    *GOOD[4:]])  # fmt: skip
    rows[0].detail.update(limit="1000000")
    rows[2].detail.update(limit="1000000", weight="1000000")
    plant(rows)
    assert stored() == [("overlap", "order:1")]


@pytest.mark.parametrize("fence", [1001, 900])
def test_a_token_that_does_not_grow_is_found(fence: int) -> None:
    """Smaller than an earlier one of its lock, or the same again."""
    rows = [
        *GOOD[:3],
        ("acquired", "order:1", fence, 4),
        GOOD[4],
        ("released", "order:1", fence, 6),
    ]
    plant(rows_of(rows))
    assert stored() == [("token", "order:1")]


def test_a_token_below_that_of_another_lock_is_none() -> None:
    """They need not grow across locks."""
    plant(rows_of([*GOOD, ("acquired", "new:1", 7, 9), ("released", "new:1", 7, 10)]))
    assert stored() == []


def test_a_grant_that_outlived_its_longest_life_is_found() -> None:
    """Once the history has gone on for longer than that. Before that nobody can know."""
    rows = rows_of(
        [*GOOD[:-1], ("acquired", "user:2", 1005, 3000), ("released", "user:2", 1005, 3001)]
    )
    plant(rows)
    assert stored() == []
    later = rows_of([*GOOD[:-1], ("acquired", "x", 1, 0), ("released", "x", 1, 3700)])[-1]
    later.identity, later.number = "f" * 48, len(rows) + 1
    later.detail["held_ms"] = 3_700_000
    later.name, later.kind = "", "degraded"
    later.save()
    assert stored() == [("open", "user:1")]


def test_an_end_without_a_grant_is_found() -> None:
    """And a second end of one lease."""
    plant(rows_of([*GOOD, ("released", "order:9", 1009, 9), ("expired", "user:1", 1004, 9)]))
    assert stored() == [("end", "order:9"), ("end", "user:1")]


@pytest.mark.parametrize("lost", range(1, len(GOOD) - 1))
def test_a_row_that_was_taken_out_is_found(lost: int) -> None:
    """Whichever it was: as a gap, and as nothing else."""
    rows = rows_of(GOOD)
    after = rows[lost + 1].name
    del rows[lost]
    plant(rows)
    assert stored() == [("gap", after)]


def test_a_row_that_is_there_twice_is_found() -> None:
    rows = rows_of(GOOD)
    plant([*rows[:3], rows_of(GOOD)[2], *rows[3:]])
    assert stored() == [("gap", "order:1")]


def test_a_gap_that_the_collector_found_is_told() -> None:
    """With the number of what is missing."""
    rows = rows_of(GOOD)
    gap = LockEvent(
        alias="default",
        kind="gap",
        stream_id="4-0",
        at=rows[3].at,
        detail={"missing": 7, "why": "jump"},
    )
    for row in rows[3:]:
        row.number += 7
    plant([*rows[:3], gap, *rows[3:]])
    (fault,) = verify("--stored")["faults"]
    assert fault["kind"] == "gap"
    assert "7 events are missing" in fault["about"]


def test_shards_and_engines_are_judged_apart() -> None:
    """The same numbers and locks, elsewhere."""
    here, there = rows_of(GOOD), rows_of(GOOD)
    third = rows_of(GOOD)
    for row in there:
        row.alias = "other"
    for row in third:
        row.shard = 1
    plant([each for three in zip(here, there, third, strict=True) for each in three])
    assert stored() == []
    LockEvent._base_manager.filter(alias="other", number=3)._raw_delete("default")
    assert stored() == [("gap", "order:1")]
    assert stored("--using", "default") == []


def test_processes_that_keep_their_events_themselves_are_judged_apart(settings: Any) -> None:
    """Each has numbers and locks of its own; so have two runs of one process."""
    here, there = rows_of(GOOD, server="web1:71"), rows_of(GOOD, server="web1:72")
    plant([each for two in zip(here, there, strict=True) for each in two])
    settings.LOCKAPP = {"default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"}}
    assert stored() == []
    LockEvent._base_manager.filter(server="web1:71", number=3)._raw_delete("default")
    assert stored() == [("gap", "order:1")]
    settings.LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert len(stored()) > 1


# ------------------------------------------------------------------ parts of it


def test_a_part_is_judged_by_itself() -> None:
    """What was granted before it, or ends after it, is no fault."""
    plant(rows_of(GOOD))
    for since in range(9):
        for until in range(since, 10):
            at = [(BEGAN + timedelta(seconds=when)).isoformat() for when in (since, until)]
            assert stored("--since", at[0], "--until", at[1]) == []


def test_a_fault_outside_of_the_part_is_not_told() -> None:
    plant(rows_of([*GOOD[:2], ("acquired", "order:1", 1003, 3), ("released", "order:1", 1001, 4),
                   *GOOD[4:]]))  # fmt: skip
    at = (BEGAN + timedelta(seconds=4)).isoformat()
    assert stored("--since", at) == []
    assert stored("--until", at) == [("overlap", "order:1")]
    assert stored("--family", "user") == []
    assert stored("--family", "order") == [("overlap", "order:1")]


def test_since_takes_how_long_ago_and_dates() -> None:
    plant(rows_of(GOOD))
    assert verify("--stored", "--since", "1s")["events"] == {}
    assert sum(verify("--stored", "--since", "2026-11-30")["events"].values()) == len(GOOD)
    for wrong in ("yesterday", "2026-13-01", "5", "999999999d"):
        with pytest.raises(CommandError, match="neither ISO 8601"):
            verify("--stored", "--since", wrong)


# ------------------------------------------------------------------ what it prints


def test_in_words_each_fault_is_a_line() -> None:
    """And the error that ends it counts them."""
    plant(
        rows_of(
            [*GOOD[:3], ("acquired", "order:1", 900, 4), GOOD[4], ("released", "order:1", 900, 6)]
        )
    )
    out = io.StringIO()
    with pytest.raises(CommandError, match="6 events replayed, faults: 1 token") as error:
        call_command("lockapp", "verify", "--stored", stdout=out, stderr=out, no_color=True)
    assert error.value.returncode == 5
    assert (
        out.getvalue()
        == "token  order:1  900 after 1001  (default, 2026-11-30 12:00:04.000000 UTC)\n"
    )


def test_in_words_a_good_history_is_one_line() -> None:
    plant(rows_of(GOOD))
    out = io.StringIO()
    call_command("lockapp", "verify", "--stored", stdout=out, stderr=out, no_color=True)
    assert out.getvalue() == "8 events replayed, no fault\n"


def test_progress_is_told_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "PAGE", 3)
    plant(rows_of(GOOD))
    told: list[tuple[int, float]] = []
    assert list(Verification(progress=lambda *it: told.append(it)).run()) == []
    assert told == [(3, 3 / 8), (6, 6 / 8), (8, 1.0)]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "shown"), [
    (Screen(), "\r5 events, 50% of the table\r9 events, 90% of the table\r\x1b[K"),
    (io.StringIO(), "5 events, 50% of the table\n9 events, 90% of the table\n"),
])  # fmt: skip
def test_progress_is_told_in_place_or_line_by_line(
    out: io.StringIO, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not more often than can be read; and it makes room for what is found."""
    now = [0.0]
    monkeypatch.setattr(verifying.time, "monotonic", lambda: now[0])
    progress = verifying.Progress(OutputWrapper(out))
    for at, seen in ((0.1, 1), (11, 5), (11.1, 6), (22, 9)):
        now[0] = at
        progress(seen, seen / 10)
    progress.clear()
    progress.clear()
    assert out.getvalue() == shown


def test_rows_of_an_engine_that_the_settings_have_no_more(settings: Any) -> None:
    """Can be judged by themselves."""
    rows = rows_of(GOOD[:-1])
    for row in rows:
        row.alias = "retired"
    plant([*rows, *rows_of([("expired", "x", 1, 9)])])
    settings.LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert verify("--stored", "--using", "retired")["events"]["acquired"] == 4


def test_memory_does_not_grow_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of three times as many events, of as many locks, takes no more."""
    monkeypatch.setattr(verify_module, "PAGE", 200)
    rows = [
        (kind, f"order:{number}", 2000 + number, number)
        for number in range(1200)
        for kind in ("acquired", "released")
    ]
    plant(rows_of(rows))

    def peak(until: datetime) -> int:
        tracemalloc.start()
        try:
            assert list(Verification(part=Part(until=until)).run()) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short = peak(BEGAN + timedelta(seconds=400))
    assert peak(BEGAN + timedelta(seconds=1200)) < short * 1.2


# ------------------------------------------------------------------ true histories


def test_a_true_history_has_no_fault(redis_locks: Any) -> None:
    """Of every kind of lock and of every end, half of it stored and half still in the stream."""
    engine = redis_locks["default"]
    other = type(engine)("default", engine.location, engine.options)

    def live() -> None:
        Lock(engine, "order:1", wait=0).acquire().release()
        permits = [Semaphore(engine, "gpu:1", 2, wait=0).acquire() for _ in range(2)]
        readers = [RWLock(each, "kb:1", wait=0).read().acquire() for each in (engine, other)]
        for lease in (*permits, *readers):
            lease.release()
        writer = RWLock(engine, "kb:1", wait=0).write().acquire()
        writer.downgrade()
        reader = RWLock(other, "kb:1", wait=0).read().acquire()
        reader.release()
        writer.release()
        late = Lock(engine, "order:2", wait=0, ttl=0.5, renew=False).acquire()
        wait_until(lambda: late.lost)

    live()
    collect(engine)
    live()
    said = verify()
    assert said["faults"] == []
    assert said["events"]["expired"] == 1  # the other one was recorded by verify itself
    assert said["events"]["acquired"] == 16
    assert verify("--since", "1s")["faults"] == []
    other.close()


def test_times_without_a_zone_are_understood(settings: Any, redis_locks: Any) -> None:
    """As rows have them when USE_TZ is off."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    engine = redis_locks["default"]
    Lock(engine, "order:1", wait=0).acquire().release()
    collect(engine)
    assert verify("--since", "1min")["events"] == {"acquired": 1, "released": 1}
    assert verify("--until", "1min")["events"] == {}


def test_what_is_held_is_no_fault_and_what_vanished_is_one(
    redis_locks: Any, redis_server: RedisServer
) -> None:
    """The engine is asked. A lock whose record somebody deleted by hand has no end."""
    engine = redis_locks["default"]
    lease = Lock(engine, "order:1", wait=0, renew=False).acquire()
    assert verify()["faults"] == []
    collect(engine)
    assert verify()["faults"] == []
    keys = engine.sync.shards[0]
    redis_server.client.delete(keys.lock(lease.name))
    redis_server.client.zrem(keys.held, lease.name)
    (fault,) = verify()["faults"]
    assert (fault["kind"], fault["name"]) == ("open", "order:1")
    assert str(lease.fence) in fault["about"]


def test_an_expiry_that_nobody_has_recorded_yet_is_no_fault(redis_locks: Any) -> None:
    """Verify has it recorded, and finds it in the stream."""
    engine = redis_locks["default"]
    lease = Lock(engine, "order:1", wait=0, ttl=0.05, renew=False).acquire()
    wait_until(lambda: engine.show(lease.name) is None)
    assert verify()["faults"] == []
    assert engine.read_events()[-1].kind == "expired"


def test_what_a_collector_stores_meanwhile_is_seen_once(
    redis_locks: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores and trims between any two steps of the replay."""
    engine = redis_locks["default"]
    monkeypatch.setattr(verify_module, "PAGE", 3)

    def use() -> None:
        for _ in range(4):
            Lock(engine, "order:1", wait=0).acquire().release()

    use()
    collect(engine)
    use()
    read, identity = type(engine).read_events, type(engine).stream_identity
    meddling: list[str] = []

    def meddle(step: Any) -> Any:
        def stepped(self: Any, *args: Any) -> Any:
            if not meddling:
                meddling.append("now")
                use()
                collect(engine)
                redis_server.client.xtrim(engine.sync.shards[0].events, maxlen=0, approximate=False)
                use()
                meddling.clear()
            return step(self, *args)

        return stepped

    monkeypatch.setattr(type(engine), "read_events", meddle(read))
    monkeypatch.setattr(type(engine), "stream_identity", meddle(identity))
    verification = Verification([engine])
    assert list(verification.run()) == []
    assert verification.seen.total() >= 32


@pytest.mark.parametrize("key", ["0" * 32, "f" * 32])
def test_how_far_a_process_stored_its_own_is_not_how_far_the_stream_is(
    redis_locks: Any, key: str
) -> None:
    """The alias had an engine without a stream before; what its processes left is there still."""
    engine = redis_locks["default"]
    EventCursor.objects.create(key=key, alias="default", server="web1:71", stream_id="9-0")
    for _ in range(2):
        Lock(engine, "order:1", wait=0).acquire().release()
        assert verify()["faults"] == []
        collect(engine)


def test_a_server_that_lost_its_data_is_a_gap(settings: Any, fresh_redis: RedisServer) -> None:
    """Unread events come from another server; what was open there is held against nobody."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    engine = locks["default"]
    Lock(engine, "order:1", wait=0, renew=False).acquire()
    collect(engine)
    fresh_redis.restart()
    Lock(engine, "order:1", wait=0).acquire().release()
    faults = verify()["faults"]
    assert [fault["kind"] for fault in faults] == ["gap"]
    collect(engine)
    assert [fault["kind"] for fault in verify()["faults"]] == ["gap"]


def test_processes_that_contend_leave_a_history_without_fault(
    redis_locks: Any, settings: Any, redis_url: str, tmp_path: Path
) -> None:
    """Three of them, killed in the end; stored while they work."""
    engine = redis_locks["default"]
    prefix = settings.LOCKAPP["default"]["OPTIONS"]["prefix"]
    stop = tmp_path / "stop"
    crowd = [
        subprocess.Popen(
            command(redis_url, tmp_path / f"{seed}.log", stop, seed, prefix=prefix), cwd=ROOT
        )
        for seed in range(3)
    ]
    try:
        wait_until(
            lambda: collect(engine) and LockEvent.objects.count() > 50,
            limit_s=40, every_s=0.05, what="enough events",
        )  # fmt: skip
        assert verify()["faults"] == []
    finally:
        for process in crowd:
            process.kill()
            process.wait()
    wait_until(lambda: engine.sweep() == 0 and engine.snapshot().total == 0, limit_s=20)
    assert EventCursor.objects.get().number > 0
    said = verify()
    assert said["faults"] == []
    assert sum(said["events"].values()) > 50


def test_an_engine_that_cannot_be_asked_says_so(settings: Any, fresh_redis: RedisServer) -> None:
    """The rows alone can be judged all the same."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    plant(rows_of(GOOD))
    fresh_redis.kill()
    with pytest.raises(CommandError) as error:
        verify()
    assert error.value.returncode == 3
    assert stored() == []
