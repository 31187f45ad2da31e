"""The events of this process, for engines whose servers keep none that could be told in order.

On ZooKeeper none is written with a step; of Redlock each node knows its own part only.
"""

from __future__ import annotations

import os
import secrets
import threading

from lockapp.core.values import EventRecord, StreamIdentity
from lockapp.engines.clock import steady_clock_us
from lockapp.engines.events import EventLog


class SharedLog:
    """One log for all engines of this process that name the same place."""

    def __init__(self) -> None:
        self._clock_us = steady_clock_us()
        self.start_empty()

    def start_empty(self) -> None:
        """Forget what a parent process recorded: that is the parent's to store."""
        self._guard = threading.Lock()
        self._log = EventLog(server=secrets.token_hex(20))

    def add(self, kind: str, name: str, fence: int, detail: dict[str, str], cap: int) -> None:
        """Record one transition and forget the oldest ones beyond ``cap``."""
        with self._guard:
            self._log.add(kind, name, fence, self._clock_us(), detail, cap)

    def after(self, event_id: str, count: int) -> list[EventRecord]:
        """Return up to ``count`` events after ``event_id``, oldest first."""
        with self._guard:
            return self._log.after(event_id, count)

    def trim(self, through: str) -> None:
        """Forget the events up to and including ``through``."""
        with self._guard:
            self._log.trim(through)

    def identity(self) -> StreamIdentity:
        """Say whose log this is and how far it goes."""
        with self._guard:
            return self._log.identity()


_LOGS: dict[tuple[str, ...], SharedLog] = {}


def log_of(*place: str) -> SharedLog:
    """Return this process's log for a place: the same for every engine that names it."""
    # setdefault is atomic: two threads that come first get the same one.
    return _LOGS.setdefault(place, SharedLog())


def _after_fork() -> None:
    for log in _LOGS.values():
        log.start_empty()


os.register_at_fork(after_in_child=_after_fork)
