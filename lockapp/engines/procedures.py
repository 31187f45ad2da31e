"""How steps are put together: acquire and wait, release, force, list. Written once.

Theory of operation
-------------------
An engine that can run *steps* (one server-side step that compares the token, see
:class:`~lockapp.core.ports.StepPort`) gets everything else from here, sync and async. The token
is chosen by the caller before the first byte is sent (P3), so every step may be asked again.

====================  ===================================================================
what we know          what we do
====================  ===================================================================
GRANTED               it is ours from before the request was sent (P6)
QUEUED                block on the inbox until something is due, then ask again by token
grant in the inbox    a hint with a deadline: trusted only while own clock says it is live
no answer             ask again if waiting makes sense (``core.backoff``), else undo
any exception         undo in the background, tombstone if a request may still be under way
====================  ===================================================================

Nothing here imports asyncio, threading, time or a client library; a procedure awaits nothing but
port methods. Undoing is handed to the watchdog by :meth:`StepPort.defer`, which does not await:
so a second cancellation can't interrupt it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from lockapp.core import backoff
from lockapp.core.deadline import slice_s, valid_until
from lockapp.core.ports import StepPort
from lockapp.core.values import (
    AllGranted,
    Busy,
    GaveUp,
    Gone,
    Granted,
    HolderState,
    LockSpec,
    LockState,
    Queued,
    Refused,
    Released,
    Snapshot,
    Undo,
)
from lockapp.exceptions import EngineError, EngineUnavailable, LeaseLost

T = TypeVar("T")

DONE = ("", "undone")
"""What a release finds when an earlier one was carried out: nothing, or that one's tombstone."""
ASK_AGAIN = 3
"""How often to ask again for a lease that was over when its answer arrived."""


class Grant(NamedTuple):
    """A lease of ours.

    ``confirmed`` is False while it rests on a claim: the watchdog's first renewal makes it whole.
    ``doubtful``: some request of this token got no answer and may arrive late, so its release
    must leave a tombstone.
    """

    fence: int
    valid_until: float
    confirmed: bool
    doubtful: bool
    waited_s: float


class NoGrant(NamedTuple):
    """Contended: nothing is held and nothing is queued."""

    holder: HolderState | None
    waited_s: float


class _Doubt:
    """Whether a request of this token may still be under way."""

    __slots__ = ("asking", "doubtful", "known")

    def __init__(self) -> None:
        self.asking = False  # a request is out, and its answer is not in
        self.doubtful = False  # some request never got its answer
        self.known = False  # the server may know the token


async def acquire(
    port: StepPort, spec: LockSpec, token: str, description: str, wait_s: float | None
) -> Grant | NoGrant:
    """Acquire a lock, waiting at most ``wait_s`` seconds (None: without end) in FIFO order.

    Raises:
        EngineUnavailable: could not ask. What the request may have done is being undone.
        LeaseLost: the lock was handed over and taken away again before it was taken up.

    On cancellation, at any moment: nothing stays held or queued; the exception goes on.
    """
    doubt = _Doubt()
    try:
        return await _acquire(port, spec, token, description, wait_s, doubt)
    except BaseException:
        if doubt.known or doubt.asking:
            port.defer(Undo(spec.name, token, tombstone=doubt.doubtful or doubt.asking))
        raise


async def acquire_all(
    port: StepPort, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
) -> list[Grant] | NoGrant:
    """Acquire several locks that are together in one step: all of them, or none. Never waits.

    Raises:
        EngineUnavailable: could not ask. What the request may have done is being undone.

    On cancellation: as :func:`acquire`.
    """
    doubtful = False
    sent_at = started = port.now()
    try:
        try:
            reply = await port.acquire_all(specs, tokens, description)
        except EngineUnavailable as error:
            doubtful = error.sent
            if error.reason != "reset":
                raise
            sent_at = port.now()
            reply = await port.acquire_all(specs, tokens, description)
    except BaseException as error:
        if doubtful or not isinstance(error, EngineUnavailable):
            # Any other error of the engine is an answer, so that nothing is under way.
            tombstone = doubtful or not isinstance(error, EngineError)
            for spec, token in zip(specs, tokens, strict=True):
                port.defer(Undo(spec.name, token, tombstone=tombstone))
        raise
    if type(reply) is Busy:
        return NoGrant(reply.holder, 0.0)
    assert type(reply) is AllGranted
    return [
        Grant(fence, valid_until(sent_at, reply.now_ms, end), True, doubtful, sent_at - started)
        for end, fence in reply.grants
    ]


async def _acquire(
    port: StepPort,
    spec: LockSpec,
    token: str,
    description: str,
    wait_s: float | None,
    doubt: _Doubt,
) -> Grant | NoGrant:
    options = port.options
    queue = wait_s != 0
    started = sent_at = port.now()
    failures = overtaken = 0
    answered = False
    while True:
        doubt.asking = True
        try:
            reply = await port.acquire(spec, token, description, queue=queue)
        except EngineUnavailable as error:
            doubt.asking = False
            doubt.doubtful = doubt.doubtful or error.sent
            failures += 1
            left = _left(port, started, wait_s)
            pause = backoff.pause_s(error.reason, failures, answered=answered, left_s=left)
            doubt.known = doubt.known or error.sent
            if pause is None:
                error.fields["waited"] = port.now() - started
                raise
            if pause:
                await port.sleep(pause)
            sent_at = port.now()
            continue
        except EngineError:
            # An answer: nothing is under way. But the step may have failed half-way.
            doubt.asking, doubt.known = False, True
            raise
        doubt.asking = False
        answered = True
        failures = 0
        if type(reply) is Granted:
            until = valid_until(sent_at, reply.now_ms, reply.deadline_ms)
            if until > port.now():
                return Grant(reply.fence, until, True, doubt.doubtful, sent_at - started)
            doubt.known = True
            overtaken += 1
            if overtaken > ASK_AGAIN:
                raise EngineUnavailable(
                    f"answers take longer than the {spec.ttl_ms} ms that a lease of "
                    f"{spec.name!r} lasts",
                    alias=port.alias,
                    reason="timeout",
                    waited=port.now() - started,
                )
            sent_at = port.now()  # asking by token prolongs what we hold
            continue
        if type(reply) is Busy:
            return NoGrant(reply.holder, 0.0)
        if type(reply) is Refused:
            # Handed to us, and taken away by somebody before we took it up.
            raise LeaseLost(
                f"{spec.name!r} was {reply.kind} before it was taken up",
                name=spec.name,
                fence=0,
                reason=reply.kind,
                note=reply.note,
            )
        assert type(reply) is Queued
        doubt.known = True
        left = _left(port, started, wait_s)
        if left is not None and left <= 0:
            return await _give_up(port, spec, token, sent_at, reply.now_ms, started, doubt)
        timeout = slice_s(
            left_s=left,
            lease_left_ms=reply.next_deadline_ms - reply.now_ms,
            position=reply.position,
            slice_ms=options.slice_ms,
            stagger_ms=options.stagger_ms,
            stagger_max_ms=options.stagger_max_ms,
        )
        try:
            grant = await port.wait_grant(spec.name, token, timeout)
        except EngineUnavailable:
            grant = None  # the grant may have been popped and lost on its way: ask by token
        if grant is not None:
            until = valid_until(sent_at, reply.now_ms, grant.deadline_ms)
            now = port.now()
            if until > now:
                return Grant(grant.fence, until, False, doubt.doubtful, now - started)
        sent_at = port.now()


async def _give_up(
    port: StepPort,
    spec: LockSpec,
    token: str,
    sent_at: float,
    now_ms: int,
    started: float,
    doubt: _Doubt,
) -> Grant | NoGrant:
    """Leave the queue. A grant that came in the last moment is kept if it is still live."""
    reply = await port.cancel(spec.name, token, tombstone=doubt.doubtful)
    waited = port.now() - started
    if type(reply) is Granted:
        until = valid_until(sent_at, now_ms, reply.deadline_ms)
        if until > port.now():
            return Grant(reply.fence, until, False, doubt.doubtful, waited)
        port.defer(Undo(spec.name, token, tombstone=doubt.doubtful))
        return NoGrant(None, waited)
    return NoGrant(reply.holder if type(reply) is GaveUp else None, waited)


def _left(port: StepPort, started: float, wait_s: float | None) -> float | None:
    return None if wait_s is None else started + wait_s - port.now()


async def release(
    port: StepPort, name: str, token: str, *, tombstone: bool, why: str = ""
) -> Released | Gone:
    """Release a lease.

    A broken connection is tried once more at once. When nothing is known of the token then, or
    only the tombstone that a release leaves, the first request was carried out and only its answer
    was lost: not a loss of the lease. (Nor can it be told from a server that restarted empty a
    moment before the release.)

    Raises:
        EngineUnavailable: no answer. The watchdog has been asked to go on trying.

    On cancellation: the watchdog releases it; the exception goes on.
    """
    try:
        try:
            return await port.release(name, token, tombstone=tombstone, why=why)
        except EngineUnavailable as error:
            if error.reason != "reset":
                raise
        reply = await port.release(name, token, tombstone=tombstone, why=why)
        done = type(reply) is Gone and reply.kind in DONE
        return Released(reply.now_ms) if done else reply
    except BaseException:
        port.defer(Undo(name, token, tombstone=tombstone, why=why))
        raise


async def once_more(step: Callable[[], Awaitable[T]]) -> T:
    """Run a step that may safely be repeated; again if its connection broke.

    Most often that was an idle connection, closed by a server that restarted meanwhile.
    """
    try:
        return await step()
    except EngineUnavailable as error:
        if error.reason != "reset":
            raise
        return await step()


async def sweep(port: StepPort, parts: Iterable[int] | None = None) -> int:
    """Reclaim every holder whose lease ran out, in all parts or in some; return how many.

    Bounded: at most as many rounds as it takes to pass over the names expired at the start.

    Raises:
        EngineUnavailable: some part could not be asked; the others have been swept.
    """
    reclaimed = 0
    failure: EngineUnavailable | None = None
    for part in range(port.parts) if parts is None else parts:
        try:
            reclaimed += await _sweep_part(port, part)
        except EngineUnavailable as error:
            failure = error
    if failure is not None:
        raise failure
    return reclaimed


async def _sweep_part(port: StepPort, part: int) -> int:
    reclaimed = 0
    while True:
        expired = (await once_more(lambda: port.renew((), part))).expired
        if not expired:
            return reclaimed
        done = await port.sweep(expired, part)
        reclaimed += done
        if not done:
            return reclaimed


async def snapshot(port: StepPort, offset: int, count: int) -> Snapshot:
    """Return one page of the live locks, earliest deadline first."""
    total, names = await once_more(lambda: port.page(offset, count))
    if not names:
        return Snapshot(total, 0, ())
    now_ms, locks = await port.inspect(names, waiters=False)
    return Snapshot(total, now_ms, tuple(locks))


async def show(port: StepPort, name: str) -> LockState | None:
    """Return one lock with its queue, or None while nobody holds it."""
    _, locks = await once_more(lambda: port.inspect((name,), waiters=True))
    return locks[0] if locks else None
