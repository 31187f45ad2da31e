"""Events become holds: one row for each lease, whatever of it was recorded, and in which batch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from lockapp.audit.collector import collect
from lockapp.audit.holds import holds_of
from lockapp.context import holder_details
from lockapp.core.options import EngineOptions
from lockapp.engines.redis import RedisEngine
from lockapp.lock import Lock
from lockapp.models import EventCursor, LockEvent, LockHold
from lockapp.primitives import MultiLock, RWLock, Semaphore
from tests.servers import RedisServer
from tests.timing import wait_until

pytestmark = pytest.mark.django_db
Kind, Ended = LockHold.Kind, LockHold.Ended


@pytest.fixture
def engine(redis_server: RedisServer, prefix: str) -> Iterator[RedisEngine]:
    """An engine on the shared server."""
    engine = RedisEngine("default", redis_server.url, EngineOptions.parse({"prefix": prefix}))
    yield engine
    engine.close()


def shown(**which: Any) -> list[tuple[str, str, str]]:
    """Name, kind and end of each hold, in the order of their grants."""
    rows = LockHold.objects.filter(**which).order_by("fence")
    return list(rows.values_list("name", "kind", "ended"))


def test_a_lease_is_one_row_with_all_that_is_known_of_it(engine: RedisEngine) -> None:
    """Who, when, how long it waited and held, and how it ended."""
    details = {"task": "shop.report", "task_id": "t-1", "user": "ann", "path": "/orders/"}
    with holder_details(**details):
        lease = Lock(engine, "order:1", ttl=20, wait=0).acquire()
        lease.release()
    collect(engine)
    hold = LockHold.objects.get()
    granted, released = LockEvent.objects.order_by("id")
    assert (hold.name, hold.family, hold.fence) == ("order:1", "order", lease.fence)
    assert (hold.alias, hold.kind, hold.ended) == ("default", Kind.MUTEX, Ended.RELEASED)
    assert {key: getattr(hold, key) for key in details} == details
    assert (hold.host, hold.pid) == (granted.host, granted.pid)
    assert (hold.granted_at, hold.ended_at) == (granted.at, released.at)
    assert (hold.ttl_ms, hold.waited_ms, hold.held_ms) == (20_000, 0, released.detail["held_ms"])


def test_a_hold_is_there_while_it_lasts_and_ends_later(engine: RedisEngine) -> None:
    """The end finds the row of the grant, and changes nothing else of it."""
    with holder_details(user="ann"):
        lease = Lock(engine, "order:1", wait=0).acquire()
    collect(engine)
    held = LockHold.objects.without_end().get()
    assert (held.user, held.ended_at, held.held_ms) == ("ann", None, None)
    engine.force_release("order:1", lease.fence, actor="bob", reason="stuck")
    collect(engine)
    ended = LockHold.objects.get()
    assert ended.pk == held.pk
    assert (ended.ended, ended.actor, ended.reason) == (Ended.FORCED, "bob", "stuck")
    assert (ended.user, ended.granted_at, ended.ttl_ms) == ("ann", held.granted_at, held.ttl_ms)
    assert not LockHold.objects.without_end()


def test_what_was_held_is_told(engine: RedisEngine) -> None:
    """A lock, a permit, a reader, a writer that became one, and several at once."""
    Lock(engine, "a", wait=0).acquire().release()
    Semaphore(engine, "b", 3, wait=0).acquire().release()
    RWLock(engine, "c", wait=0).read().acquire().release()
    with RWLock(engine, "d", wait=0).write() as lease:
        lease.downgrade()
    with MultiLock([Lock(engine, "e", wait=0), RWLock(engine, "f", wait=0).read()]):
        pass
    collect(engine)
    assert shown() == [
        ("a", Kind.MUTEX, Ended.RELEASED),
        ("b", Kind.SEMAPHORE, Ended.RELEASED),
        ("c", Kind.READ, Ended.RELEASED),
        ("d", Kind.WRITE, Ended.RELEASED),
        ("e", Kind.MUTEX, Ended.RELEASED),
        ("f", Kind.READ, Ended.RELEASED),
    ]


def test_every_kind_of_end_is_told_with_its_reason(engine: RedisEngine) -> None:
    """Also why a lease expired."""
    lease = Lock(engine, "dead", wait=0).acquire()
    engine.abandon("dead", lease.renew_item.token, actor="worker", reason="child died")
    Lock(engine, "long", ttl=5, max_hold=0.05, wait=0, renew=False).acquire()
    late = Lock(engine, "late", ttl=0.05, wait=0, renew=False).acquire()
    wait_until(lambda: late.lost)

    def ended() -> bool:
        collect(engine)
        return not LockHold.objects.without_end()

    wait_until(ended, every_s=0.02)
    rows = {hold.name: (hold.ended, hold.reason) for hold in LockHold.objects.all()}
    assert rows == {
        "dead": (Ended.ABANDONED, "child died"),
        "long": (Ended.EXPIRED, "max_hold"),
        "late": (Ended.EXPIRED, ""),
    }


def test_an_end_without_its_grant_makes_a_row(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """Its beginning follows from how long it was held; what only the grant tells is not known."""
    lease = Lock(engine, "order:1", wait=0).acquire()
    collect(engine)
    granted_at = LockHold.objects.get().granted_at
    LockHold.objects.all().delete()
    lease.release()
    collect(engine)
    hold = LockHold.objects.get()
    assert abs(hold.granted_at - granted_at) < timedelta(milliseconds=2)
    assert (hold.kind, hold.ended, hold.waited_ms) == ("", Ended.RELEASED, None)


def test_events_read_again_change_no_hold(engine: RedisEngine) -> None:
    """The collector knows them, or would write the same."""
    for _ in range(3):
        Lock(engine, "order:1", wait=0).acquire().release()
    collect(engine)
    before = list(LockHold.objects.order_by("pk").values())
    EventCursor.objects.all().delete()
    collect(engine)
    assert list(LockHold.objects.order_by("pk").values()) == before
    LockEvent.objects.prune(before=before[-1]["ended_at"] + timedelta(days=1))
    EventCursor.objects.all().delete()
    assert collect(engine).stored == 6
    assert list(LockHold.objects.order_by("pk").values()) == before


def test_batches_that_end_in_the_middle_of_a_lease_lose_nothing(engine: RedisEngine) -> None:
    """Whatever of it comes in which."""
    for number in range(9):
        Lock(engine, f"order:{number}", wait=0).acquire().release()
    collect(engine, batch=5)
    assert shown() == [(f"order:{n}", Kind.MUTEX, Ended.RELEASED) for n in range(9)]


def test_a_run_without_the_server_is_no_hold() -> None:
    """It held nothing that anybody else respects; nor is a gap one."""
    events = [LockEvent(kind=kind, fence=0, detail={}) for kind in ("degraded", "revoked")]
    assert holds_of([*events, LockEvent(kind="gap")]) == {}


@pytest.mark.parametrize("held_ms", ["9" * 18, "-5", "x", None, 10**18])
def test_numbers_of_a_foreign_hand_do_not_stop_the_collection(held_ms: Any) -> None:
    """Whoever writes to the stream could otherwise keep everything that follows from the table."""
    event = LockEvent(
        kind="released",
        name="a",
        name_digest="0",
        fence=1,
        at=timezone.now(),
        detail={"held_ms": held_ms},
    )
    ((told, (hold,)),) = holds_of([event]).items()
    hold.save()
    hold.refresh_from_db()
    assert "ended" in told
    assert hold.granted_at <= event.at
