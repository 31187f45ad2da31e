"""The history checker sees each fault it is meant for, and none in a good history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockapp.core.values import EventRecord
from tests.history import Fault, Stay, judge, read_log

Row = tuple[str, int, int, int]
"""Kind, fence, second it happened, seconds waited."""
GOOD: list[Row] = [
    ("acquired", 1, 10, 0),
    ("released", 1, 20, 0),
    ("acquired", 2, 20, 8),
    ("expired", 2, 30, 0),
    ("acquired", 3, 30, 5),
    ("forced", 3, 31, 0),
    ("acquired", 5, 40, 0),
    ("abandoned", 5, 41, 0),
]
STAYS = [Stay("a", "n", 1, 10, 20), Stay("b", "n", 2, 20, 29), Stay("c", "n", 3, 30, 31)]


def events(rows: list[Row], name: str = "n", *, limit: int = 1) -> list[EventRecord]:
    """Spell out a stream."""
    granted = {"ttl_ms": "1000", "weight": "1", "limit": str(limit), "max_hold_ms": "60000"}
    return [
        EventRecord(
            0, f"{number}-0", number, kind, name, fence, at * 1_000_000,
            {"waited_ms": str(waited * 1000), **granted} if kind == "acquired" else {},
        )
        for number, (kind, fence, at, waited) in enumerate(rows, 1)
    ]  # fmt: skip


def kinds(faults: list[Fault]) -> list[str]:
    return [fault.kind for fault in faults]


def test_a_good_history_has_no_faults() -> None:
    assert judge(STAYS, events(GOOD)) == []


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        pytest.param([("acquired", 1, 1, 0), ("acquired", 2, 2, 0),
                      ("released", 1, 3, 0), ("released", 2, 4, 0)], "overlap", id="two-at-once"),
        pytest.param([("acquired", 2, 1, 0), ("released", 2, 2, 0),
                      ("acquired", 1, 3, 0), ("released", 1, 4, 0)], "token", id="token-shrinks"),
        pytest.param([("acquired", 2, 1, 0), ("released", 2, 2, 0),
                      ("acquired", 2, 3, 0), ("released", 2, 4, 0)], "token", id="token-repeats"),
        pytest.param([("acquired", 1, 1, 0)], "open", id="never-ended"),
        pytest.param([("released", 1, 1, 0)], "end", id="never-granted"),
        pytest.param([("acquired", 1, 1, 0), ("expired", 1, 2, 0), ("released", 1, 3, 0)],
                     "end", id="ended-twice"),
        pytest.param([("acquired", 1, 1, 0), ("acquired", 2, 200, 0),
                      ("released", 2, 201, 0)], "open", id="outlived-its-longest-life"),
        pytest.param([("acquired", 1, 5, 2), ("released", 1, 6, 0),
                      ("acquired", 2, 6, 5), ("released", 2, 7, 0)], "order", id="queue-jumped"),
        pytest.param([("acquired", 1, 5, 0), ("released", 1, 6, 0),
                      ("acquired", 2, 6, 2), ("released", 2, 7, 0)], "order", id="barged"),
    ],
)  # fmt: skip
def test_a_fault_of_the_stream_is_seen(rows: list[Row], kind: str) -> None:
    """Each history has one fault, and it is called by its name."""
    assert kinds(judge([], events(rows))) == [kind]


def test_names_are_judged_apart() -> None:
    """Two holders at once of two names, and their tokens, are nobody's business."""
    rows = events([("acquired", 9, 1, 0), ("acquired", 2, 2, 0),
                   ("released", 2, 3, 0), ("released", 9, 4, 0)])  # fmt: skip
    mixed = [replace(event, name=str(event.fence)) for event in rows]
    stays = [Stay("a", "9", 9, 1, 4), Stay("b", "2", 2, 2, 3)]
    assert judge(stays, mixed) == []


def test_a_limit_allows_so_many() -> None:
    rows = [("acquired", 1, 1, 0), ("acquired", 2, 2, 0), ("acquired", 3, 3, 0),
            ("released", 1, 4, 0), ("released", 2, 4, 0), ("released", 3, 4, 0)]  # fmt: skip
    stays = [Stay("a", "n", 1, 1, 4), Stay("b", "n", 2, 2, 4), Stay("c", "n", 3, 3, 4)]
    assert judge(stays, events(rows, limit=3), limit=3) == []
    assert kinds(judge(stays, events(rows, limit=2), limit=2)) == ["overlap", "overlap"]


def test_a_writer_that_becomes_a_reader_leaves_room() -> None:
    """By its event; before that nobody else fits."""
    writer, *rest = events([("acquired", 1, 1, 0), ("downgraded", 1, 2, 0), ("acquired", 2, 3, 0),
                            ("released", 1, 4, 0), ("released", 2, 5, 0)], limit=3)  # fmt: skip
    writer = replace(writer, detail={**writer.detail, "weight": "3"})
    rest[0] = replace(rest[0], detail={"weight": "1"})
    assert judge([], [writer, *rest]) == []
    rest[0] = replace(rest[0], kind="revoked")
    assert kinds(judge([], [writer, *rest])) == ["overlap"]


def test_a_grant_that_tells_no_weight_is_not_judged_by_it() -> None:
    """Of an older release, when events did not have it."""
    rows = [("acquired", 1, 1, 0), ("acquired", 2, 2, 0),
            ("released", 1, 3, 0), ("released", 2, 4, 0)]  # fmt: skip
    told, *rest = events(rows)
    older = [replace(it, detail={"waited_ms": "0"}) for it in (told, *rest)]
    assert judge([], older) == []
    assert judge([], [told, *older[1:]]) == []


def test_an_event_that_is_missing_is_seen() -> None:
    """And is the only fault, whatever it was."""
    stream = events(GOOD)
    for at in range(1, len(stream) - 1):
        assert kinds(judge([], [*stream[:at], *stream[at + 1 :]])) == ["gap"]


def test_an_event_that_is_there_twice_is_seen() -> None:
    """At once, or later."""
    stream = events(GOOD)
    assert kinds(judge([], [stream[0], *stream])) == ["gap"]
    assert kinds(judge([], [*stream[:5], stream[1], *stream[5:]])) == ["gap"]


def test_what_a_gap_could_have_swallowed_is_no_fault_of_its_own() -> None:
    """An end in it, and a grant in it; but what was granted later must end once."""
    first, late, early = events(GOOD)[:3]
    gap = EventRecord(0, "2-0", 0, "gap", "", 0, 25_000_000, {"missing": None, "why": "server"})  # type: ignore[dict-item]
    ended = replace(early, kind="released", fence=9, at_us=30_000_000, detail={"held_ms": "8000"})
    assert kinds(judge([], [first, gap, replace(ended, number=7)])) == ["gap"]
    fresh = replace(ended, number=7, detail={"held_ms": "4000"})
    assert kinds(judge([], [first, gap, fresh])) == ["gap", "end"]
    assert late.kind == "released"


def test_what_was_granted_before_the_history_begins_may_end_in_it() -> None:
    """As after a part of the log was pruned."""
    rest = [replace(it, number=it.number + 100) for it in events(GOOD)[1:]]
    rest[0] = replace(rest[0], detail={"held_ms": "10000"})
    assert judge([], rest) == []


def test_leases_that_overlap_on_their_holders_clock_are_seen() -> None:
    """Although the stream looks good."""
    late = [replace(STAYS[0], end=21), *STAYS[1:]]
    assert kinds(judge(late, events(GOOD))) == ["overlap"]


def test_a_holder_that_the_stream_does_not_know_is_seen() -> None:
    assert kinds(judge([Stay("x", "n", 4, 35, 36)], events(GOOD))) == ["unrecorded"]


def test_what_is_left_is_seen() -> None:
    assert judge([], [], ["p:{0}:queue:n"]) == [Fault("litter", "", "p:{0}:queue:n")]


def test_a_log_tells_how_long_a_holder_believed() -> None:
    """Left in time; frozen inside; killed inside; killed while writing."""
    log = [
        "enter n 1 10.0 40.0\n", "leave n 1 12.0 41.0\n",
        "enter n 2 50.0 80.0\n", "leave n 2 95.0 85.0\n",
        "enter n 3 100.0 130.0\n",
        "enter n 4 140.0 1",
    ]  # fmt: skip
    assert read_log("a", log) == [
        Stay("a", "n", 1, 10.0, 12.0),
        Stay("a", "n", 2, 50.0, 85.0),
        Stay("a", "n", 3, 100.0, 130.0),
    ]


def test_a_holder_that_was_frozen_before_it_began_has_no_stay() -> None:
    """It read the clock after its lease was over; being inside for no time overlaps with nobody."""
    (stay,) = read_log("a", ["enter n 1 50.0 40.0\n"])
    assert stay.start == stay.end
