"""A notice channel without a wire: whoever has something to tell wakes the watchdog itself."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any


class Subscription:
    """A watchdog that is told directly, from now until it is closed."""

    stale = False

    def __init__(self, listeners: weakref.WeakSet[Any], watchdog: Any) -> None:
        self._listeners = listeners
        self._watchdog = watchdog
        listeners.add(watchdog)

    async def close(self) -> None:
        """See Notices."""
        self._listeners.discard(self._watchdog)


class ThreadSubscription(Subscription):
    """The subscription of a thread, which has nothing to wait on: it is woken."""

    def fileno(self) -> int:
        """See ThreadNotices."""
        return -1

    def read(self) -> list[str]:
        """See ThreadNotices."""
        return []


class TaskSubscription(Subscription):
    """The subscription of a task, which has nothing to await: it is woken."""

    async def next(self) -> list[str]:
        """See TaskNotices. Suspends until it is cancelled."""
        await asyncio.Event().wait()
        return []
