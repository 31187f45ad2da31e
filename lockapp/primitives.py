"""Semaphore, read/write lock, several locks at once: other shapes of one thing.

All of them are *holders with weights under a limit, and a FIFO queue*; a mutex is limit 1. So each
has leases, waiting, renewal, loss, forced release and audit exactly as :class:`lockapp.lock.Lock`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lockapp.context import current_details
from lockapp.core.ports import EnginePort, StepPort
from lockapp.core.run import run_sync
from lockapp.core.values import EVERYBODY
from lockapp.degraded import applies
from lockapp.engines import procedures
from lockapp.exceptions import EngineUnavailable, LockAppError, NotAcquired
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.owner import current_owner
from lockapp.process import describe_holder
from lockapp.ways import Acquirable, Unset, Wait, wait_seconds

if TYPE_CHECKING:
    from lockapp.engines.base import Engine


class Semaphore(Lock):
    """At most ``limit`` holders at a time, FIFO among those who wait; one lease per permit.

    Guarantee: as Lock, for ``limit`` holders. Where processes disagree about the limit (while a new
    one is rolled out), the smaller one applies until those who know it have gone.
    Duty: as Lock. One task or thread may hold several permits; two that each hold one and wait for
    a second wait for each other until ``wait`` ends it.
    """

    several = True

    def __init__(self, engine: Engine, name: str, limit: int, **options: Any) -> None:
        """Describe a semaphore; nothing is sent.

        Args:
            engine: where it lives.
            name: as :func:`lockapp.naming.lock_name` makes it.
            limit: how many may hold it at once.
            **options: as Lock, but ``release`` is ``"now"`` unless given.

        Raises:
            TypeError, ValueError: a number that makes no sense, by its name.
        """
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be a whole number, not {limit!r}")
        if not 1 <= limit < EVERYBODY:
            raise ValueError(f"limit must be 1 or more (and below {EVERYBODY:,}), not {limit!r}")
        options.setdefault("release", "now")  # it counts who is at work, and orders nobody
        super().__init__(engine, name, limit=limit, **options)


class RWLock:
    """Many readers or one writer, FIFO among those who wait: neither side starves the other.

    Guarantee: no reader beside a writer, no writer beside anybody. A reader that comes after a
    waiting writer waits behind it.
    Duty: as Lock. Who reads can't write as well: release first (an upgrade would wait for itself).
    """

    def __init__(self, engine: Engine, name: str, **options: Any) -> None:
        """Describe a read/write lock; nothing is sent.

        Args:
            engine: where it lives.
            name: as :func:`lockapp.naming.lock_name` makes it.
            **options: as Lock, for both sides.
        """
        self._reader = Lock(engine, name, limit=EVERYBODY, **options)
        self._writer = Lock(engine, name, limit=EVERYBODY, weight=EVERYBODY, **options)

    def read(self) -> Lock:
        """The readers' side, to be entered or acquired as any lock."""
        return self._reader

    def write(self) -> Lock:
        """The writer's side. Its lease can be turned into a reader's: ``lease.downgrade()``."""
        return self._writer


class MultiLease:
    """Leases that were granted together: live while all of them are."""

    def __init__(self, engine: Engine, leases: list[Lease]) -> None:
        self._engine = engine
        self.leases = leases

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each lock, by name."""
        return {lease.name: lease.fence for lease in self.leases}

    @property
    def degraded(self) -> str:
        """The worst of what its leases say: ``"open"``, ``"local"``, or nothing."""
        return max((lease.degraded for lease in self.leases), default="")

    @property
    def lost(self) -> bool:
        """Whether any of them is lost."""
        return any(lease.lost for lease in self.leases)

    def check(self) -> None:
        """Do nothing while all are live.

        Raises:
            LeaseLost, NotHeld: the first that is not.
        """
        for lease in self.leases:
            lease.check()

    def release(self) -> None:
        """Release all of them, the last one first. A second call does nothing.

        Raises:
            LeaseLost, EngineUnavailable, NotHeld: the first error, after all have been tried.
        """
        run_sync(self.give_back(self._engine.sync))

    async def arelease(self) -> None:
        """See release()."""
        await self.give_back(self._engine.aio())

    async def give_back(self, port: StepPort, *, at_once: bool = False) -> None:
        """Release them through ``port``; see Lease."""
        first: LockAppError | None = None
        for lease in reversed(self.leases):
            try:
                await lease.give_back(port, at_once=at_once)
            except LockAppError as error:
                first = first or error
        if first is not None:
            raise first

    def let_go(self, port: StepPort) -> None:
        """Have the watchdog release them; for an exception under way."""
        for lease in self.leases:
            lease.let_go(port)


class MultiLock(Acquirable[MultiLease]):
    """Several locks at once: all of them or none.

    Guarantee: whatever order callers name them in, they are taken in one canonical order, so that
    two callers never wait for each other. Free locks of one shard are taken in a single step.
    Duty: as Lock. All must live on one engine.
    """

    def __init__(self, locks: Iterable[Lock]) -> None:
        """Join locks; nothing is sent. How long to wait in all is the longest wait of them.

        Raises:
            ValueError: none, one twice, of several engines, or with different ``on_unavailable``.
        """
        self.locks = sorted(locks, key=lambda lock: lock.name)
        names = [lock.name for lock in self.locks]
        if not names:
            raise ValueError("a multilock needs at least one lock")
        if len(set(names)) < len(names):
            raise ValueError(f"a multilock can't take a lock twice: {names}")
        if len({lock.engine for lock in self.locks}) > 1:
            raise ValueError("the locks of a multilock must live on one engine")
        super().__init__(self.locks[0].engine, " + ".join(names))
        waits = [lock.wait_s for lock in self.locks]
        self.wait_s = None if None in waits else max(wait for wait in waits if wait is not None)
        self.raises_loss = any(lock.raises_loss for lock in self.locks)
        if len({lock.on_unavailable for lock in self.locks}) > 1:
            raise ValueError("the locks of a multilock must agree on on_unavailable")

    async def attempt(
        self, port: EnginePort, wait: Wait | Unset, *, scoped: bool = False
    ) -> MultiLease:
        """See Acquirable."""
        wait_s = self.wait_s if isinstance(wait, Unset) else wait_seconds(wait)
        started, owner = port.now(), current_owner()
        mine = [lock.already(owner) for lock in self.locks]
        if not any(mine) and port.together([lock.name for lock in self.locks]):
            try:
                return MultiLease(self.engine, await self._at_once(port, owner, scoped))
            except NotAcquired:
                if wait_s == 0:
                    raise
            except EngineUnavailable as down:
                if not applies(self.locks[0], down):
                    raise  # else each of them finds out what it has to be content with
        joint = MultiLease(self.engine, [])
        try:
            for lock in self.locks:
                left = None if wait_s is None else max(started + wait_s - port.now(), 0.0)
                joint.leases.append(await lock.attempt(port, left, scoped=scoped))
        except NotAcquired:
            await joint.give_back(port, at_once=True)
            raise
        except BaseException:
            joint.let_go(port)
            raise
        return joint

    async def _at_once(self, port: EnginePort, owner: object, scoped: bool) -> list[Lease]:
        tokens = [os.urandom(16).hex() for _ in self.locks]
        description = describe_holder(current_details(), self.locks[0].why)
        specs = [lock.spec for lock in self.locks]
        outcome = await procedures.acquire_all(port, specs, tokens, description)
        if isinstance(outcome, procedures.NoGrant):
            raise self.locks[0].contended(outcome)
        return [
            lock.lease(port, token, grant, owner, scoped)
            for lock, token, grant in zip(self.locks, tokens, outcome, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<MultiLock {self._title!r} on {self.engine.alias!r}>"
