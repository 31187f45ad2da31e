"""How long locks are waited for and held, family by family, and what ttl that speaks for.

Read from the stored holds: of each family the newest ``SAMPLE`` since a given time, which an index
finds, so that it costs the same however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lockapp.models import LockHold
from lockapp.querysets import first_values

FAMILIES = 50
"""Families on one page, in the order of their names."""
SAMPLE = 1000
"""Holds of each that are looked at, the newest ones."""

FACTOR = 1.5
LEAST_S, MOST_S = 5.0, 60.0
"""The ttl that is advised is so many times the p99 of the holds, within these bounds.

Then hardly any hold needs a renewal. Below the least a paused process (a collection of garbage, a
machine without turns) would lose its lock for nothing. Above the most, renewal does it better: a
longer ttl only makes the others wait longer after a crash.
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """Three percentiles, in seconds: a value that occurred, by nearest rank."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, ms: Sequence[int]) -> Spread | None:
        """Return the spread of some durations in milliseconds; None of none."""
        if not ms:
            return None
        ranked = sorted(ms)
        p50, p95, p99 = (
            ranked[max(-(-len(ranked) * part // 100), 1) - 1] / 1000 for part in (50, 95, 99)
        )
        return cls(p50, p95, p99)


@dataclass(frozen=True, slots=True)
class Advice:
    """A ttl in seconds, beside the one in use; ``bound`` says which bound it was moved to."""

    ttl_s: float
    bound: str  # "least", "most", or nothing
    now_s: float | None  # the commonest ttl of the sample


@dataclass(frozen=True, slots=True)
class FamilyStatistics:
    """What the sample of one family says."""

    family: str
    holds: int  # in the sample
    capped: bool  # whether there are older ones in the time asked for
    since: datetime  # the oldest grant of the sample
    waited: float  # share that had to wait, 0 to 1
    wait: Spread | None
    hold: Spread | None
    lost: int  # ended otherwise than by release
    advice: Advice | None


def statistics(since: datetime) -> list[FamilyStatistics]:
    """Return what the stored holds since ``since`` say of each family."""
    recent = LockHold.objects.filter(granted_at__gte=since)
    families = first_values(LockHold.objects.all(), "family", FAMILIES)
    found = (_of(family, recent) for family in families if family)
    return [each for each in found if each is not None]


def _of(family: str, recent: object) -> FamilyStatistics | None:
    rows = list(
        recent.filter(family=family)  # type: ignore[attr-defined]
        .exclude(kind="")  # whose grant was not recorded
        .order_by("-granted_at", "-id")
        .values_list("granted_at", "waited_ms", "held_ms", "ended", "ttl_ms")[: SAMPLE + 1]
    )
    capped, rows = len(rows) > SAMPLE, rows[:SAMPLE]
    if not rows:
        return None
    waits = [row[1] for row in rows if row[1] is not None]
    holds = [row[2] for row in rows if row[2] is not None]
    hold = Spread.of(holds)
    ttls = Counter(row[4] for row in rows if row[4])
    return FamilyStatistics(
        family=family,
        holds=len(rows),
        capped=capped,
        since=rows[-1][0],
        waited=sum(wait > 0 for wait in waits) / len(waits) if waits else 0.0,
        wait=Spread.of(waits),
        hold=hold,
        lost=sum(row[3] not in ("", LockHold.Ended.RELEASED) for row in rows),
        advice=advise(hold, ttls.most_common(1)[0][0] / 1000 if ttls else None),
    )


def advise(hold: Spread | None, now_s: float | None) -> Advice | None:
    """Return the ttl that a spread of holds speaks for; None when nothing has ended yet."""
    if hold is None:
        return None
    wanted = hold.p99 * FACTOR
    if wanted < LEAST_S:
        return Advice(LEAST_S, "least", now_s)
    if wanted > MOST_S:
        return Advice(MOST_S, "most", now_s)
    return Advice(float(-(-wanted // 1)), "", now_s)
