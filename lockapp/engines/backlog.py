"""What is to be recorded once the server is back. Bounded, and says how much it had no room for.

Kept in memory: it ends with its process. What remains then is the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import groupby, islice

from lockapp.core.values import Degraded

MOST = 10_000
"""Reports kept: about 5 MB. More are counted."""
BATCH = 100
"""Reports recorded in one call."""


UNREPORTED = "unreported"
"""The mode of a report that tells how many there was no room for."""


class Backlog:
    """Reports that wait, oldest first. Adding never blocks for long, and never fails."""

    def __init__(self) -> None:
        # Reentrant: a signal handler that takes a lock may strike a thread that is in here.
        self._guard = threading.RLock()
        self._reports: deque[Degraded] = deque()
        self._dropped = 0
        self._dropped_ms = 0  # when the last one was

    def __bool__(self) -> bool:
        return bool(self._reports or self._dropped)

    def add(self, report: Degraded) -> None:
        """Keep ``report``, or count it when there are too many."""
        with self._guard:
            if len(self._reports) < MOST:
                self._reports.append(report)
            else:
                self._dropped += 1
                self._dropped_ms = report.at_ms

    def next(self, part_of: Callable[[str], int]) -> list[Degraded]:
        """Return what to record next in one call; it stays until it is :meth:`done`.

        Args:
            part_of: in which part of the engine a name is kept; a call is about one part.
        """
        with self._guard:
            parts = groupby(islice(self._reports, BATCH), lambda report: part_of(report.name))
            batch = next((list(reports) for _, reports in parts), [])
            if not batch and self._dropped:
                batch.append(Degraded("", UNREPORTED, self._dropped_ms, str(self._dropped), "{}"))
            return batch

    def done(self, batch: list[Degraded]) -> None:
        """Forget what has been recorded."""
        with self._guard:
            if batch[0].mode == UNREPORTED:
                self._dropped -= int(batch[0].reason)
            else:
                for _ in batch:
                    self._reports.popleft()
