"""What the caller does that computes: compute, store, tell the others, let go.

Order at the end of a flight: a result is announced *before* the release, so that nobody computes
it anew in between; an aborted flight is announced *after* it, so that who is woken finds the lock
free.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockapp.core.flight import ABORTED, KEPT, PASSED, Stored
from lockapp.core.interruption import is_interruption
from lockapp.core.values import HolderState
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotHeld
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.single_flight.faces import Face
from lockapp.single_flight.store import described, passing_key, portable

logger = logging.getLogger("lockapp")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the callers of one name want; durations in seconds.

    ``shares_errors``: whether those who wait get the error of who computed; else one of them takes
    over. ``gives_up`` is told who holds the lock, and says whether not to wait for that one.
    """

    lock: Lock
    key: str
    ttl_s: float
    stale_s: float
    wait_s: float | None
    fallback: Any  # UNSET: none
    shares_errors: bool = True
    gives_up: Callable[[HolderState | None], bool] = lambda holder: False

    @property
    def keep_ms(self) -> int:
        """How long a follower may be late: it asks once a slice at least."""
        return self.lock.engine.options.seen_ms


async def lead(face: Face, plan: Plan, lease: Lease, compute: Callable[[], Any]) -> Any:
    """Compute, tell the others, and let go, whatever happens."""
    landed = False
    try:
        stored = await face.read(plan.key)
        if stored is not None and time.time() < stored.fresh_until:
            # Computed between our look into the cache and our grant. Who has seen us hold the
            # lock since waits for our landing.
            landed = await _announce(face, plan, lease, KEPT)
            return stored.value
        try:
            value = await face.run(compute)
        except Exception as error:
            if plan.shares_errors and not _says_nothing(error):
                landed = await _land(face, plan, lease, ok=False, value=error)
            raise
        landed = await _land(face, plan, lease, ok=True, value=value)
        return value
    finally:
        await _end(face, plan, lease, landed)


async def _land(face: Face, plan: Plan, lease: Lease, *, ok: bool, value: Any) -> bool:
    """Store a result and announce it, if the lease is live; return whether it was announced."""
    name = plan.lock.name
    if not await _still_ours(face, lease):
        logger.warning(
            "the lease of %s was lost while computing: the result is not shared", name,
            extra={"lockapp_name": name},
        )  # fmt: skip
        return False
    now = time.time()
    fresh_until = now + (plan.ttl_s if ok else 0)
    stale_until = fresh_until + (plan.stale_s if ok and plan.ttl_s else 0)
    carried = value if ok else portable(value, name)
    stored = Stored(ok, carried, lease.fence, now, fresh_until, stale_until)
    kept = ok and plan.ttl_s > 0
    try:
        if kept:
            await face.write(plan.key, stored, plan.ttl_s + plan.stale_s)
        else:
            aside = passing_key(plan.key, lease.fence)
            try:
                await face.write(aside, stored, plan.keep_ms / 1000)
            except Exception as error:
                if ok or is_interruption(error):
                    raise
                # A serializer that only knows plain types.
                plain = stored._replace(value=described(carried))
                await face.write(aside, plain, plan.keep_ms / 1000)
    except Exception as error:
        if is_interruption(error):
            raise
        logger.exception(
            "the result of %s could not be stored in the cache; the others compute it themselves",
            name,
            extra={"lockapp_name": name},
        )
        return False
    return await _announce(face, plan, lease, KEPT if kept else PASSED)


async def _still_ours(face: Face, lease: Lease) -> bool:
    """Ask the server, who may know of an operator's forced release what we don't."""
    try:
        await lease._renew(face.port)
    except (LeaseLost, NotHeld):
        return False
    except EngineUnavailable:
        return lease.live
    return True


async def _announce(face: Face, plan: Plan, lease: Lease, outcome: str) -> bool:
    token = lease.renew_item.token
    try:
        return await face.port.land(plan.lock.name, token, lease.fence, outcome, plan.keep_ms)
    except EngineUnavailable as down:
        logger.warning("%s has landed, and its followers learn it late: %s", plan.lock.name, down)
        return False


async def _end(face: Face, plan: Plan, lease: Lease, landed: bool) -> None:
    """Release the lock, and wake the followers of a flight that has no result to share.

    The outcome of the computation comes first (P6): what goes wrong here is logged.
    """
    try:
        try:
            await lease.give_back(face.port)
        except (LeaseLost, NotHeld):
            logger.debug("%s was lost before it was released", plan.lock.name)
        if not landed:
            await face.port.land(plan.lock.name, "", lease.fence, ABORTED, plan.keep_ms)
    except EngineUnavailable as down:
        logger.warning(
            "could not release %s now; the watchdog goes on trying: %s", plan.lock.name, down
        )
    except BaseException:  # interrupted: followers ask again when their slice is over
        lease.let_go(face.port)
        raise


def _says_nothing(error: Exception) -> bool:
    """Whether the error says that *this caller* had to stop, and nothing about the result.

    A Celery task that retries, is replaced or ignored says so by raising a `TaskPredicate`.
    """
    predicate = getattr(sys.modules.get("celery.exceptions"), "TaskPredicate", ())
    return is_interruption(error) or isinstance(error, predicate)
