"""Contention: the loop of one contender, and what the record of all of them says.

Each contender takes the lock, notes the grant, and gives the lock back. The notes lie in memory
that all share and are written under the lock, so they stand in the order of the grants; no call
to a server, which would hide what differs. Judging them is a pure function.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.contestants import Pair

ROOM = 1 << 19
"""Grants that the notes can take; the first word counts them."""
WORDS = 3  # of a grant: who, when granted, when given back (nanoseconds, one clock for all)
NOTES_SIZE = 8 * (1 + WORDS * ROOM)
WARM_UP = 0.1  # of the time, at its beginning, is not judged


@dataclass(frozen=True)
class Grant:
    """One line of the notes; times in seconds on the monotonic clock."""

    number: int
    granted: float
    releasing: float


@dataclass(frozen=True)
class Wait:
    """One acquisition, as its contender saw it."""

    asked: float
    seconds: float


@dataclass(frozen=True)
class Round:
    """What one contestant did in one round."""

    per_second: float
    to_another: float  # share of grants that went to another contender than the one before
    in_turns: float  # share of grants that came in strict turns
    jain: float
    starved: int  # contenders that got nothing
    median_wait_ms: float
    longest_wait_ms: float
    gap_p50_us: float  # from before a release to after the next grant
    gap_p99_us: float
    commands: float  # sent by clients, an acquisition

    @property
    def longest_to_median(self) -> float:
        """The longest wait, in median waits."""
        return self.longest_wait_ms / self.median_wait_ms if self.median_wait_ms else float("nan")


def contend(
    pair: Pair, number: int, start: float, end: float, hold_s: float, notes: memoryview
) -> list[Wait]:
    """Take and give from ``start`` until ``end``, holding ``hold_s`` each time."""
    take, give = pair
    waits = []
    time.sleep(max(0.0, start - time.monotonic()))
    while (asked := time.monotonic()) < end:
        take()
        granted = time.monotonic_ns()
        row = notes[0]
        if row >= ROOM:
            give()
            raise OverflowError("more grants than the notes have room for")
        notes[0] = row + 1
        at = 1 + WORDS * row
        notes[at], notes[at + 1] = number, granted
        if hold_s:
            time.sleep(hold_s)
        notes[at + 2] = time.monotonic_ns()
        give()
        waits.append(Wait(asked, granted / 1e9 - asked))
    return waits


def read_notes(notes: memoryview) -> list[Grant]:
    """Return the grants in their order."""
    words = notes[1 : 1 + WORDS * notes[0]].tolist()
    return [
        Grant(words[at], words[at + 1] / 1e9, words[at + 2] / 1e9)
        for at in range(0, len(words), WORDS)
    ]


def judge(
    grants: Sequence[Grant],
    waits: Sequence[Sequence[Wait]],
    start: float,
    end: float,
    commands: int = 0,
) -> Round:
    """Say what the notes and the waits mean; the first part of the time does not count.

    A wait counts if it lasted into that time or began in it, also one that ended after the end.
    """
    opened = start + WARM_UP * (end - start)
    steady = [grant for grant in grants if opened <= grant.granted < end]
    members = len(waits)
    counts = [0] * members
    for grant in steady:
        counts[grant.number] += 1
    seconds = sorted(it.seconds for mine in waits for it in mine if it.asked + it.seconds >= opened)
    order = [grant.number for grant in steady]
    gaps = sorted(after.granted - before.releasing for before, after in pairwise(steady))
    return Round(
        per_second=len(steady) / (end - opened),
        to_another=_share([a != b for a, b in pairwise(order)]),
        in_turns=_share([a == b for a, b in zip(order, order[members:], strict=False)]),
        jain=jain(counts),
        starved=counts.count(0),
        median_wait_ms=statistics.median(seconds) * 1e3 if seconds else float("nan"),
        longest_wait_ms=seconds[-1] * 1e3 if seconds else float("nan"),
        gap_p50_us=percentile(gaps, 50) * 1e6,
        gap_p99_us=percentile(gaps, 99) * 1e6,
        commands=commands / len(grants) if grants else float("nan"),
    )


def jain(counts: Sequence[int]) -> float:
    """Return Jain's fairness index: 1 when all got the same, 1/n when one got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many per cent of the values do not exceed."""
    if not ordered:
        return float("nan")
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def median_of(rounds: Sequence[Round], field: str) -> float:
    """Return the median of one field over rounds."""
    return statistics.median(getattr(it, field) for it in rounds)


def median_quotient(mine: Sequence[Round], theirs: Sequence[Round], field: str) -> float:
    """Return the median of the quotients of neighbouring rounds."""
    return statistics.median(
        getattr(one, field) / (getattr(other, field) or float("nan"))
        for one, other in zip(mine, theirs, strict=True)
    )


def _share(truths: Sequence[bool]) -> float:
    return sum(truths) / len(truths) if truths else 0.0
