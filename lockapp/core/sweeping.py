"""Which part of an engine to ask next for leases that ran out: pure, the clock is passed in.

A part is asked when a lease of this process ran out there, or a renewal told that others have;
and now and then for leases of dead processes, of which nobody tells. An engine of many parts (the
shards of a Cluster) is asked for some of them at a time, a part a turn.
"""

from __future__ import annotations

AFTER_S = 0.1
"""After a lease of ours ran out, the server is asked to reclaim it."""
LOOK_EVERY_S = 5.0
"""So often, at most, the server is asked for leases of dead processes; renewals ask as well."""
LOOK_PARTS = 16
"""Of an engine of many parts, so many are asked at a time: a request each."""


class Sweeps:
    """What is to be asked. Used by one thread or task alone."""

    def __init__(self, parts: int, first: int) -> None:
        """Begin.

        Args:
            parts: how many the engine has.
            first: where the first tour begins: not at the same one in every process.
        """
        self._parts = parts
        self._first = first
        self._suspects: set[int] = set()
        self._suspects_at = float("inf")
        self._planned: list[int] = []
        self.look_at = 0.0
        """When parts are looked at of which nothing is known. Nobody is woken for that."""

    def suspect(self, part: int, at: float) -> None:
        """Note that leases of a part have run out, and are to be reclaimed from ``at`` on."""
        self._suspects.add(part)
        self._suspects_at = min(self._suspects_at, at)

    def asked(self, now: float) -> None:
        """Note that a part has told by itself what ran out there."""
        if self._parts == 1:  # else it has told of one of many
            self.look_at = now + LOOK_EVERY_S

    def next(self, now: float) -> int | None:
        """Return which part to ask now, None when none is due."""
        if now >= self._suspects_at:
            self._planned += self._suspects
            self._suspects.clear()
            self._suspects_at = float("inf")
        if now >= self.look_at and not self._planned:
            count = min(LOOK_PARTS, self._parts)
            self._planned = [(self._first + nth) % self._parts for nth in range(count)]
            self._first = (self._first + count) % self._parts
            self.look_at = now + LOOK_EVERY_S
        if not self._planned:
            return None
        self.asked(now)
        return self._planned.pop()

    def due(self, now: float) -> float:
        """Return when to ask for the next one: infinity when nothing is to be asked."""
        return now if self._planned else self._suspects_at
