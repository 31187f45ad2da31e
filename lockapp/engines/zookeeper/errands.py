"""The thread of a session: does what it is given, one thing after the other, now or at a time."""

from __future__ import annotations

import heapq
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from lockapp.engines.clock import boot_clock

logger = logging.getLogger("lockapp")

LINGER_S = 5.0
"""How long a session without nodes and requests waits for more before it is closed."""


class Errands(ABC):
    """A thread that is there while it is needed, and for a while after that."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._later = 0  # how many deferred calls must be made before it may end
        self._idle_since: float | None = None
        self._hurried = False

    def call(self, function: Callable[[], None]) -> None:
        """Have the thread call ``function`` soon, in the order of the calls."""
        self._calls.put(function)
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    threading.Thread(
                        target=self._run, name=f"lockapp-zookeeper-{self.alias}", daemon=True
                    ).start()

    def rest(self) -> None:
        """End as soon as nothing needs the session, without lingering."""
        self._hurried = True
        if self._thread is not None:
            self.call(lambda: None)

    # -------------------------------------------------------------- what the session says

    @property
    @abstractmethod
    def _kept(self) -> bool:
        """Whether something needs the session that only somebody else can end."""

    @property
    @abstractmethod
    def _under_way(self) -> bool:
        """Whether something is not done yet that will be, soon."""

    @abstractmethod
    def _next(self) -> float | None:
        """Return when :meth:`_look_round` has something to do."""

    @abstractmethod
    def _look_round(self, now: float) -> None:
        """Do what time has made due."""

    @abstractmethod
    def _close(self) -> None:
        """End the session."""

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        with self._guard:
            # A thread enters itself: a signal may interrupt start(), and it may run all the same.
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        while True:
            try:
                call = self._calls.get(timeout=self._pause_s())
            except queue.Empty:
                pass
            else:
                self._guarded(call)
            now = boot_clock()
            while self._due and self._due[0][0] <= now:
                self._guarded(heapq.heappop(self._due)[2])
            self._guarded(lambda now=now: self._look_round(now))  # type: ignore[misc]
            if self._may_end(now):
                return

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("lock engine %r: a step of the session failed", self.alias)

    def _pause_s(self) -> float:
        now = boot_clock()
        times = [now + LINGER_S]
        if self._due:
            times.append(self._due[0][0])
        if (at := self._next()) is not None:
            times.append(at)
        if self._hurried and not (self._kept or self._later):
            times.append(now + 0.02 if self._under_way else now)
        return max(min(times) - now, 0.0)

    def _may_end(self, now: float) -> bool:
        if self._kept or self._later or self._under_way:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        if not self._hurried and now < self._idle_since + LINGER_S:
            return False
        if not self._calls.empty():
            return False
        self._due.clear()
        self._hurried, self._idle_since = False, None
        self._close()
        with self._guard:
            thread, self._thread = self._thread, None
            if not self._calls.empty() and self._thread is None:
                self._thread = thread
                return False
        return True

    def _at(self, at: float, call: Callable[[], None]) -> None:
        """Call it then, unless the session has ended. For the thread itself, as what follows."""
        heapq.heappush(self._due, (at, next(self._order), call))

    def _defer(self, at: float, call: Callable[[], None]) -> None:
        """Call it then, and don't end before that."""

        def then() -> None:
            self._later -= 1
            call()

        self._later += 1
        self._at(at, then)
