"""The ports of the memory engine: the server's steps called directly, and two ways to block.

Both ports talk to one server, so threads and tasks of any number of loops exclude each other and
stand in one queue; a grant may come from any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from lockapp.core.options import EngineOptions
from lockapp.core.values import (
    AllGranted,
    Busy,
    Degraded,
    EventRecord,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    GrantMessage,
    LockSpec,
    LockState,
    Queued,
    Refused,
    Released,
    RenewItem,
    RenewReply,
    StreamIdentity,
    Undo,
)
from lockapp.engines.memory.flights import FlightPort
from lockapp.engines.memory.records import Inbox
from lockapp.engines.memory.server import MemoryServer
from lockapp.engines.subscription import TaskSubscription, ThreadSubscription
from lockapp.process import note_of


class ThreadInbox:
    """An inbox on which a thread blocks."""

    closed = False  # a thread that waits can't end before it has its answer

    def __init__(self) -> None:
        self._filled = threading.Event()
        self._grant: GrantMessage | None = None

    def put(self, grant: GrantMessage) -> None:
        """See Inbox."""
        self._grant = grant
        self._filled.set()

    def ring(self) -> None:
        """See Inbox."""
        self._filled.set()

    async def wait(self, timeout_s: float) -> GrantMessage | None:
        """Block this thread until there is a grant or a ring, at most ``timeout_s``."""
        self._filled.wait(timeout_s)
        if self._grant is None:
            self._filled.clear()
        return self._grant


class LoopInbox:
    """An inbox on which a task of one event loop waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._grant: GrantMessage | None = None

    @property
    def closed(self) -> bool:
        """See Inbox."""
        return self._loop.is_closed()

    def put(self, grant: GrantMessage) -> None:
        """See Inbox. A loop that was closed a moment ago lets the claim lapse."""
        self._grant = grant
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._filled.set)

    def ring(self) -> None:
        """See Inbox."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._filled.set)

    async def wait(self, timeout_s: float) -> GrantMessage | None:
        """Suspend this task until there is a grant or a ring, at most ``timeout_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        if self._grant is None:
            self._filled.clear()
        return self._grant


class MemoryPort(FlightPort, ABC):
    """An :class:`~lockapp.core.ports.EnginePort` on a server in this process."""

    make_inbox: ClassVar[type[ThreadInbox] | type[LoopInbox]]
    watchdog: Any

    def __init__(self, server: MemoryServer, options: EngineOptions, alias: str) -> None:
        self.server = server
        self.now = server.now
        self.options = options
        self.alias = alias

    def for_watchdog(self) -> Self:
        """See EnginePort. Nobody is refused."""
        return self

    def defer(self, undo: Undo) -> None:
        """See StepPort."""
        self.watchdog.defer(undo)

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """See StepPort."""

    async def rest(self) -> bool:
        """There are no connections to close."""
        return True

    def forget(self) -> object:
        """There are no connections to give up."""
        return None

    async def ping(self) -> None:
        """This process always answers itself."""

    async def acquire(
        self, spec: LockSpec, token: str, description: str, *, queue: bool
    ) -> Granted | Queued | Busy | Refused:
        """See StepPort."""
        make_inbox = self.make_inbox if queue else None
        return self.server.acquire(self.options, spec, token, description, make_inbox)

    async def acquire_all(
        self, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
    ) -> AllGranted | Busy:
        """See StepPort."""
        return self.server.acquire_all(self.options, specs, tokens, description)

    def together(self, names: Sequence[str]) -> bool:
        """See StepPort. There is one shard."""
        return True

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> GrantMessage | None:
        """See StepPort. Returns at once when the token does not wait (any more): ask again."""
        inbox: Inbox | None = self.server.inbox(name, token)
        if not isinstance(inbox, ThreadInbox | LoopInbox):
            return None
        return await inbox.wait(timeout_s)

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Released | Gone:
        """See StepPort."""
        return self.server.release(self.options, name, token, tombstone=tombstone, why=why)

    async def cancel(self, name: str, token: str, *, tombstone: bool) -> Granted | GaveUp | Gone:
        """See StepPort."""
        return self.server.cancel(self.options, name, token, tombstone=tombstone)

    parts = 1

    def part_of(self, name: str) -> int:
        """See StepPort."""
        return 0

    async def renew(self, leases: Sequence[RenewItem], part: int = 0) -> RenewReply:
        """See StepPort."""
        return self.server.renew(self.options, leases)

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """See StepPort."""
        return self.server.downgrade(self.options, name, token, weight, ttl_ms)

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        return self._tell(name, self.server.force_release(self.options, name, fence, note))

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        asked_ms = str(self.server.clock_us() // 1000)
        note = note_of(actor=actor, reason=reason, asked_ms=asked_ms)
        return self._tell(name, self.server.revoke(self.options, name, fence, note))

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        return self._tell(name, self.server.abandon(self.options, name, token, grace_ms, note))

    def _tell(self, name: str, outcome: ForceOutcome) -> ForceOutcome:
        if outcome in (ForceOutcome.RELEASED, ForceOutcome.ASKED):
            self.server.tell(name)
        return outcome

    async def sweep(self, names: Sequence[str], part: int = 0) -> int:
        """See StepPort."""
        return self.server.sweep(self.options, names)

    async def report(self, reports: Sequence[Degraded]) -> None:
        """See StepPort. Nobody has anything to report: this process always answers itself."""

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """See StepPort."""
        return self.server.page(offset, count)

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """See StepPort."""
        return self.server.inspect(names, waiters=waiters)

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """See EnginePort. There is one shard."""
        return self.server.read_events(after, count)

    async def trim_events(self, shard: int, through: str) -> None:
        """See EnginePort."""
        self.server.trim_events(through)

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """See EnginePort."""
        return self.server.stream_identity()


class SyncMemoryPort(MemoryPort):
    """The blocking port: waits in the calling thread."""

    make_inbox = ThreadInbox

    async def listen(self) -> ThreadSubscription:
        """See WatchPort."""
        return ThreadSubscription(self.server.listeners, self.watchdog)

    async def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - run_sync() completes it in one step, by design


class AsyncMemoryPort(MemoryPort):
    """The port of one event loop."""

    make_inbox = LoopInbox

    async def listen(self) -> TaskSubscription:
        """See WatchPort."""
        return TaskSubscription(self.server.listeners, self.watchdog)

    async def sleep(self, seconds: float) -> None:
        """Suspend this task."""
        await asyncio.sleep(seconds)
