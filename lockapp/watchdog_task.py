"""The watchdog of a running event loop: a task; what it does is in :mod:`lockapp.watchdog`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lockapp.core.ports import TaskNotices, WatchPort
from lockapp.core.values import Undo
from lockapp.exceptions import EngineError
from lockapp.watchdog import Watchdog

logger = logging.getLogger("lockapp")


class TaskWatchdog(Watchdog[TaskNotices]):
    """A watchdog that is a task of one event loop, and sees to that loop's end.

    When the loop cancels it, what is left to undo goes to ``heir`` (the thread watchdog), and the
    loop's connections are closed.
    """

    def __init__(
        self, port: WatchPort[TaskNotices], alias: str, heir: Callable[[Undo], None]
    ) -> None:
        super().__init__(port, alias)
        self._heir = heir
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def notice(self, name: str) -> None:
        """See Watchdog.notice()."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(super().notice, name)

    async def _hear(self) -> None:
        await super()._hear()
        if self.notices is not None and self._ear is None:
            self._ear = self._start(self._listen(self.notices), f"{self.name}-ear")

    async def _listen(self, notices: TaskNotices) -> None:
        try:
            while True:
                self._noticed.extend(await notices.next())
                self._event.set()
        except EngineError as error:
            self._deaf = True
            logger.debug("%s: the notice channel broke: %s", self.name, error)
            await notices.close()
            self.notices = self._ear = None
            self._event.set()  # or it would sleep on until a renewal is due

    async def _stop_hearing(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.cancel()
        await super()._stop_hearing()

    def defer(self, undo: Undo) -> None:
        """See Watchdog.defer(). A loop that is being shut down would not run a new task."""
        if self._task is None or self._loop.is_closed():
            self._heir(undo)
        else:
            super().defer(undo)

    def wake(self) -> None:
        """See Watchdog.wake(). Starts the task when there is none."""
        self._event.set()
        if self._task is None:
            self._task = self._start(self._run(), self.name)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        # Who drops a loop need not hear of tasks that he did not start: nothing of them is lost.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    async def _run(self) -> None:
        try:
            await self.live()
        except asyncio.CancelledError:  # the loop ends
            await self._stop_hearing()
            await self.port.rest()
            raise
        finally:  # also when the loop was dropped with this task in it: nothing to await then
            self._task = None
            while self._undo:
                self._heir(self._undo.popleft()[0])

    def ring(self) -> None:
        """See Watchdog.ring()."""
        if self._task is not None:
            self._event.set()

    async def pause(self, seconds: float) -> None:
        """See Watchdog.pause()."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()

    def may_end(self) -> bool:
        """See Watchdog.may_end()."""
        return not self.has_work()
