"""The ports: all that a procedure may touch of the world.

Every method is ``async def`` except :meth:`~StepPort.now` and :meth:`~StepPort.defer`. A blocking
port never really suspends (see ``run_sync``); an asynchronous one does. Each step is **one
server-side step that compares the token** (promise P2).

Contract of every step:

* raises :class:`~lockapp.exceptions.EngineUnavailable` with its ``reason`` when no answer came;
  ``error.sent`` then says whether the step may have been carried out all the same;
* asking again with the same token is safe;
* an exception of any other kind (cancellation, KeyboardInterrupt, SoftTimeLimitExceeded) may
  arrive at any moment and leaves the port usable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from lockapp.core.flight import Landing
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

EVERY_LOCK = ""
"""A notice in place of a name: the channel is open from now on, and what was told before is missed.
"""


class Notices(Protocol):
    """A process's notice channel. A notice is a hint; the next renewal is the truth."""

    @property
    def stale(self) -> bool:
        """Whether it listens to a server that locks are known to have moved from."""
        ...

    async def close(self) -> None:
        """Close the channel."""
        ...


N_co = TypeVar("N_co", bound=Notices, covariant=True)


class ThreadNotices(Notices, Protocol):
    """A notice channel for a thread, which waits on it beside other things."""

    def fileno(self) -> int:
        """What to wait on; -1 when notices arrive by themselves."""
        ...

    def read(self) -> list[str]:
        """Return the names of locks that something happened to, or EVERY_LOCK; never blocks.

        Raises:
            EngineUnavailable: the channel broke.
        """
        ...


class TaskNotices(Notices, Protocol):
    """A notice channel for a task, which awaits it and nothing else."""

    async def next(self) -> list[str]:
        """Suspend until something happened to some locks; return their names, or EVERY_LOCK.

        Raises:
            EngineUnavailable: the channel broke.
        """
        ...


class StepPort(Protocol):
    """The steps of a lock server, its clock's echo, and this process's clock."""

    alias: str
    options: EngineOptions
    parts: int
    """How many parts the locks of this engine are kept in: shards of a Cluster, else 1."""

    def now(self) -> float:
        """Return this process's boot clock in seconds: monotonic, and running in suspend."""
        ...

    def defer(self, undo: Undo) -> None:
        """Hand ``undo`` to the watchdog, which repeats it until it is done. Never blocks."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        ...

    async def rest(self) -> bool:
        """Close idle connections; return whether none is left open."""
        ...

    async def acquire(
        self, spec: LockSpec, token: str, description: str, *, queue: bool
    ) -> Granted | Queued | Busy | Refused:
        """Ask for the lock; with ``queue``, stand in the queue (or be seen in it)."""
        ...

    async def acquire_all(
        self, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
    ) -> AllGranted | Busy:
        """Ask for several locks that are :meth:`together`: all of them or none. Never queues."""
        ...

    def together(self, names: Sequence[str]) -> bool:
        """Whether one step can deal with all these names."""
        ...

    def part_of(self, name: str) -> int:
        """Say in which part a name is kept, from 0: one may fail while others go on."""
        ...

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> GrantMessage | None:
        """Block on the inbox for at most ``timeout_s``; None when nothing came."""
        ...

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Released | Gone:
        """End the token's holding or waiting; hand the lock on."""
        ...

    async def cancel(self, name: str, token: str, *, tombstone: bool) -> Granted | GaveUp | Gone:
        """Leave the queue; a grant that had already happened is reported, not undone."""
        ...

    async def renew(self, leases: Sequence[RenewItem], part: int = 0) -> RenewReply:
        """Prolong leases of one part; also learn which other leases ran out there.

        ``part`` is the one to look at when there are no leases.
        """
        ...

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """Make the holder's weight smaller; nobody comes between."""
        ...

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """End the lease with exactly this fence."""
        ...

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """Ask the holder of exactly this fence to let go."""
        ...

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """End (or cut to ``grace_ms``) a lease whose holder is known to be dead."""
        ...

    async def sweep(self, names: Sequence[str], part: int = 0) -> int:
        """Reclaim expired holders of these names, which that part has told; return how many."""
        ...

    async def report(self, reports: Sequence[Degraded]) -> None:
        """Record what ran without locks of one part while nobody could be asked."""
        ...

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """Return how many names are held, and a page of them."""
        ...

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """Return the server's time (ms) and the state of those names that are held."""
        ...


class WatchPort(StepPort, Protocol[N_co]):
    """What a watchdog needs besides: the notice channel of its kind, thread or task."""

    async def listen(self) -> N_co:
        """Open this process's notice channel: what others did to its leases, at once."""
        ...


class EnginePort(StepPort, Protocol):
    """What an engine needs of a port besides the steps of a lock."""

    watchdog: Any
    """The :class:`~lockapp.watchdog.Watchdog` of this port, set by the engine."""

    def for_watchdog(self) -> WatchPort[Any]:
        """Return the port that the watchdog uses: the same, but no circuit breaker refuses it."""
        ...

    def forget(self) -> object:
        """Give up connections without touching the wire (after a fork); return them."""
        ...

    async def ping(self) -> None:
        """Ask whether the server answers."""
        ...

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """Return events after the stream id ``after``, oldest first."""
        ...

    async def trim_events(self, shard: int, through: str) -> None:
        """Drop the events up to and including ``through``."""
        ...

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """Say which server's stream this is and how far it goes."""
        ...

    async def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """Tell all who wait for the flight of this lease that it has landed; late ones as well.

        Returns whether they were told: not if ``token``, unless empty, does not hold the lock, nor
        after a later flight has landed.
        """
        ...

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        """Block until a flight of this number or a later one has landed; None when none has."""
        ...
