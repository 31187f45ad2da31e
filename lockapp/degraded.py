"""What to do instead when the engine can't be asked: ``on_unavailable="local"`` or ``"open"``.

Only for who could not *ask*. Contended, refused by the server (no memory, no permission),
misconfigured and failed scripts are answers, and raised as ever. What the request may have done on
the server is being undone meanwhile.

``local``
    A lock of this process: threads and event loops exclude each other, first come, first served.
    Other processes don't.
``open``
    No lock at all.

Each run is logged as an error, signalled, and recorded as an event once the server is back. Until
then its record is in memory: if the process ends before, the log is what remains of it. A lease
that was degraded stays so to its end, also when the server is back: somebody else may get the lock
there.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from lockapp.core.ports import EnginePort, StepPort
from lockapp.core.values import Degraded, Undo
from lockapp.engines import procedures
from lockapp.exceptions import EngineUnavailable, LockAppError
from lockapp.holding import HELD, RELEASED
from lockapp.lease import Lease

if TYPE_CHECKING:
    from lockapp.lock import Lock

logger = logging.getLogger("lockapp")


class _DegradedLease(Lease):
    __slots__ = ()

    @property
    def key(self) -> tuple[object, ...]:
        """See Lease: without a fence of its own."""
        if self._several:
            return self.spec.name, self._owner, id(self)
        return self.spec.name, self._owner


class LocalLease(_DegradedLease):
    """A lease of a lock within this process. Renewed, waited for and lost as any other."""

    __slots__ = ()
    degraded = "local"

    async def give_back(self, port: StepPort, *, at_once: bool = False) -> None:
        """See Lease. Whatever ``port`` is: the lock does not live there."""
        await super().give_back(self._engine.sync, at_once=at_once)

    def let_go(self, port: StepPort) -> None:
        """See Lease."""
        super().let_go(self._engine.sync)


class OpenLease(_DegradedLease):
    """No lease: it excludes nobody, never ends by itself, and there is nothing to give back."""

    __slots__ = ()
    degraded = "open"

    async def give_back(self, port: StepPort, *, at_once: bool = False) -> None:
        """See Lease. Asks nobody."""
        if self.holds > 1:
            self.holds -= 1
        else:
            self.let_go(port)

    def let_go(self, port: StepPort) -> None:
        """See Lease. Asks nobody."""
        self._state = RELEASED
        self._engine.forget(self)

    async def _renew(self, port: StepPort) -> None:
        self.check()

    async def _downgrade(self, port: StepPort) -> None:
        self.check()
        self.spec = replace(self.spec, weight=1)

    def __del__(self) -> None:
        if getattr(self, "_state", None) is HELD:
            self._engine.forget(self)


def applies(lock: Lock, down: EngineUnavailable) -> bool:
    """Whether ``lock`` is to be taken in another way now."""
    return lock.on_unavailable != "raise" and down.reason != "refused"


async def instead(
    lock: Lock,
    port: EnginePort,
    down: EngineUnavailable,
    owner: object,
    description: str,
    wait_s: float | None,
    scoped: bool,
) -> Lease:
    """Return what ``lock`` is to be content with.

    Args:
        lock: what could not be had.
        port: through which the engine was asked.
        down: what was said.
        owner: the task or thread that asks.
        description: who it is, as JSON.
        wait_s: the time to wait; what has passed of it counts.
        scoped: whether a ``with`` block will give it back.

    Raises:
        NotAcquired: ``local``, and somebody else in this process holds it.

    On cancellation, at any moment: nothing stays held.
    """
    waited = down.fields.get("waited", wait_s or 0.0)
    lease: Lease | None = None
    try:
        if lock.on_unavailable == "local":
            lease = await _locally(lock, port, owner, description, wait_s, waited, scoped)
        else:
            lease = _openly(lock, owner, waited, scoped)
        _tell(lock, lease, down, description)
    except BaseException:  # interrupted before the caller has it, perhaps by who is told
        if lease is not None:
            lease.let_go(port)
        raise
    return lease


async def _locally(
    lock: Lock,
    port: EnginePort,
    owner: object,
    description: str,
    wait_s: float | None,
    waited: float,
    scoped: bool,
) -> Lease:
    engine = lock.engine
    near = engine.local.sync if port is engine.sync else engine.local.aio()
    left_s = None if wait_s is None else max(wait_s - waited, 0.0)
    token = os.urandom(16).hex()
    try:
        outcome = await procedures.acquire(near, lock.spec, token, description, left_s)
        if type(outcome) is procedures.Grant:
            grant = outcome._replace(fence=0, waited_s=waited + outcome.waited_s)
            return lock.lease(near, token, grant, owner, scoped, LocalLease, engine.local)
    except LockAppError:
        raise
    except BaseException:  # interrupted between the grant and its lease
        near.defer(Undo(lock.name, token, tombstone=False))
        raise
    assert type(outcome) is procedures.NoGrant
    engine.observe("contended", lock)
    if wait_s != 0:
        outcome = outcome._replace(waited_s=waited + outcome.waited_s)
    raise lock.contended(outcome)


def _openly(lock: Lock, owner: object, waited: float, scoped: bool) -> Lease:
    grant = procedures.Grant(0, float("inf"), True, False, waited)
    args = lock.engine, lock.spec, "", grant, owner, lock.renew, scoped, lock.several
    lease = OpenLease(*args)
    lock.engine.hold(lease)
    return lease


def _tell(lock: Lock, lease: Lease, down: EngineUnavailable, description: str) -> None:
    engine, mode = lock.engine, lease.degraded
    logger.error(
        "%s runs %s: %s", lock.name, SAID[mode], down,
        extra={
            "lockapp_name": lock.name, "lockapp_alias": engine.alias,
            "lockapp_degraded": mode, "lockapp_reason": down.reason,
        },
    )  # fmt: skip
    at_ms = int(time.time() * 1000)
    engine.sync.watchdog.report(Degraded(lock.name, mode, at_ms, down.reason, description))
    engine.observe("degraded", lease)


SAID = {"local": "under a lock of this process only", "open": "without a lock"}
"""What a log says about a mode."""
