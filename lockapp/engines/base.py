"""Engine: what every lock engine is to the rest of lockapp.

An engine owns two kinds of port (blocking; one per event loop), a watchdog for each, and the
memory of what this process holds. What the ports can do is in :class:`lockapp.core.ports.StepPort`;
how it is put together in :mod:`lockapp.engines.procedures`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from lockapp.core.duration import to_ms
from lockapp.core.options import EngineOptions
from lockapp.core.ports import EnginePort
from lockapp.core.run import run_sync
from lockapp.core.values import (
    EventRecord,
    Forced,
    ForceOutcome,
    LockSpec,
    LockState,
    Snapshot,
    StreamIdentity,
)
from lockapp.engines import procedures
from lockapp.engines.clock import boot_clock
from lockapp.engines.health import Examination, Problem
from lockapp.engines.procedures import once_more
from lockapp.watchdog_task import TaskWatchdog
from lockapp.watchdog_thread import ThreadWatchdog

if TYPE_CHECKING:
    from lockapp.lease import Lease

Observer = Callable[[str, Any], None]


class Transactions(Protocol):
    """What an engine wants to know of the database transactions that are open in this thread.

    Neither function does I/O, waits, or takes longer than a look where no transaction is open.
    """

    def vet(self, name: str) -> None:
        """Warn if what an open one goes on reading is older than a lock taken now."""

    def put_off(self, lease: Lease) -> bool:
        """Have ``lease`` released when those that are open have ended; whether any is."""


class Engine(ABC):
    """A lock engine of one alias.

    Guarantee: safe to share between threads, event loops and across forks; nothing is connected
    before it is used, and a child process starts without its parent's connections and leases.
    """

    supports_fencing: bool = True  # each grant has a larger integer; may depend on options
    supports_events: ClassVar[bool] = True  # transitions are recorded with the step itself
    shared_between_processes: ClassVar[bool] = True  # others than this process see its locks
    supports_replica_acks: ClassVar[bool] = False  # has a lease count only when replicas have it
    events_in_process: ClassVar[bool] = False  # its events wait in this process to be stored
    supports_flights: ClassVar[bool] = True  # one computes and all others are told at once
    leases_outlive_process: ClassVar[bool] = True  # who has the token may end it elsewhere
    takes_several_locations: ClassVar[bool] = False  # LOCATION is a list of servers
    location_form: ClassVar[str] = (
        "redis://user:password@host:6379/0, rediss://…, unix:///path?db=0, "
        "redis+sentinel://host:26379,host2:26379/service/0 or redis+cluster://host:6379,host2:6379"
    )
    """What a LOCATION looks like, for an error message."""

    now = staticmethod(boot_clock)

    address: Any = None
    """Where its server is, as text without secrets; ``place`` of it says whether two are the same.
    None: its locks live in this process."""

    def __init__(self, alias: str, location: Any, options: EngineOptions) -> None:
        """Prepare the engine; nothing is connected.

        Raises:
            ValueError: the location makes no sense.
        """
        self.alias = alias
        self.location = location
        self.options = options
        self.observer: Observer | None = None
        self.transactions: Transactions | None = None
        self._start()
        _ENGINES.add(self)

    def _start(self) -> None:
        self.pid = os.getpid()
        self._held: dict[tuple[object, ...], weakref.ref[Lease]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, EnginePort] = {}
        self._sync: EnginePort | None = None
        # Reentrant: a finaliser or a signal handler may strike a thread that is in here.
        self._guard = threading.RLock()
        self._local: Engine | None = None
        self._closing = False  # whether the watchdog should end with the last lease, at once

    @property
    def doubt(self) -> str:
        """Why no lease can be vouched for just now; empty when each can, until its deadline."""
        return ""

    def vet(self, spec: LockSpec) -> None:  # noqa: B027 - most engines can
        """Refuse what this engine can't promise, where a lock is declared.

        Raises:
            ValueError: it can't; the message says what to do about it.
        """

    @abstractmethod
    def make_sync_port(self) -> EnginePort:
        """Make the blocking port."""

    @abstractmethod
    def make_async_port(self) -> EnginePort:
        """Make a port for the running event loop."""

    @property
    def sync(self) -> EnginePort:
        """The blocking port of this process."""
        return self._sync or self._make_sync()

    def _make_sync(self) -> EnginePort:
        with self._guard:
            if self._sync is None:
                port = self.make_sync_port()
                port.watchdog = ThreadWatchdog(port.for_watchdog(), self.alias)
                if self._sync is None:  # nobody came between
                    self._sync = port
            return self._sync

    def aio(self) -> EnginePort:
        """The port of the running event loop."""
        loop = asyncio.get_running_loop()
        port = self._loops.get(loop)
        if port is None:
            for closed in [known for known in self._loops if known.is_closed()]:
                del self._loops[closed]
            port = self.make_async_port()
            port.watchdog = TaskWatchdog(port.for_watchdog(), self.alias, self._inherit)
            self._loops[loop] = port
        return port

    def _inherit(self, undo: Any) -> None:
        self.sync.defer(undo)

    @property
    def local(self) -> Engine:
        """A hidden engine in this process's memory, for locks while this one can't be asked.

        The two remember together what this process holds, so that an owner is the same to both.
        """
        with self._guard:
            if self._local is None:
                from lockapp.engines.memory.engine import MemoryEngine
                from lockapp.engines.memory.server import MemoryServer

                options = replace(self.options, event_cap=1)  # nobody reads its events
                made = MemoryEngine(f"{self.alias} (local)", MemoryServer(), options)
                made._held = self._held
                made.observer = self.observe
                made.transactions = self.transactions
                if self._local is None:  # nobody came between
                    self._local = made
            return self._local

    def remember(self, lease: Lease, port: EnginePort) -> None:
        """Note that this process holds ``lease`` and have it looked after."""
        self._held[lease.key] = ref = weakref.ref(lease)
        port.watchdog.watch(lease, ref)
        self.observe("acquired", lease)

    def hold(self, lease: Lease) -> None:
        """Note that this process holds ``lease``, of which there is nothing to be looked after."""
        self._held[lease.key] = weakref.ref(lease)

    def forget(self, lease: Lease) -> None:
        """Note that ``lease`` is over. A later one of the same owner stays remembered."""
        ref = self._held.get(lease.key)
        if ref is not None and ref() in (lease, None):
            self._held.pop(lease.key, None)
        if self._closing and not self._held and self._sync is not None:
            self._sync.watchdog.hurry()

    def held_by(self, name: str, owner: object) -> Lease | None:
        """Return the live lease of ``name`` that ``owner`` (task or thread) has."""
        ref = self._held.get((name, owner))
        lease = None if ref is None else ref()
        return lease if lease is not None and lease.live else None

    def holds(self, name: str, owner: object) -> bool:
        """Whether ``owner`` (task or thread) has a live lease of ``name``, of whatever kind."""
        if self.held_by(name, owner) is not None:
            return True
        permits = [ref() for key, ref in list(self._held.items()) if key[:2] == (name, owner)]
        return any(lease is not None and lease.live for lease in permits)

    @property
    def leases(self) -> list[Lease]:
        """What this process holds of it, also what it does not know yet that it lost."""
        found = [ref() for ref in list(self._held.values())]
        return [lease for lease in found if lease is not None]

    @property
    def ports(self) -> list[EnginePort]:
        """The ports made so far: the blocking one and those of event loops."""
        return [port for port in (self._sync, *self._loops.values()) if port is not None]

    def observe(self, kind: str, subject: Any) -> None:
        """Tell the observer (Django's signals) of acquired, released, lost, contended, forced."""
        if self.observer is not None:
            self.observer(kind, subject)

    def after_fork(self) -> None:
        """Start anew in a forked child: the leases, connections and watchdog are the parent's."""
        _INHERITED.extend(port.forget() for port in self.ports)
        self._start()

    def close(self) -> None:
        """Close idle connections; the watchdog ends soon if nothing is held. May be used again."""
        self._closing = True
        if self._local is not None:
            self._local.close()
        if self._sync is not None:
            run_sync(self._sync.rest())
            self._sync.watchdog.hurry()

    async def aclose(self) -> None:
        """Close the idle connections of the running event loop."""
        port = self._loops.get(asyncio.get_running_loop())
        if port is not None:
            await port.rest()
            port.watchdog.hurry()

    def snapshot(self, offset: int = 0, count: int = 100) -> Snapshot:
        """Return one page of the locks that are held, earliest deadline first.

        Raises:
            EngineUnavailable: could not ask.
        """
        return run_sync(procedures.snapshot(self.sync, offset, count))

    async def asnapshot(self, offset: int = 0, count: int = 100) -> Snapshot:
        """See snapshot()."""
        return await procedures.snapshot(self.aio(), offset, count)

    def show(self, name: str) -> LockState | None:
        """Return one lock with its queue, or None while nobody holds it.

        Raises:
            EngineUnavailable: could not ask.
        """
        return run_sync(procedures.show(self.sync, name))

    async def ashow(self, name: str) -> LockState | None:
        """See show()."""
        return await procedures.show(self.aio(), name)

    def force_release(self, name: str, fence: int, *, actor: str, reason: str = "") -> ForceOutcome:
        """Take the lease with exactly this ``fence`` away from its holder.

        The holder learns it at its next renewal at the latest, and who did it and why. A second
        call, or one after the lock changed hands, changes nothing and says so.

        Raises:
            EngineUnavailable: could not ask; ask again, it is safe.
        """
        outcome = run_sync(self.sync.force_release(name, fence, actor, reason))
        return self._forced(outcome, Forced(name, fence, actor, reason))

    async def aforce_release(
        self, name: str, fence: int, *, actor: str, reason: str = ""
    ) -> ForceOutcome:
        """See force_release()."""
        outcome = await self.aio().force_release(name, fence, actor, reason)
        return self._forced(outcome, Forced(name, fence, actor, reason))

    def _forced(self, outcome: ForceOutcome, forced: Forced) -> ForceOutcome:
        if outcome is ForceOutcome.RELEASED:
            self.observe("forced", forced)
        return outcome

    def revoke(self, name: str, fence: int, *, actor: str, reason: str = "") -> ForceOutcome:
        """Ask the holder of exactly this ``fence`` to let go; it keeps the lease until it does.

        Its ``lease.revoke_requested`` becomes true and its ``on_revoke`` callbacks are called, at
        once if its notice channel is open, else at its next renewal.

        Raises:
            EngineUnavailable: could not ask; ask again, it is safe.
        """
        return run_sync(once_more(lambda: self.sync.revoke(name, fence, actor, reason)))

    async def arevoke(self, name: str, fence: int, *, actor: str, reason: str = "") -> ForceOutcome:
        """See revoke()."""
        return await once_more(lambda: self.aio().revoke(name, fence, actor, reason))

    def abandon(
        self, name: str, token: str, *, grace: float = 0, actor: str, reason: str = ""
    ) -> ForceOutcome:
        """End a lease whose holder is known to be dead, or cut it to ``grace`` seconds.

        Its renewals are refused from now on. Changes nothing when the token holds nothing.

        Raises:
            EngineUnavailable: could not ask; ask again, it is safe.
        """
        grace_ms = to_ms(grace, "grace", zero=True)
        return run_sync(once_more(lambda: self.sync.abandon(name, token, grace_ms, actor, reason)))

    async def aabandon(
        self, name: str, token: str, *, grace: float = 0, actor: str, reason: str = ""
    ) -> ForceOutcome:
        """See abandon()."""
        grace_ms = to_ms(grace, "grace", zero=True)
        return await once_more(lambda: self.aio().abandon(name, token, grace_ms, actor, reason))

    def sweep(self) -> int:
        """Reclaim every expired holder; return how many locks were."""
        return run_sync(procedures.sweep(self.sync))

    async def asweep(self) -> int:
        """See sweep()."""
        return await procedures.sweep(self.aio())

    def ping(self) -> None:
        """Ask whether the engine answers.

        Raises:
            EngineUnavailable: it does not.
        """
        run_sync(once_more(lambda: self.sync.ping()))

    async def aping(self) -> None:
        """See ping()."""
        await once_more(lambda: self.aio().ping())

    def problems(self) -> list[Problem]:
        """Ask the server, in one short visit, for what its own settings do to locks; never raises.

        A check asks it at each deployment: what only an operator wants to know is for examine().
        """
        return []

    def examine(self) -> Examination:
        """Ask the server for all that endangers locks on it; what fails is a finding."""
        return Examination()

    @property
    def shards(self) -> int:
        """How many event streams there are, numbered from 0."""
        return 1

    def read_events(
        self, shard: int = 0, after: str = "0-0", count: int = 1000
    ) -> list[EventRecord]:
        """Return up to ``count`` events after the stream id ``after``, oldest first."""
        return run_sync(once_more(lambda: self.sync.read_events(shard, after, count)))

    async def aread_events(
        self, shard: int = 0, after: str = "0-0", count: int = 1000
    ) -> list[EventRecord]:
        """See read_events()."""
        return await once_more(lambda: self.aio().read_events(shard, after, count))

    def trim_events(self, shard: int, through: str) -> None:
        """Drop the events up to and including ``through``; they have been stored elsewhere."""
        run_sync(once_more(lambda: self.sync.trim_events(shard, through)))

    async def atrim_events(self, shard: int, through: str) -> None:
        """See trim_events()."""
        await once_more(lambda: self.aio().trim_events(shard, through))

    def stream_identity(self, shard: int = 0) -> StreamIdentity:
        """Say which server's stream this is and how far it goes."""
        return run_sync(once_more(lambda: self.sync.stream_identity(shard)))

    async def astream_identity(self, shard: int = 0) -> StreamIdentity:
        """See stream_identity()."""
        return await once_more(lambda: self.aio().stream_identity(shard))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}>"


_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
_INHERITED: list[Any] = []
"""What a child got from its parent: kept, so that no finaliser speaks on the parent's sockets."""


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)
