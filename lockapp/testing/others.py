"""Somebody else, who holds a lock; and what an operator, or time, does to a holder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Unpack

from lockapp.conf import DEFAULT_ALIAS
from lockapp.core.run import run_sync
from lockapp.core.values import ForceOutcome
from lockapp.engines import procedures
from lockapp.engines.memory.engine import MemoryEngine
from lockapp.engines.memory.hands import run_out
from lockapp.exceptions import LeaseLost, NotHeld
from lockapp.handler import LockOptions, lock
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.process import describe_holder
from lockapp.testing.renewer import anoted, noted, refuse_in_loop

WHY = "somebody else, says the test"
ACTOR = "the test"


@contextmanager
def held_by_other(
    *parts: object, using: str = DEFAULT_ALIAS, **options: Unpack[LockOptions]
) -> Iterator[Lease]:
    """Hold a lock as somebody else, who is neither this thread nor this task.

    ::

        with held_by_other("order", 7) as theirs:
            assert client.post("/orders/7/capture/").status_code == 409

    It is held on the real engine, renewed, and released at the end of the block unless it was taken
    away meanwhile; database transactions don't keep it longer. In coroutines, too, it is a plain
    ``with``. An exception in the block releases it as well.

    Args:
        *parts: the parts of the lock's name, or one lock (of whatever kind) instead, which waits as
            it says.
        using: the engine's alias.
        **options: as of :func:`lockapp.lock`; by default it does not wait, and ``why`` says that
            this is a test.

    Raises:
        NotAcquired: somebody holds it already.
        EngineUnavailable: could not ask.
    """
    if len(parts) == 1 and isinstance(parts[0], Lock):
        what = parts[0]
    else:
        options.setdefault("wait", 0)
        options.setdefault("why", WHY)
        what = lock(*parts, using=using, **options)
    lease = _acquire(what)
    try:
        yield lease
    finally:
        with suppress(LeaseLost):  # taken away by the test
            lease.release()


def _acquire(what: Lock) -> Lease:
    port, token = what.engine.sync, os.urandom(16).hex()
    description = describe_holder((), what.why)
    outcome = run_sync(procedures.acquire(port, what.spec, token, description, what.wait_s))
    if isinstance(outcome, procedures.NoGrant):
        raise what.contended(outcome)
    lease = what.lease(port, token, outcome, object(), scoped=True)
    lease.transactions = None  # those of this thread are not theirs
    return lease


def force_release(lease: Lease, *, actor: str = ACTOR, reason: str = "") -> None:
    """Take a lease away from its holder, as an operator does.

    When this returns, the lease is lost and its ``on_lost`` has been called.

    Raises:
        NotHeld: it is over already.
        EngineUnavailable: could not ask.
        RuntimeError: called in an event loop; use :func:`aforce_release` there.
    """
    refuse_in_loop()
    _must(lease.engine.force_release(lease.name, lease.fence, actor=actor, reason=reason), lease)
    noted(lease.engine, lambda: not lease.held, lease.name)


async def aforce_release(lease: Lease, *, actor: str = ACTOR, reason: str = "") -> None:
    """See force_release()."""
    engine = lease.engine
    _must(await engine.aforce_release(lease.name, lease.fence, actor=actor, reason=reason), lease)
    await anoted(engine, lambda: not lease.held, lease.name)


def revoke(lease: Lease, *, actor: str = ACTOR, reason: str = "") -> None:
    """Ask the holder of a lease to let go, as an operator does; it keeps it until it does.

    When this returns, ``lease.revoke_requested`` is true and its ``on_revoke`` has been called.

    Raises:
        NotHeld: it is over already.
        EngineUnavailable: could not ask.
        RuntimeError: called in an event loop; use :func:`arevoke` there.
    """
    refuse_in_loop()
    _must(lease.engine.revoke(lease.name, lease.fence, actor=actor, reason=reason), lease)
    noted(lease.engine, lambda: lease.revoke_requested, lease.name)


async def arevoke(lease: Lease, *, actor: str = ACTOR, reason: str = "") -> None:
    """See revoke()."""
    engine = lease.engine
    _must(await engine.arevoke(lease.name, lease.fence, actor=actor, reason=reason), lease)
    await anoted(engine, lambda: lease.revoke_requested, lease.name)


def expire(lease: Lease) -> None:
    """Let the time of one lease be up, as if its holder had been cut off for its ttl.

    When this returns, it is lost, its ``on_lost`` has been called, and the next one in the queue
    has been handed the lock. Other leases live on; to let time pass for all of them, see
    :class:`~lockapp.testing.SteppableClock`.

    Raises:
        TypeError: not of a memory engine; another server's time can't be turned.
        NotHeld: it is over already.
        RuntimeError: called in an event loop; use :func:`aexpire` there.
    """
    refuse_in_loop()
    _run_out(lease)
    noted(lease.engine, lambda: not lease.held, lease.name)
    lease.engine.sweep()


async def aexpire(lease: Lease) -> None:
    """See expire()."""
    _run_out(lease)
    await anoted(lease.engine, lambda: not lease.held, lease.name)
    await lease.engine.asweep()


def _run_out(lease: Lease) -> None:
    engine = lease.engine
    if not isinstance(engine, MemoryEngine):
        raise TypeError(
            f"only a lease of a memory engine can be expired early, and {engine!r} is none: use "
            "force_release(), or override_engine()"
        )
    if not lease.live:
        raise NotHeld(f"the lease of {lease.name!r} is over already", name=lease.name)
    run_out(engine.server, lease.name, lease._token)
    lease.valid_until = engine.now()


def _must(outcome: ForceOutcome, lease: Lease) -> None:
    if outcome not in (ForceOutcome.RELEASED, ForceOutcome.ASKED):
        raise NotHeld(f"the lease of {lease.name!r} is over already", name=lease.name)
