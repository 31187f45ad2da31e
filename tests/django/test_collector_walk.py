"""Which events are missing: the decisions, without a server or a database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from lockapp.audit import event
from lockapp.audit.event import BACK, JUMP, Gap, Place
from lockapp.core.values import EventRecord, StreamIdentity


def record(
    number: int, *, ms: int | None = None, name: str = "order:1", **more: Any
) -> EventRecord:
    at = number if ms is None else ms
    fields = {"shard": 0, "kind": "acquired", "fence": at, "at_us": at * 1000, "detail": {}}
    return EventRecord(id=f"{at}-0", number=number, name=name, **{**fields, **more})


def told(place: Place, records: list[EventRecord], known: set[str]) -> list[Any]:
    """What is stored: the number of an event, or (reason, missing) of a gap."""
    found = event.walk(place, records, known, "default").found
    return [(each.reason, each.missing) if isinstance(each, Gap) else each.number for each in found]


def test_dense_numbers_have_no_gap() -> None:
    """The ordinary case."""
    assert told(Place("s", "2-0", 2), [record(3), record(4)], set()) == [3, 4]


def test_a_jump_says_how_many_are_missing() -> None:
    """The gap comes before the event that shows it."""
    assert told(Place("s", "2-0", 2), [record(3), record(7)], set()) == [3, (JUMP, 3), 7]


def test_a_smaller_number_begins_a_new_count() -> None:
    """Nobody knows how many the former history had left."""
    back = [record(1, ms=50), record(2, ms=51)]
    assert told(Place("s", "9-0", 9), back, set()) == [(BACK, None), 1, 2]


def test_known_events_are_passed_over_and_still_count() -> None:
    """After a failover: 1 to 3 are known, 4 and 5 only the former master had, 4 is used again."""
    known = {event.record_identity("default", record(number)) for number in range(1, 6)}
    again = [record(1), record(2), record(3), record(4, ms=90)]
    assert told(Place("s", "0-0", 5), again, known) == [(BACK, None), 4]
    assert told(Place("s", "0-0", None), again, known) == [4]


def test_an_event_without_a_number_is_stored_and_proves_nothing() -> None:
    """The counter could not be written; the next number says how it went on."""
    assert told(Place("s", "2-0", 2), [record(0, ms=3), record(3)], set()) == [0, 3]
    assert told(Place("s", "2-0", None), [record(0, ms=3), record(8)], set()) == [0, 8]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 7))
def test_stored_and_missing_always_add_up(kept: list[bool], size: int) -> None:
    """Whichever events were lost, and wherever the batches end."""
    stream = [record(number) for number, there in enumerate(kept, 1) if there]
    place, stored, missing = Place("s"), 0, 0
    for start in range(0, len(stream), size):
        walked = event.walk(place, stream[start : start + size], set(), "default")
        place = walked.place
        for each in walked.found:
            stored += isinstance(each, EventRecord)
            missing += each.missing or 0 if isinstance(each, Gap) else 0
    assert stored == len(stream)
    assert stored + missing == (stream[-1].number if stream else 0)


@pytest.mark.parametrize(
    ("stream_id", "before"),
    [("5-3", "5-2"), ("5-0", f"4-{2**64 - 1}"), ("0-1", "0-0"), ("0-0", "0-0")],
)
def test_the_id_before(stream_id: str, before: str) -> None:
    """So that reading after it begins with that very event."""
    assert event.id_before(stream_id) == before


def test_ids_are_compared_as_numbers() -> None:
    """Not as text."""
    assert event.is_before("9-10", "10-0")
    assert event.is_before("9-9", "9-10")
    assert not event.is_before("9-9", "9-9")


@pytest.mark.parametrize(
    ("last_id", "last_number", "back"),
    [("9-0", 9, False), ("8-0", 9, True), ("9-0", 8, True), ("0-0", 0, True), ("10-0", 12, False)],
)
def test_a_stream_that_went_back_is_noticed(last_id: str, last_number: int, back: bool) -> None:
    """By its last id or by its last number."""
    here = StreamIdentity("s", last_id, last_number)
    assert event.went_back(Place("s", "9-0", 9), here) is back


def test_identities_tell_events_apart_and_grow_with_time() -> None:
    """Everything that makes an event is in them; where it was read from is not."""
    events = [
        record(1), record(2), record(1, ms=2), record(1, name="Order:1"),
        record(1, kind="released"), record(1, fence=77), record(1, shard=1),
    ]  # fmt: skip
    assert len({event.record_identity("default", each) for each in events}) == len(events)
    assert event.record_identity("a", events[0]) != event.record_identity("b", events[0])
    assert event.record_identity("a", record(9)) < event.record_identity("a", record(10))


@given(st.dictionaries(st.text(max_size=5), st.text()), st.text(), st.integers(-(2**70), 2**70))
def test_any_event_fits_its_columns(description: dict[str, str], name: str, at_us: int) -> None:
    """Also one that a foreign hand wrote."""
    detail = {"description": json.dumps(description), "held_ms": "12", "why": "\x00\ud800"}
    odd = record(1, name=name, at_us=at_us, detail=detail)
    fields = event.record_fields("default", "s" * 99, odd)
    assert len(fields["identity"]) <= 48
    assert "\x00" not in json.dumps(fields["detail"], ensure_ascii=False)
    json.dumps(fields["detail"], ensure_ascii=False).encode()
    assert fields["detail"]["held_ms"] == 12


@pytest.mark.parametrize("text", ["", "no json", "[1]", "null", '{"host":{"a":1}}'])
def test_a_description_that_is_no_object_is_kept_as_text(text: str) -> None:
    """Nothing is dropped because it can't be read."""
    fields = event.record_fields("default", "s", record(1, detail={"description": text}))
    kept = fields["detail"].get("description", {})
    assert bool(kept) is bool(text)
    json.dumps(kept)


def test_a_gap_has_an_identity_of_its_own() -> None:
    """The same gap found again is the same row; another is another."""
    now = timezone.now()

    def identity(gap: Gap) -> str:
        return str(event.gap_fields("default", "s", 0, gap, now)["identity"])

    one = Gap(Place("s", "2-0", 2), JUMP, 3, record(6))
    assert identity(one) == identity(Gap(Place("s", "2-0", 2), JUMP, 3, record(6)))
    assert identity(one) != identity(Gap(Place("s", "3-0", 3), JUMP, 2, record(6)))
