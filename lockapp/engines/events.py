"""Events that no server keeps: a log in this process, numbered densely, capped, in nobody's way.

For engines without a stream. What leaves it unread has used up its number, so that whoever stores
the rest sees how many are missing.
"""

from __future__ import annotations

from collections import deque

from lockapp.core.values import EventRecord, StreamIdentity


def position(event_id: str) -> tuple[int, int]:
    """Return an id (milliseconds, dash, count within them) in comparable form."""
    at_ms, _, nth = event_id.partition("-")
    return int(at_ms), int(nth or 0)


class EventLog:
    """Events in the order of the transitions they record.

    Used under the guard of whoever owns it. Adding can't fail, and an exception that strikes in
    the middle of it (Ctrl-C, a soft time limit) has used up the number, so that a reader sees the
    gap.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.last_number = 0
        self.entries: deque[EventRecord] = deque()
        self._last_id = "0-0"

    def add(
        self, kind: str, name: str, fence: int, at_us: int, detail: dict[str, str], cap: int
    ) -> None:
        """Record one transition and forget the oldest ones beyond ``cap``."""
        self.last_number += 1
        entry = EventRecord(
            shard=0, id=self._next_id(at_us // 1000), number=self.last_number,
            kind=kind, name=name, fence=fence, at_us=at_us, detail=detail,
        )  # fmt: skip
        self.entries.append(entry)
        while len(self.entries) > cap:
            self.entries.popleft()

    def _next_id(self, at_ms: int) -> str:
        """Ids follow the clock, so that those of the next process come after these."""
        last_ms, nth = position(self._last_id)
        self._last_id = f"{at_ms}-0" if at_ms > last_ms else f"{last_ms}-{nth + 1}"
        return self._last_id

    def after(self, event_id: str, count: int) -> list[EventRecord]:
        """Return up to ``count`` events after ``event_id``, oldest first."""
        start = position(event_id)
        found = (entry for entry in self.entries if position(entry.id) > start)
        return [entry for entry, _ in zip(found, range(count), strict=False)]

    def trim(self, through: str) -> None:
        """Forget the events up to and including ``through``."""
        end = position(through)
        while self.entries and position(self.entries[0].id) <= end:
            self.entries.popleft()

    def identity(self) -> StreamIdentity:
        """Say whose log this is and how far it goes."""
        return StreamIdentity(self.server, self._last_id, self.last_number)
