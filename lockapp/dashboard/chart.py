"""Where bars stand in a chart of durations. Numbers for a template; no HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockapp.audit.statistics import FamilyStatistics, Spread

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 20, 26, 24
"""Of the drawing, in its own units: all of it, before and behind the scale, a row, the head."""
TICKS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0)
"""Seconds that the scale may name."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The holds of one family: from p50 to p99, and where p95 is."""

    family: str
    y: int
    text_y: int
    x: float
    width: float
    p95: float
    hold: Spread


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the scale."""

    x: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars on a logarithmic scale, which begins with the fastest and ends with the slowest."""

    width: int
    height: int
    top: int
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]


def chart_of(rows: Sequence[FamilyStatistics]) -> Chart | None:
    """Place the holds of each family; None when there are none."""
    spreads = [(row.family, row.hold) for row in rows if row.hold is not None]
    if not spreads:
        return None
    low = _decade(min(hold.p50 for _, hold in spreads), math.floor)
    high = _decade(max(hold.p99 for _, hold in spreads), math.ceil)
    high = max(high, low + 1)

    def x(seconds: float) -> float:
        at = (math.log10(max(seconds, 0.001)) - low) / (high - low)
        return round(LEFT + at * (WIDTH - LEFT - RIGHT), 1)

    bars = []
    for number, (family, hold) in enumerate(spreads):
        y = TOP + number * ROW
        start, end = x(hold.p50), x(hold.p99)
        width = max(round(end - start, 1), 2.0)
        bars.append(Bar(family, y + 5, y + 17, start, width, x(hold.p95), hold))
    inside = [each for each in TICKS if 10**low <= each <= 10**high]
    ticks = tuple(Tick(x(each), each) for each in inside)
    return Chart(WIDTH, TOP + len(bars) * ROW + 6, TOP, tuple(bars), ticks)


def _decade(seconds: float, to: Callable[[float], int]) -> int:
    return to(math.log10(max(seconds, 0.001)))
