"""Events that no server keeps become rows too; a database in trouble is not a lock's concern."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from lockapp.audit import collector, sink
from lockapp.audit.sink import EventSink
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.models import EventCursor, LockEvent, LockHold
from lockapp.querysets import LockEventQuerySet
from tests.django.children import child_environment
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
CAP = 20


@pytest.fixture(autouse=True)
def engine(settings: Any, prefix: str) -> Any:
    """A memory engine of the test's own, with a small log."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.memory.MemoryEngine",
            "OPTIONS": {"prefix": prefix, "event_cap": CAP},
        }
    }
    return locks["default"]


@pytest.fixture
def running() -> Iterator[EventSink]:
    """A sink that looks often."""
    with EventSink(interval=0.01) as running:
        yield running


def use(times: int = 1) -> None:
    """Make two events each time."""
    for _ in range(times):
        Lock(locks["default"], "order:1", wait=0, release="now").acquire().release()


def numbers() -> list[int]:
    rows = LockEvent.objects.exclude(kind="gap").order_by("id")
    return list(rows.values_list("number", flat=True))


def gaps() -> list[tuple[str, int | None]]:
    return [(gap.detail["why"], gap.missing) for gap in LockEvent.objects.gaps().order_by("id")]


def stored(count: int) -> None:
    wait_until(lambda: LockEvent.objects.count() == count, limit_s=20, every_s=0.02)


def test_events_are_stored_without_anybody_collecting(running: EventSink) -> None:
    """With their holds; and the log is empty then."""
    use(3)
    stored(6)
    use()
    assert running.stop()
    assert numbers() == list(range(1, 9))
    assert LockHold.objects.filter(ended="released").count() == 4
    assert gaps() == []
    assert locks["default"].read_events() == []
    assert EventCursor.objects.get().ended


def test_a_sink_goes_on_where_it_stopped() -> None:
    """In the same process: with the same numbers."""
    for _ in range(3):
        with EventSink(interval=0.01):
            use(2)
    assert numbers() == list(range(1, 13))
    assert gaps() == []
    assert EventCursor.objects.count() == 1


def test_a_locked_database_is_not_a_locks_concern(running: EventSink) -> None:
    """What finds no place in the log meanwhile is a gap, with its number."""
    use()
    stored(2)
    with transaction.atomic():
        EventCursor.objects.select_for_update().get()
        started = timezone.now()
        use(50)
        assert timezone.now() - started < timedelta(seconds=scaled(2))
    assert running.stop(limit=scaled(20))
    # What it read before the database was locked is stored, then come the last of the log.
    assert numbers()[:2] == [1, 2]
    assert numbers()[-CAP:] == list(range(103 - CAP, 103))
    missing = sum(count or 0 for _, count in gaps())
    assert missing > 0
    assert missing + len(numbers()) == 102


def test_a_failing_database_is_tried_again(
    running: EventSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost as long as the log has room."""
    with monkeypatch.context() as patch:
        patch.setattr(LockEventQuerySet, "bulk_create", fail)
        use(5)
        wait_until(lambda: "disk full" in caplog.text)
    stored(10)
    assert (numbers(), gaps()) == (list(range(1, 11)), [])


def test_what_could_not_be_stored_at_the_end_is_told(
    running: EventSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the cursor does not say that the process ended in order."""
    use()
    stored(2)
    wait_until(lambda: EventCursor.objects.get().stored_at)
    monkeypatch.setattr(LockEventQuerySet, "bulk_create", fail)
    use()
    assert running.stop() is False
    assert not EventCursor.objects.get().ended


def fail(*_: object, **__: object) -> None:
    raise DatabaseError("disk full")


def test_the_database_is_left_alone_while_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A development server should not write once a second."""
    collected: list[object] = []
    rounds: list[object] = []
    collect, look = collector.collect, EventSink._round
    monkeypatch.setattr(collector, "collect", lambda it: collected.append(it) or collect(it))
    monkeypatch.setattr(EventSink, "_round", lambda *it: rounds.append(it) or look(*it))
    with EventSink(interval=0.005):
        wait_until(lambda: len(rounds) > 10)
        assert len(collected) == 1


def test_a_process_that_ended_without_a_word_is_a_gap_when_it_was_silent_for_long(
    running: EventSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not for one that stored everything, nor for one that was heard of."""
    ago = timezone.now() - timedelta(seconds=sink.SILENT_S + 60)
    for key, more in {
        "dead": {"stored_at": ago},
        "in order": {"stored_at": ago, "ended": True},
        "living": {"stored_at": timezone.now()},
        "never heard of": {},
        "other engine": {"stored_at": ago, "alias": "other"},
    }.items():
        place = {"alias": "default", "server": key, "stream_id": "5-0", "number": 7}
        EventCursor.objects.create(key=key, **{**place, **more})
    monkeypatch.setattr(sink, "SIGN_S", 0.0)

    def left() -> set[str]:
        return set(EventCursor.objects.filter(number=7).values_list("key", flat=True))

    wait_until(lambda: left() == {"living", "never heard of", "other engine"}, every_s=0.02)
    assert gaps() == [("ended", None)]
    gap = LockEvent.objects.gaps().get()
    assert (gap.server, gap.detail["after_number"]) == ("dead", 7)


def test_a_cursor_that_was_heard_of_meanwhile_stays() -> None:
    """The sign of life comes between the look and the removal."""
    cursor = EventCursor.objects.create(key="k", alias="default", stored_at=timezone.now())
    EventCursor.objects.update(stored_at=timezone.now() + timedelta(seconds=1))
    collector.give_up(cursor, "ended")
    assert EventCursor.objects.count() == 1
    assert gaps() == []


def test_starting_and_stopping_twice_does_no_harm(running: EventSink) -> None:
    """One thread, and a stop that finds nothing to do."""
    assert running.start() is running
    assert [it.name for it in threading.enumerate()].count("lockapp-sink") == 1
    assert running.stop()
    assert running.stop()
    assert "lockapp-sink" not in [it.name for it in threading.enumerate()]


CHILD = """
import time
import django
from django.conf import settings
settings.LOCKAPP["default"]["OPTIONS"] = {{"single_process": True}}
django.setup()
from lockapp import lock
from lockapp.audit.sink import EventSink
EventSink(interval=0.001).start()
print("ready", flush=True)
for number in range({times}):
    with lock("order", number % 7):
        time.sleep(0.0005)
"""


@pytest.mark.parametrize("times", [10**9, 300], ids=["killed", "ended in order"])
def test_a_process_stores_its_events_once_however_it_ends(times: int) -> None:
    """What is stored when it is killed is the beginning of what happened: dense and not double."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(times=times)],
        env=child_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if times == 300:
            assert child.wait(scaled(30)) == 0
        else:
            wait_until(lambda: LockEvent.objects.count() > 300, limit_s=30, every_s=0.05)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    count = len(numbers())
    assert numbers() == list(range(1, count + 1))
    assert gaps() == []
    assert LockHold.objects.count() == (count + 1) // 2
    assert LockHold.objects.without_end().count() == count % 2
    if times == 300:
        assert count == 600
    assert EventCursor.objects.get().ended is (times == 300)
    assert connection.is_usable()
