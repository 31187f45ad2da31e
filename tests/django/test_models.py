"""The audit log's table: append-only, and asked in its own words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockapp.models import LockEvent
from lockapp.naming import family_of, lock_name, name_digest

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def stored(number: int, *, name: str = "order:1", kind: str = "acquired", **more: Any) -> LockEvent:
    return LockEvent.objects.create(
        **{
            "identity": f"{number:048x}",
            "alias": "default",
            "name": name,
            "name_digest": name_digest(name),
            "family": family_of(name),
            "kind": kind,
            "fence": number,
            "at": NOON + timedelta(minutes=number),
            **more,
        }
    )


def test_a_row_can_be_added_but_not_changed() -> None:
    """Neither by itself nor in bulk."""
    row = stored(1)
    row.reason = "second thoughts"
    with pytest.raises(TypeError, match="append-only"):
        row.save()
    with pytest.raises(TypeError, match="append-only"):
        LockEvent.objects.filter(pk=row.pk).update(reason="second thoughts")
    assert LockEvent.objects.get().reason == ""


def test_a_row_is_not_deleted_by_the_way() -> None:
    """Only pruning drops rows, by age."""
    row = stored(1)
    with pytest.raises(TypeError, match="prune"):
        row.delete()
    with pytest.raises(TypeError, match="prune"):
        LockEvent.objects.all().delete()
    assert LockEvent.objects.count() == 1


def test_pruning_drops_what_is_older() -> None:
    """And keeps what happened at that very moment."""
    for number in range(4):
        stored(number)
    assert LockEvent.objects.prune(NOON + timedelta(minutes=2)) == 2
    assert [row.fence for row in LockEvent.objects.order_by("at")] == [2, 3]


def test_events_are_found_by_lock_loss_gap_and_time() -> None:
    """The questions chain."""
    stored(1, kind="expired")
    stored(2, kind="released")
    stored(3, kind="forced", name="order:2")
    stored(4, kind="gap", name="", name_digest="", detail={"missing": 3})
    events = LockEvent.objects
    assert {row.fence for row in events.lost()} == {1, 3}
    assert {row.fence for row in events.for_lock("order:1")} == {1, 2}
    assert events.for_lock("order:1").lost().get().fence == 1
    assert events.gaps().get().missing == 3
    assert {row.fence for row in events.since(NOON + timedelta(minutes=3))} == {3, 4}


def test_names_are_found_by_what_people_read() -> None:
    """A name is stored encoded; nobody types percent signs."""
    stored(1, name=lock_name("订单", 7))
    stored(2, name="order:7")
    assert LockEvent.objects.naming("订单").get().fence == 1
    assert LockEvent.objects.naming("order:7").get().fence == 2
    assert LockEvent.objects.naming(lock_name("订单")).get().fence == 1


def test_the_newest_event_comes_first() -> None:
    """Within one microsecond, the one stored last."""
    stored(1)
    stored(2, at=NOON)
    stored(3, at=NOON)
    assert [row.fence for row in LockEvent.objects.all()] == [1, 3, 2]


def test_a_row_says_what_it_is() -> None:
    """With the name as people read it."""
    assert str(stored(1, name=lock_name("订单", 7))) == "订单:7: acquired"
    assert str(stored(2, name="order:1", kind="revoked")) == "order:1: asked to let go"
    assert str(stored(3, name="", kind="gap")) == "gap"
