"""What an engine's server tells of itself that endangers locks, as plain records.

They need no Django, so that a system check and a command can both show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lockapp.core.options import EngineOptions

TRIPS = 5
"""How often a server is asked to see how long it takes."""
USELESS = frozenset(("unreachable", "replica", "cluster", "version"))
"""Kinds of problems with which no lock can be taken."""


class Problem(NamedTuple):
    """One thing about a server that endangers locks."""

    kind: str  # unreachable, version, eviction …; `manage.py lockapp doctor` has a cure for each
    detail: str


@dataclass(slots=True)
class Examination:
    """What was found, those that stop every lock first; and a few facts."""

    problems: list[Problem] = field(default_factory=list)
    version: str = ""
    round_trip_ms: float | None = None  # the fastest of a few; of several servers, the slowest's

    @property
    def usable(self) -> bool:
        """Whether it makes sense to try a lock there."""
        return USELESS.isdisjoint(each.kind for each in self.problems)


def judge_trips(slowest_s: float, options: EngineOptions) -> Iterator[Problem]:
    """Judge how long the server takes to answer, beside what leases and timeouts allow."""
    limit_s = min(options.ttl_ms / 3, options.command_timeout_ms) / 1000
    if slowest_s > limit_s / 10:
        kind = "slow" if slowest_s <= limit_s / 2 else "too slow"
        yield Problem(kind, f"{slowest_s * 1000:.0f} ms; {limit_s * 1000:.0f} ms is the most")
