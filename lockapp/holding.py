"""What a holder may know about its lease: whether it has it, for how long, and what befell it.

The invariant: ``lost`` is never False while somebody else could have been granted the lock, and
never False again once it was True. It is computed when it is read, from this process's own clock,
and so is right also in a process that was frozen, whose threads got no turn, or that the network
cut off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from lockapp.callbacks import Callback, call_all
from lockapp.core.deadline import valid_until
from lockapp.core.values import LockSpec, Renewal, RenewItem, Undo
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotHeld
from lockapp.naming import name_digest

if TYPE_CHECKING:
    from lockapp.engines.base import Engine, Transactions
    from lockapp.engines.procedures import Grant
    from lockapp.lease import Lease

logger = logging.getLogger("lockapp")

HELD, RELEASING, LEFT = "held", "releasing", "left to the watchdog"
RELEASED, LOST = "released", "lost"


class Holding:
    """What is known of a lease on this side. :class:`~lockapp.lease.Lease` gives it back.

    Guarantee: while ``lost`` is False, nobody else holds the lock (exceptions: an operator's
    forced release until it is noticed, a server that lost its data).
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
    def _lease(self) -> Lease:
        """What others are shown of it: there is no holding that is no lease."""
        return cast("Lease", self)

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
    def held(self) -> bool:
        """Whether the watchdog has to look after it: neither released nor known to be lost."""
        return self._state is HELD

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
            call_all(self._callbacks, self._lease)

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
            call_all(self._revoke_callbacks, self._lease)

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
                call_all(self._revoke_callbacks, self._lease)

    def lose(self, reason: str, note: str = "") -> None:
        """Take note that it is over. The first call counts; callbacks are called once."""
        if self._state is HELD:
            self._state = LOST
            self._engine.forget(self._lease)
            self._note_loss(reason, note)

    def _note_loss(self, reason: str, note: str) -> None:
        self._reason, self._note = reason, note
        logger.warning(
            "the lease of %s (fence %d) was lost: %s %s", self.name, self.fence, reason, note,
            extra={"lockapp_name": self.name, "lockapp_fence": self.fence},
        )  # fmt: skip
        self._engine.observe("lost", self)
        call_all(self._callbacks, self._lease)

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

    def __repr__(self) -> str:
        state = LOST if self.lost else self._state
        return f"<Lease of {self.name!r} fence={self.fence} {state}>"
