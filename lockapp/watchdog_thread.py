"""The watchdog of a process: a daemon thread; what it does is in :mod:`lockapp.watchdog`.

This one also records what ran without locks while the server could not be asked, once it can.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading

from lockapp.core.ports import ThreadNotices, WatchPort
from lockapp.core.run import run_sync
from lockapp.core.values import Degraded
from lockapp.engines.backlog import Backlog
from lockapp.exceptions import EngineError, EngineUnavailable
from lockapp.watchdog import Watchdog

logger = logging.getLogger("lockapp")

REPORT_AGAIN_S = 1.0
"""How soon what could not be recorded is tried again. Renewals and undoing are more urgent."""


class Bell:
    """A bell that any thread, finaliser or signal handler may ring; one thread waits for it.

    Its files are open from the first :meth:`wait` to :meth:`close`, and no finaliser closes them.
    When the garbage collector finds an engine together with a lease that has to be undone, it
    finalises both in any order, and the undoing still needs a bell that works.
    """

    def __init__(self) -> None:
        # Reentrant: a finaliser or a signal handler may ring in a thread that is in here.
        self._guard = threading.RLock()
        self._out = self._in = -1

    def ring(self) -> None:
        """Wake who waits, or who will wait next."""
        with self._guard, contextlib.suppress(BlockingIOError):  # full of rings nobody has heard
            if self._in >= 0:
                os.write(self._in, b".")

    def wait(self, seconds: float, beside: int) -> bool:
        """Wait for a ring or for ``beside`` (a file number, or -1); say whether it was that.

        The first call returns at once: nobody could ring before it.

        Raises:
            OSError: this process has no file numbers left.
        """
        if self._in < 0:
            self._open()
            return False
        poller = select.poll()
        poller.register(self._out, select.POLLIN)
        if beside >= 0:
            poller.register(beside, select.POLLIN)
        ready = [number for number, _ in poller.poll(max(seconds, 0.0) * 1000)]
        if self._out in ready:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(self._out, 4096)) == 4096:
                    pass
        return beside in ready

    def _open(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        with self._guard:
            self._out, self._in = reader, writer

    def close(self) -> None:
        """Close the files. Nobody waits any more; who rings is not heard."""
        with self._guard:
            numbers, self._out, self._in = (self._out, self._in), -1, -1
            for number in numbers:
                if number >= 0:
                    os.close(number)


class ThreadWatchdog(Watchdog[ThreadNotices]):
    """A watchdog that is a daemon thread. Ends by itself when there is nothing to do."""

    def __init__(self, port: WatchPort[ThreadNotices], alias: str) -> None:
        super().__init__(port, alias)
        # Both may be reached from a finaliser that runs while this very thread is inside them: an
        # Event could not be, a bell can, and it can be waited on together with the notices.
        self._bell = Bell()  # the present thread's
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._backlog = Backlog()
        self._report_at = 0.0

    def report(self, degraded: Degraded) -> None:
        """Record it when the server can be asked. Never blocks, never fails."""
        self._backlog.add(degraded)
        self.wake()

    def has_work(self) -> bool:
        """See Watchdog.has_work()."""
        return super().has_work() or bool(self._backlog)

    async def round(self) -> float | None:
        """See Watchdog.round()."""
        due = await super().round()
        if self._backlog and self.port.now() >= self._report_at:
            await self._record()
        if not self._backlog:
            return due
        return self._report_at if due is None else min(due, self._report_at)

    async def _record(self) -> None:
        while batch := self._backlog.next(self.port.part_of):
            try:
                await self.port.report(batch)
            except EngineUnavailable as error:
                logger.debug("%s: can't record what ran without locks yet: %s", self.name, error)
                self._report_at = self.port.now() + REPORT_AGAIN_S
                return
            except EngineError:
                logger.exception("%s: could not record what ran without locks", self.name)
            self._backlog.done(batch)

    def wake(self) -> None:
        """See Watchdog.wake(). Starts the thread when there is none.

        Not while the interpreter ends: start() would wait for ever for a thread that gets no turn.
        """
        self._bell.ring()
        if self._thread is None and not sys.is_finalizing():
            with self._guard:
                if self._thread is None:
                    threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        # A thread enters itself, since a signal may interrupt start() so that it never runs, or
        # runs although start() failed. (is_alive() is no help: interrupted, it ends the thread.)
        with self._guard:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
            self._bell = bell = Bell()
        try:
            run_sync(self.live())
        except BaseException:  # of a callback: whomever it is meant for, it is not this thread
            logger.exception("%s: interrupted by a callback, another one goes on", self.name)
            self._thread = None
            self.wake()
        finally:
            bell.close()

    def ring(self) -> None:
        """See Watchdog.ring()."""
        if self._thread is not None:
            self._bell.ring()

    async def pause(self, seconds: float) -> None:
        """See Watchdog.pause()."""
        told = self.notices
        if self._bell.wait(seconds, -1 if told is None else told.fileno()) and told is not None:
            try:
                self._noticed.extend(told.read())
            except EngineError as error:
                self._deaf = True
                logger.debug("%s: the notice channel broke: %s", self.name, error)
                await self._stop_hearing()

    def may_end(self) -> bool:
        """See Watchdog.may_end()."""
        with self._guard:
            # First of all, so that what is handed in after the look at has_work() starts another.
            thread, self._thread = self._thread, None
            if self.has_work() and self._thread is None:
                self._thread = thread
                return False
            return True  # nothing to do, or a finaliser has just started another
