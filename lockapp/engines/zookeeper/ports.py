"""The two ports: how a thread and how a task waits for the session's answers.

A task needs no thread: the answer, which comes in a thread of the client's, is handed over to its
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from lockapp.core.flight import Landing
from lockapp.core.options import EngineOptions
from lockapp.core.values import EventRecord, GrantMessage, StreamIdentity, Undo
from lockapp.engines.clock import boot_clock
from lockapp.engines.subscription import TaskSubscription, ThreadSubscription
from lockapp.engines.zookeeper.errors import unavailable
from lockapp.engines.zookeeper.listing import Listing
from lockapp.engines.zookeeper.operators import Operators
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.session import Session
from lockapp.engines.zookeeper.steps import Steps


class ThreadAnswer:
    """Something that a thread waits for once. A bare lock: no interrupt can leave it half taken."""

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()

    def ring(self) -> None:
        """Let the one who waits go on. Any thread, any number of times."""
        with contextlib.suppress(RuntimeError):  # rung before
            self._latch.release()

    async def wait(self, timeout_s: float) -> bool:
        """Block this thread until it rings; False when it does not within ``timeout_s``."""
        return self._latch.acquire(timeout=timeout_s)


class LoopAnswer:
    """Something that a task waits for once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        """See ThreadAnswer."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        """Suspend this task until it rings; False when it does not within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class ZooKeeperPort(Steps, Operators, Listing):
    """An :class:`~lockapp.core.ports.EnginePort` on a session."""

    make_answer: ClassVar[Callable[[], ThreadAnswer | LoopAnswer]]
    watchdog: Any

    def __init__(self, session: Session, options: EngineOptions, alias: str) -> None:
        self.session = session
        self.options = options
        self.alias = alias

    def now(self) -> float:
        """See StepPort."""
        return boot_clock()

    def for_watchdog(self) -> Self:
        """See EnginePort. The client connects by itself: there is nobody to be refused."""
        return self

    def forget(self) -> object:
        """See EnginePort."""
        return self.session

    def defer(self, undo: Undo) -> None:
        """See StepPort."""
        self.watchdog.defer(undo)

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """See StepPort."""

    async def rest(self) -> bool:
        """See StepPort. The session closes when nobody in the process needs it."""
        self.session.rest()
        return True

    async def ask(self, *requests: Request) -> Batch:
        """Send requests together and wait for all the answers.

        Raises:
            EngineUnavailable: the engine could not be asked, or refused.
        """
        answer = type(self).make_answer()
        batch = Batch(requests, lambda _: answer.ring())
        self.session.send(batch)
        limit_s = (self.options.connect_timeout_ms + self.options.command_timeout_ms) / 1000
        try:
            answered = await answer.wait(limit_s)
        except BaseException:
            batch.dropped = True
            raise
        if not answered:
            batch.dropped = True
            raise unavailable(self.alias, "timeout" if batch.sent else "connect")
        if batch.failure is not None:
            raise batch.failure
        return batch

    async def ping(self) -> None:
        """See EnginePort."""
        await self.ask(Request.exists("/"))

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> GrantMessage | None:
        """See StepPort. A node that goes is a reason to ask again; it grants nothing."""
        node = self.session.tokens.nodes.get(token)
        if node is None:
            return None
        answer, paths = type(self).make_answer(), node.watched
        self.session.watch(node, answer.ring)
        try:
            await answer.wait(timeout_s)
        finally:
            self.session.unwatch(paths, answer.ring)
        return None

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """See EnginePort. There is one shard: this process's log."""
        return self.session.log.after(after, count)

    async def trim_events(self, shard: int, through: str) -> None:
        """See EnginePort."""
        self.session.log.trim(through)

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """See EnginePort."""
        return self.session.log.identity()

    async def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """See EnginePort. Refused where it is declared."""
        raise NotImplementedError

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        """See EnginePort. Refused where it is declared."""
        raise NotImplementedError


class SyncZooKeeperPort(ZooKeeperPort):
    """The blocking port: waits in the calling thread."""

    make_answer = ThreadAnswer

    async def listen(self) -> ThreadSubscription:
        """See WatchPort."""
        self.session.listen(self.watchdog)
        return ThreadSubscription(self.session.listeners, self.watchdog)

    async def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - run_sync() completes it in one step, by design


class AsyncZooKeeperPort(ZooKeeperPort):
    """The port of one event loop."""

    make_answer = LoopAnswer

    async def listen(self) -> TaskSubscription:
        """See WatchPort."""
        self.session.listen(self.watchdog)
        return TaskSubscription(self.session.listeners, self.watchdog)

    async def sleep(self, seconds: float) -> None:
        """Suspend this task."""
        await asyncio.sleep(seconds)
