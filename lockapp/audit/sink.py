"""Events that no server keeps → rows: a thread stores what an engine left in this process.

Theory of operation
-------------------
An engine without a stream appends each event to a log in its process, which is bounded: beyond
``event_cap`` the oldest leave it. The thread collects from there as a collector does from a
server: by number, in one transaction with the cursor, dropping from the log after the commit. The
cursor is the process's own; it shows that the process lives, and whether it ended in order. So:

* while the database fails or is locked, the log fills and locks do not notice. What had to leave
  it shows as a gap with its number as soon as storing works again;
* nothing is stored twice, and nothing that is in the log is left out;
* what a process has not stored when it is killed is lost. That is what a server's stream does
  better: here the event is not part of the step that it tells of. When nothing was heard of a
  process for :data:`SILENT_S`, and it had not ended in order, the sinks of others make that a gap
  without a number.

Never started by itself: a process that is to have one starts it, after it was forked.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from django.db import DatabaseError, close_old_connections, connections, router
from django.db.models import QuerySet
from django.utils import timezone

from lockapp.audit import collector, event
from lockapp.core.values import StreamIdentity
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError
from lockapp.handler import locks
from lockapp.models import EventCursor, LockEvent

logger = logging.getLogger("lockapp")

LONGEST_PAUSE_S = 30.0
"""Between two rounds while the database fails."""
SIGN_S = 60.0
"""Between two signs of life."""
SILENT_S = 24 * 3600.0
"""After so long without a sign of life a process is taken for dead."""


class EventSink:
    """Stores the events of this process's engines that have no stream, in a thread of its own.

    Guarantee: never in a lock's way. Context manager: starts it and stops it.

    Args:
        interval: seconds between two rounds.
    """

    def __init__(self, interval: float = 1.0) -> None:
        self._interval_s = self._pause_s = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._stored: dict[str, list[StreamIdentity]] = {}
        self._signed = float("-inf")
        self._failed = False

    def start(self) -> Self:
        """Start the thread, which ends with the interpreter at the latest.

        A second call does nothing; in a forked child it starts the child's.
        """
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            self._signed = float("-inf")
            self._thread = threading.Thread(target=self._run, name="lockapp-sink", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        return self

    def stop(self, limit: float = 5.0) -> bool:
        """Store what is left and end the thread; return whether all of it was stored.

        A second call does nothing.

        Args:
            limit: seconds to wait for the database; after that the thread ends with the process.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        atexit.unregister(self.stop)
        self._stop.set()
        thread.join(limit)
        return not thread.is_alive() and not self._failed

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        last = False
        try:
            while not last:
                last = self._stop.wait(self._pause_s)
                close_old_connections()
                self._round(last)
                self._pause_s = (
                    min(self._pause_s * 2, LONGEST_PAUSE_S) if self._failed else self._interval_s
                )
        finally:
            connections.close_all()

    def _round(self, last: bool) -> None:
        sign = time.monotonic() - self._signed >= SIGN_S
        self._failed = False
        for engine in locks.all(initialized_only=True):
            if engine.events_in_process:
                try:
                    self._store(engine)
                    if last or sign:
                        _sign(engine, ended=last)
                except (EngineError, DatabaseError) as error:
                    logger.warning("could not store lock events of %s: %s", engine.alias, error)
                    self._failed = True
        if sign and not self._failed:
            self._signed = time.monotonic()

    def _store(self, engine: Engine) -> None:
        """Collect; the database is left alone while nothing happens."""
        engine.sweep()
        here = [engine.stream_identity(shard) for shard in range(engine.shards)]
        if here != self._stored.get(engine.alias):
            collector.collect(engine)
            self._stored[engine.alias] = here


def _cursors(engine: Engine, *, own: bool) -> QuerySet[EventCursor]:
    """Return how far this process's log has been stored, or those of all others."""
    rows = EventCursor.objects.using(router.db_for_write(LockEvent)).filter(alias=engine.alias)
    keys = [collector.cursor_key(engine, shard) for shard in range(engine.shards)]
    return rows.filter(key__in=keys) if own else rows.exclude(key__in=keys)


def _sign(engine: Engine, *, ended: bool) -> None:
    """Give a sign of life, or the last one, and look who has not for long."""
    now = timezone.now()
    _cursors(engine, own=True).update(stored_at=now, ended=ended)
    silent = _cursors(engine, own=False).filter(stored_at__lt=now - timedelta(seconds=SILENT_S))
    for cursor in silent:
        collector.give_up(cursor, event.ENDED)
