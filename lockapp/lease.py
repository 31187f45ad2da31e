"""A lease: one time-limited grant of a lock, and what its holder may know about it.

The invariant: ``lost`` is never False while somebody else could have been granted the lock. It is
computed when it is read, from this process's own clock, and so is right also in a process that
was frozen, whose threads got no turn, or that the network cut off.

What it can't do is stop the holder. Between a ``check()`` and the write that follows, the process
may be paused for longer than the lease lasts; only the protected resource can refuse the late
write, by comparing ``lease.fence``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lockapp.callbacks import Callback, call_all
from lockapp.core.deadline import valid_until
from lockapp.core.ports import StepPort
from lockapp.core.run import run_sync
from lockapp.core.values import Gone, Granted, LockSpec, Renewal, RenewItem, Undo
from lockapp.engines import procedures
from lockapp.exceptions import EngineUnavailable, LeaseLost, LockAppError, NotHeld
from lockapp.naming import name_digest

if TYPE_CHECKING:
    from lockapp.engines.base import Engine, Transactions
    from lockapp.engines.procedures import Grant

logger = logging.getLogger("lockapp")

HELD, RELEASING, LEFT = "held", "releasing", "left to the watchdog"
RELEASED, LOST = "released", "lost"


class Lease:
    """One grant of a lock.

    Guarantee: while ``lost`` is False, nobody else holds the lock (exceptions: an operator's
    forced release until it is noticed, a server that lost its data).
    Duty: release it, or let a ``with`` block do so; look at ``check()`` before each step that
    must not be done by two. A dropped lease is no longer renewed and ends within its ttl.
    """

    __slots__ = (
        "__weakref__", "_attempted", "_callbacks", "_doubtful", "_engine", "_note", "_owner",
        "_pid", "_reason", "_revoke_callbacks", "_revoked", "_scoped", "_several", "_state",
        "_token", "confirmed", "fence", "final", "holds", "noticed", "pins", "put_off", "renewing",
        "spec", "transactions", "valid_until", "waited",
    )  # fmt: skip

    degraded = ""
    """``"local"`` or ``"open"`` when the engine could not be asked: see :mod:`lockapp.degraded`."""

    def __init__(
        self,
        engine: Engine,
        spec: LockSpec,
        token: str,
        grant: Grant,
        owner: object,
        renew: bool,
        scoped: bool,
        several: bool = False,
    ) -> None:
        self.spec = spec
        self.fence = grant.fence
        """The fencing token: an integer that grows with each grant of any lock of this engine."""
        self.waited = grant.waited_s
        """Seconds spent waiting for it."""
        self.valid_until = grant.valid_until
        self.confirmed = grant.confirmed
        self.renewing = renew
        self.noticed = False
        """Whether the watchdog has been told to ask about it, whatever its due time."""
        self.holds = 1
        """How often its owner has it: more than once through a reentrant lock."""
        self.transactions: Transactions | None = None  # which put its release off
        self.pins = 0  # how many transactions, still open, keep it from being released
        self.put_off = False
        """Whether it has been given back, and is released when those have ended."""
        self.final = 0 < spec.max_hold_ms <= spec.ttl_ms
        """Whether max_hold cuts this life short: no renewal can prolong it any more."""
        self._engine = engine
        self._several = several
        self._scoped = scoped  # belongs to a `with` block: dropped means that the block was left
        self._token = token
        self._owner = owner
        self._doubtful = grant.doubtful
        self._attempted = False
        self._state = HELD
        self._reason = ""
        self._note = ""
        self._callbacks: list[Callback] = []
        self._revoke_callbacks: list[Callback] = []
        self._revoked = ""
        self._pid = engine.pid

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.spec.name

    @property
    def engine(self) -> Engine:
        """The engine that granted it."""
        return self._engine

    @property
    def mark(self) -> str:
        """Which lease this is, for records that outlive it: a digest, since tokens are secret."""
        return name_digest(self._token)

    @property
    def live(self) -> bool:
        """Whether it is held and has not been lost, by this process's own clock."""
        return (
            self._state is HELD
            and self._engine.now() < self.valid_until
            and self._pid == os.getpid()
        )

    @property
    def lost(self) -> bool:
        """Whether it was held and is over without having been released. Computed when read.

        A lease that was lost stays lost, also after :meth:`release` has said so.
        """
        return bool(self._reason) or (self._state is HELD and not self.live)

    @property
    def lost_reason(self) -> str:
        """Why it was lost: expired, max_hold, forced, abandoned, gone, forked; empty if it wasn't.

        See :attr:`lost_note` for who and why.
        """
        if self._state is HELD and not self.live:
            if self._pid != os.getpid():
                return "forked"
            return "max_hold" if self.final else "expired"
        return self._reason

    @property
    def lost_note(self) -> str:
        """What is known about who took it and why (JSON), when somebody did."""
        return self._note

    @property
    def remaining(self) -> float:
        """Seconds for which it may be relied on without another renewal; 0 when lost."""
        return max(self.valid_until - self._engine.now(), 0.0) if self.live else 0.0

    def check(self) -> None:
        """Do nothing while the lease is live.

        Raises:
            LeaseLost: it is over; stop working on what it protected.
            NotHeld: it has been released.
            EngineUnavailable: whether it is over is not known just now; on ZooKeeper, while the
                connection is broken.
        """
        if self.live:
            if not self._engine.doubt:
                return
            raise EngineUnavailable(
                f"whether the lease of {self.name!r} is still held is not known: "
                f"{self._engine.doubt}",
                alias=self._engine.alias, reason="reset",
            )  # fmt: skip
        if self.lost:
            raise self._loss()
        raise NotHeld(f"the lease of {self.name!r} has been released", name=self.name)

    def on_lost(self, callback: Callback) -> None:
        """Have ``callback(lease)`` called once when the lease is lost.

        It is called by the watchdog (its thread, or the event loop of an asynchronous lease) or
        by the release that finds it out, never by a reader of :attr:`lost`; at once, here, if the
        lease is known to be lost already. An exception in it is logged.
        """
        self._callbacks.append(callback)
        if self._reason:  # looked at last: whoever notes the loss meanwhile finds the callback
            call_all(self._callbacks, self)

    @property
    def revoke_requested(self) -> bool:
        """Whether somebody asked its holder to let go. Nothing forces the holder to."""
        return bool(self._revoked)

    @property
    def revoke_note(self) -> str:
        """Who asked and why (JSON), when somebody did."""
        return self._revoked

    def on_revoke(self, callback: Callback) -> None:
        """Have ``callback(lease)`` called once when its holder is asked to let go.

        As :meth:`on_lost`: by the watchdog, or at once when it is known already.
        """
        self._revoke_callbacks.append(callback)
        if self._revoked:
            call_all(self._revoke_callbacks, self)

    def release(self) -> None:
        """Release it, waking the next waiter. A second call does nothing.

        Inside an open database transaction of this thread it is put off until that has ended
        (see ``release`` of :class:`lockapp.lock.Lock`): until then it is held and renewed.

        Raises:
            LeaseLost: it had been lost before; nothing was changed on the server.
            EngineUnavailable: no answer. It may be called again, and the watchdog goes on trying.
            NotHeld: called in a forked child; the lease is the parent's.
        """
        run_sync(self.give_back(self._engine.sync))

    async def arelease(self) -> None:
        """See release()."""
        await self.give_back(self._engine.aio())

    def renew(self) -> None:
        """Set its life back to the full ttl now (the watchdog does so by itself).

        Raises:
            LeaseLost: it is over.
            EngineUnavailable: no answer; it lives until its deadline.
            NotHeld: it has been released.
        """
        run_sync(self._renew(self._engine.sync))

    async def arenew(self) -> None:
        """See renew()."""
        await self._renew(self._engine.aio())

    async def give_back(self, port: StepPort, *, at_once: bool = False) -> None:
        """Release it through ``port``; see release().

        ``at_once``: without regard to transactions, except those that keep it already.
        """
        if self._state is RELEASED or self.put_off:
            return
        if self._pid != os.getpid():
            raise NotHeld(
                f"the lease of {self.name!r} belongs to the parent process", name=self.name
            )
        if self.holds > 1:
            self.holds -= 1
            return
        late = None if at_once else self.transactions
        if self.live and ((late is not None and late.put_off(self)) or self.pins):
            self.put_off = True
            return
        before, again = self._state, self._attempted
        self._state = RELEASING  # from here on the watchdog leaves it alone
        self._attempted = True
        self._engine.forget(self)
        try:
            reply = await procedures.release(port, self.name, self._token, tombstone=self._doubtful)
        except LockAppError:
            self._state = LEFT  # to the watchdog, which goes on trying
            raise
        self._state = RELEASED
        if before is LOST:
            raise self._loss()
        if not isinstance(reply, Gone) or (again and reply.kind in procedures.DONE):
            # Asked again, "gone" means that the first request, or the watchdog, has done it;
            # unless somebody took it away or it ran out: then it was still held until that.
            self._engine.observe("released", self)
            return
        self._note_loss(reply.kind or "gone", reply.note)
        raise self._loss()

    def take_up(self) -> Lease:
        """Return it, for its owner to go on with: again, or still."""
        if self.put_off:
            self.put_off = False
        else:
            self.holds += 1
        return self

    def let_go(self, port: StepPort) -> None:
        """Have the watchdog release it. Never blocks, never fails; for an exception under way."""
        if self.pins:
            self.put_off = True
            return
        if self._state is HELD:
            self._state = RELEASING
            self._attempted = True
            self._engine.forget(self)
        port.defer(self.undo)

    def downgrade(self) -> None:
        """Turn the lease of a writer into that of a reader; nobody comes between.

        Readers that wait are let in. The lease is prolonged on the way and keeps its fence. A
        second call changes nothing.

        Raises:
            LeaseLost: it is over.
            EngineUnavailable: no answer; it may be called again.
            NotHeld: it has been released.
        """
        run_sync(self._downgrade(self._engine.sync))

    async def adowngrade(self) -> None:
        """See downgrade()."""
        await self._downgrade(self._engine.aio())

    async def _downgrade(self, port: StepPort) -> None:
        self.check()
        sent_at, spec = port.now(), replace(self.spec, weight=1)
        reply = await procedures.once_more(
            lambda: port.downgrade(self.name, self._token, spec.weight, spec.ttl_ms)
        )
        if type(reply) is Gone:
            self.lose(reply.kind or "gone", reply.note)
            raise self._loss()
        self.spec = spec
        assert type(reply) is Granted
        renewal = Renewal(reply.deadline_ms, "", "")
        self.renewed(sent_at, reply.now_ms, renewal, port.defer)
        self.check()

    async def _renew(self, port: StepPort) -> None:
        self.check()
        sent_at = port.now()
        item = self.renew_item._replace(ttl_ms=self.spec.ttl_ms)
        reply = await procedures.once_more(lambda: port.renew((item,)))
        self.renewed(sent_at, reply.now_ms, reply.renewals[0], port.defer)
        self.check()

    @property
    def key(self) -> tuple[object, ...]:
        """Under which the engine remembers it: one per name and owner, but of a semaphore many."""
        if self._several:
            return self.spec.name, self._owner, self.fence
        return self.spec.name, self._owner

    @property
    def renew_item(self) -> RenewItem:
        """What the watchdog sends to have it prolonged, or just asked about."""
        prolonged = self.renewing or not self.confirmed
        return RenewItem(self.spec.name, self._token, self.spec.ttl_ms if prolonged else 0)

    @property
    def undo(self) -> Undo:
        """What the watchdog sends when it could not be released properly."""
        return Undo(self.spec.name, self._token, tombstone=self._doubtful, why="")

    @property
    def held(self) -> bool:
        """Whether the watchdog has to look after it: neither released nor known to be lost."""
        return self._state is HELD

    def renewed(
        self, sent_at: float, now_ms: int, renewal: Renewal, defer: Callable[[Undo], None]
    ) -> None:
        """Take note of a renewal's answer.

        One that comes when the lease is over by our own clock is too late, whatever it says: who
        has read that it is lost has stopped. What the server then keeps for nobody is given back
        by ``defer``.
        """
        if not renewal.deadline_ms:
            self.lose(renewal.kind, renewal.note)
        elif self.lost:
            defer(self.undo)
            self.lose(self.lost_reason)
        elif self._state is HELD:
            self.valid_until = valid_until(sent_at, now_ms, renewal.deadline_ms)
            self.confirmed = True
            self.final = renewal.deadline_ms < now_ms + self.spec.ttl_ms
            if renewal.kind == "revoked":
                self._revoked = renewal.note or "{}"  # of several, who asked last
                call_all(self._revoke_callbacks, self)

    def lose(self, reason: str, note: str = "") -> None:
        """Take note that it is over. The first call counts; callbacks are called once."""
        if self._state is HELD:
            self._state = LOST
            self._engine.forget(self)
            self._note_loss(reason, note)

    def _note_loss(self, reason: str, note: str) -> None:
        self._reason, self._note = reason, note
        logger.warning(
            "the lease of %s (fence %d) was lost: %s %s", self.name, self.fence, reason, note,
            extra={"lockapp_name": self.name, "lockapp_fence": self.fence},
        )  # fmt: skip
        self._engine.observe("lost", self)
        call_all(self._callbacks, self)

    def _loss(self) -> LeaseLost:
        reason = self.lost_reason
        return LeaseLost(
            f"the lease of {self.name!r} (fence {self.fence}) is over: "
            f"{reason} {self._note}".strip(),
            name=self.name,
            fence=self.fence,
            reason=reason,
            note=self._note,
        )

    def __del__(self) -> None:
        if getattr(self, "_pid", None) != os.getpid():
            return  # the parent's, or interrupted in the making
        if self._state is RELEASING or (self._state is HELD and (self._scoped or self.put_off)):
            # An exception came between the grant and the body, or between the body and the
            # release, where no `try` of ours reaches: the watchdog releases it.
            self._engine.forget(self)
            self._engine.sync.defer(self.undo)
        elif self._state is HELD:
            self._engine.forget(self)
            logger.warning(
                "a lease of %s was dropped without release; it ends within its ttl",
                self.spec.name,
                extra={"lockapp_name": self.spec.name},
            )

    def __repr__(self) -> str:
        state = LOST if self.lost else self._state
        return f"<Lease of {self.name!r} fence={self.fence} {state}>"
