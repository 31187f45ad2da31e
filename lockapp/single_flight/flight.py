"""The flight itself: who computes, who waits, and how they learn. Written once for both fronts.

Theory of operation
-------------------
=======================  ==================================================================
what we know             what we do
=======================  ==================================================================
fresh result in cache    return it; the engine is not asked
stale one                try for the lock without waiting: busy → return the stale one
lock granted             we lead: look into the cache again, compute, store, land, release
lock busy, fence F       we follow: block until flight F or a later one has landed
landed, kept or passed   read the result; error results are raised
landed, aborted          ask for the lock again: exactly one of the followers gets it
nothing for a slice      ask again: a leader that died frees the lock when its lease ends
=======================  ==================================================================

Invariants: who computes holds the lock; a result is stored and announced only by a leader whose
lease is live at that moment; a flight is named by the fencing token of its leader's lease, which
the answer "busy" carries, so that a landing can't be missed between asking and blocking.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from lockapp.context import current_details
from lockapp.core import backoff
from lockapp.core.chance import chance
from lockapp.core.flight import KEPT, PASSED, Landing, Stored
from lockapp.core.values import HolderState, Undo
from lockapp.engines import procedures
from lockapp.engines.procedures import Grant, NoGrant
from lockapp.exceptions import EngineUnavailable, LockAppError, NotAcquired
from lockapp.lease import Lease
from lockapp.owner import current_owner
from lockapp.process import describe_holder
from lockapp.single_flight.faces import Face
from lockapp.single_flight.leader import Plan, lead
from lockapp.single_flight.store import failure, passing_key
from lockapp.ways import Unset

logger = logging.getLogger("lockapp")

SOON_S = 0.1
"""How long to block when no landing can be expected: the lock is about to be released, or handed
to somebody who waits for it by other means."""


async def fly(face: Face, plan: Plan, compute: Callable[[], Any]) -> Any:
    """Return the result of one computation, our own or that of another caller.

    Raises:
        WaitTimeout, NotAcquired: no result within ``wait_s``, and no fallback.
        EngineUnavailable: could not ask, and there is neither a cached value nor a fallback.
        AlreadyHeld: called by the computation of the same name.
        Others: what the computation raises, here or in the caller that did it.

    On cancellation: nothing stays held; another caller takes over the computation.
    """
    got = await seek(face, plan)
    if isinstance(got, Lease):
        return await lead(face, plan, got, compute)
    if isinstance(got, Stored):
        return answer(got, plan)
    if not isinstance(plan.fallback, Unset):
        logger.info("single_flight: falling back: %s", got)
        return await face.run(plan.fallback) if callable(plan.fallback) else plan.fallback
    try:
        raise got
    finally:
        del got  # its traceback refers to this frame


async def seek(face: Face, plan: Plan) -> Stored | Lease | NotAcquired | EngineUnavailable:
    """Return a result, or the lease of who has to compute it, or why there is neither.

    A lease must be handed to :func:`~lockapp.single_flight.leader.lead`.
    """
    stored = await face.read(plan.key)
    now = time.time()
    if stored is not None and now < stored.fresh_until:
        return stored
    stale = stored is not None and now < stored.stale_until
    try:
        got = await _ask(face, plan) if stale else await _board(face, plan)
    except EngineUnavailable as error:
        got = error
    if stale and not isinstance(got, Lease):
        assert stored is not None
        return stored
    assert not isinstance(got, NoGrant)
    return got


def answer(stored: Stored, plan: Plan) -> Any:
    """Return the result of a computation, or raise its error."""
    if stored.ok:
        return stored.value
    if not isinstance(stored.value, Exception):  # a serializer that only knows plain types
        raise failure(str(stored.value), plan.lock.name)
    stored.value.add_note("(raised where it was computed, for another caller)")
    raise stored.value


async def _ask(face: Face, plan: Plan) -> Lease | NoGrant:
    """Ask for the lock without waiting and without counting as somebody who was turned away."""
    lock, port, owner = plan.lock, face.port, current_owner()
    lock.already(owner)
    token = os.urandom(16).hex()
    description = describe_holder(current_details(), lock.why)
    try:
        outcome = await procedures.acquire(port, lock.spec, token, description, 0)
        if type(outcome) is Grant:
            return lock.lease(port, token, outcome, owner, True)
    except LockAppError:
        raise
    except BaseException:  # interrupted between the grant and its lease
        port.defer(Undo(lock.name, token, tombstone=False))
        raise
    assert type(outcome) is NoGrant
    return outcome


async def _board(face: Face, plan: Plan) -> Lease | Stored | NotAcquired | EngineUnavailable:
    """Become the leader, or get the result of who is; or return why neither was possible."""
    port = face.port
    started, since, failures, answered = port.now(), 0, 0, False
    while True:
        left = None if plan.wait_s is None else started + plan.wait_s - port.now()
        try:
            got = await _ask(face, plan)
            answered, failures = True, 0
            if isinstance(got, Lease):
                return got
            if (left is not None and left <= 0) or plan.gives_up(got.holder):
                waited = port.now() - started if plan.wait_s else 0.0
                return plan.lock.contended(NoGrant(got.holder, waited))
            timeout_s = _slice(plan, got.holder, since, left)
            since = max(since, got.holder.fence if got.holder else 0)
            landing = await port.wait_landing(plan.lock.name, since, timeout_s)
        except EngineUnavailable as error:
            failures += 1
            pause = backoff.pause_s(error.reason, failures, answered=answered, left_s=left)
            if pause is None:
                return error
            if pause:
                await port.sleep(pause)
            continue
        if landing is not None:
            since = landing.fence + 1
            stored = await _result(face, plan, landing)
            if stored is not None:
                return stored


def _slice(plan: Plan, holder: HolderState | None, since: int, left_s: float | None) -> float:
    """Return how long to block: until the lease ends, but no longer than a slice.

    Spread a little, because one broadcast has made all followers begin at once.
    """
    options = plan.lock.engine.options
    slice_s = options.slice_ms / 1000 * chance.uniform(0.8, 1.0)
    if holder is None or holder.fence < since:
        wanted = SOON_S
    else:
        spread_s = chance.uniform(options.stagger_ms, options.stagger_max_ms) / 1000
        wanted = min(holder.remaining_ms / 1000 + spread_s, slice_s)
    return wanted if left_s is None else min(wanted, left_s)


async def _result(face: Face, plan: Plan, landing: Landing) -> Stored | None:
    if landing.outcome == PASSED:
        return await face.read(passing_key(plan.key, landing.fence))
    if landing.outcome != KEPT:
        return None
    stored = await face.read(plan.key)
    if stored is None or stored.fence >= landing.fence or time.time() < stored.fresh_until:
        return stored
    return None
