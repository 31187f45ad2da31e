"""Which part of an engine is asked for leases that ran out, and when."""

from __future__ import annotations

from lockapp.core.sweeping import LOOK_EVERY_S, LOOK_PARTS, Sweeps

NEVER = float("inf")


def test_a_server_is_looked_at_now_and_then() -> None:
    """At once, and then every few seconds, for which nobody is woken."""
    sweeps = Sweeps(1, 0)
    assert (sweeps.next(10.0), sweeps.next(10.0)) == (0, None)
    assert sweeps.due(10.0) == NEVER
    assert sweeps.next(10.0 + LOOK_EVERY_S - 0.1) is None
    assert sweeps.next(10.0 + LOOK_EVERY_S) == 0


def test_a_renewal_looks_as_well() -> None:
    """At all there is of one server, and at one shard of many."""
    for parts, expected in ((1, None), (64, 0)):
        sweeps = Sweeps(parts, 0)
        while sweeps.next(0.0) is not None:
            pass
        sweeps.asked(LOOK_EVERY_S - 1)
        found = sweeps.next(LOOK_EVERY_S)
        assert (found is None) is (expected is None)


def test_what_ran_out_is_reclaimed_soon_and_once() -> None:
    """Not before its time, and each part once, however many leases."""
    sweeps = Sweeps(64, 0)
    sweeps.look_at = NEVER
    for part in (7, 7, 9):
        sweeps.suspect(part, 5.1)
    sweeps.suspect(9, 6.0)
    assert sweeps.due(5.0) == 5.1
    assert sweeps.next(5.0) is None
    first = sweeps.next(5.1)
    assert sweeps.due(5.1) == 5.1
    assert {first, sweeps.next(5.1)} == {7, 9}
    assert sweeps.next(5.1) is None
    assert sweeps.due(5.1) == NEVER


def test_a_tour_passes_all_parts_and_begins_anywhere() -> None:
    """A few at a time, each as often as the others."""
    sweeps, now = Sweeps(64, 60), 0.0
    seen: list[int] = []
    for _ in range(64 // LOOK_PARTS):
        part = sweeps.next(now)
        assert part is not None
        tour = [part]
        while (part := sweeps.next(now)) is not None:
            tour.append(part)
        assert len(tour) == LOOK_PARTS
        seen += tour
        now += LOOK_EVERY_S
    assert sorted(seen) == list(range(64))
    assert 60 in seen[:LOOK_PARTS]


def test_few_parts_are_each_looked_at_once() -> None:
    """Not more often because a tour could be longer."""
    sweeps = Sweeps(3, 1)
    found = [sweeps.next(0.0) for _ in range(10)]
    assert sorted(part for part in found if part is not None) == [0, 1, 2]
