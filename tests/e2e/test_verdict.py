"""The demo's verdict: a wrong figure must be seen, whichever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo_site.runner.doors import DoorResult
from demo_site.runner.figures import Figure
from demo_site.runner.reports import ReportsResult
from demo_site.runner.verdict import (
    PRODUCT_LOCKS,
    REPORT_LOCK,
    Trail,
    judge_locked,
    judge_reports,
    judge_trail,
    judge_unlocked,
)

STOCK = 3
UNLOCKED = DoorResult(
    buyers=8, ordered=8, sold_out=0, others={}, orders=8, stock=2, web_processes=2
)
LOCKED = DoorResult(buyers=8, ordered=3, sold_out=5, others={}, orders=3, stock=0, web_processes=2)
REPORTS = ReportsResult(sent=10, bodies=1, skipped=9, recorded=9, failed=0, seen_live=1, example="")
TRAILS = {PRODUCT_LOCKS: Trail(8, 8), REPORT_LOCK: Trail(1, 1)}


def wrong(figures: list[Figure]) -> list[str]:
    return [figure.what for figure in figures if not figure.right]


def test_the_figures_of_the_promise_are_right() -> None:
    """No figure cries wolf."""
    assert wrong(judge_unlocked(UNLOCKED, STOCK)) == []
    assert wrong(judge_locked(LOCKED, STOCK)) == []
    assert wrong(judge_reports(REPORTS)) == []
    assert wrong(judge_trail(TRAILS, shown=2, buyers=8)) == []


def test_a_race_that_does_not_oversell_shows_nothing() -> None:
    """The demo doesn't pretend that the unlocked door failed when it did not."""
    lucky = replace(UNLOCKED, orders=3, ordered=3, sold_out=5)
    assert wrong(judge_unlocked(lucky, STOCK)) == ["orders (oversold)"]


@pytest.mark.parametrize(
    "change",
    [
        {"orders": 4},
        {"orders": 2},
        {"stock": 1},
        {"sold_out": 4},
        {"others": {"409 urn:lockapp:contended": 1}},
        {"web_processes": 1},
    ],
)
def test_each_wrong_figure_of_the_locked_door_is_seen(change: dict[str, object]) -> None:
    """One order too many or too few, a buyer without a proper answer, a race in one process."""
    assert wrong(judge_locked(replace(LOCKED, **change), STOCK))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"bodies": 2},
        {"bodies": 0},
        {"skipped": 8},
        {"recorded": 8},
        {"failed": 1},
        {"seen_live": 0},
    ],
)
def test_each_wrong_figure_of_the_reports_is_seen(change: dict[str, int]) -> None:
    """Two bodies, none, or a copy that vanished."""
    assert wrong(judge_reports(replace(REPORTS, **change)))  # type: ignore[arg-type]


def test_a_grant_without_its_end_is_seen() -> None:
    """The audit log must have both ends of each lease, and the admin must show them."""
    assert wrong(judge_trail({**TRAILS, PRODUCT_LOCKS: Trail(8, 7)}, shown=2, buyers=8))
    assert wrong(judge_trail(TRAILS, shown=1, buyers=8))
