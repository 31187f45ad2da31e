"""Lock: what to lock and how. Delegation only; the ways in are in :mod:`lockapp.ways`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from lockapp import degraded
from lockapp.callbacks import RAISE, OnLost, OnRevoke, on_lost_option, on_revoke_option
from lockapp.context import current_details
from lockapp.core.duration import to_ms
from lockapp.core.options import OnUnavailable, Release, on_unavailable_option, release_option
from lockapp.core.ports import EnginePort
from lockapp.core.values import HolderState, LockSpec, LockState, Undo
from lockapp.engines import procedures
from lockapp.exceptions import (
    AlreadyHeld,
    EngineUnavailable,
    LockAppError,
    NotAcquired,
    WaitTimeout,
)
from lockapp.lease import Lease
from lockapp.naming import readable
from lockapp.owner import current_owner
from lockapp.process import describe_holder
from lockapp.ways import UNSET, Acquirable, Unset, Wait, wait_seconds

if TYPE_CHECKING:
    from lockapp.engines.base import Engine


class Lock(Acquirable[Lease]):
    """A named lock: at most one holder at a time, FIFO among those who wait.

    Guarantee: a lease is granted to one holder at a time; see :class:`~lockapp.lease.Lease` for
    what its holder may rely on.
    Duty: release what was acquired; ``with`` does. Advisory: it binds only those who ask for it.

    Example::

        with Lock(engine, "order:42", ttl=30, wait=5) as lease:
            ship(order, fence=lease.fence)

    May be used any number of times and by several threads and tasks at once.
    """

    several = False  # whether one task or thread may hold more than one lease of it

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        ttl: float | timedelta | Unset = UNSET,
        wait: Wait | Unset = UNSET,
        max_hold: float | timedelta | Unset | None = UNSET,
        renew: bool = True,
        on_lost: OnLost = None,
        on_revoke: OnRevoke = None,
        reentrant: bool = False,
        on_unavailable: OnUnavailable | Unset = UNSET,
        release: Release = "after_transaction",
        why: str = "",
        limit: int = 1,
        weight: int = 1,
    ) -> None:
        """Describe a lock; nothing is sent.

        Args:
            engine: where it lives.
            name: as :func:`lockapp.naming.lock_name` makes it.
            ttl: seconds a lease lives between renewals.
            wait: seconds to wait for it; 0 not at all; None without end.
            max_hold: seconds after which it is no longer renewed; None for never.
            renew: whether the watchdog prolongs it while the lease object lives.
            on_lost: a function, called with the lease when one is lost: see
                :meth:`Lease.on_lost <lockapp.lease.Lease.on_lost>`. ``"raise"``: leaving a
                ``with`` block raises LeaseLost when the lease was lost and the body raised
                nothing itself. None: the loss is only logged.
            on_revoke: a function, called with the lease when its holder is asked to let go.
            reentrant: whether the task or thread that holds it may acquire it again; it is given
                back with the last release.
            on_unavailable: what to do when the engine can't be asked. ``"raise"``:
                EngineUnavailable. ``"local"``: take a lock within this process, which excludes no
                other process. ``"open"``: go on without a lock. The lease says so
                (``lease.degraded``), and each such run is logged and audited. By default the
                engine's ("raise").
            release: what to do when it is given back inside an open database transaction of this
                thread (``transaction.atomic()``, or autocommit off). ``"after_transaction"``: it is
                held, and renewed, until the outermost block has ended, by commit, rollback or
                close, on every database where one is open; it is released at that moment. The same
                owner may take it again meanwhile and gets the same lease. ``"now"``: it is released
                at once, and the next holder may read what was there before the commit. Coroutines
                have no transactions: there it is always released at once.
            why: a word for operators who see it held.
            limit: what the weights of all holders may add up to. A mutex has 1; see
                :mod:`lockapp.primitives` for the others.
            weight: how much of the limit a lease of this lock takes.

        Raises:
            TypeError, ValueError: a number that makes no sense, by its name.
        """
        super().__init__(engine, name)
        options = engine.options
        self.name = name
        self.spec = LockSpec(
            name=name,
            ttl_ms=options.ttl_ms if isinstance(ttl, Unset) else to_ms(ttl, "ttl"),
            max_hold_ms=_hold_ms(options.max_hold_ms, max_hold),
            limit=limit,
            weight=weight,
        )
        engine.vet(self.spec)
        self.wait_s = options.wait_ms / 1000 if isinstance(wait, Unset) else wait_seconds(wait)
        self.renew = renew
        self.on_lost = on_lost_option(on_lost)
        self.on_revoke = on_revoke_option(on_revoke)
        self.raises_loss = on_lost == RAISE
        self.reentrant = reentrant
        self.on_unavailable = (
            options.on_unavailable
            if isinstance(on_unavailable, Unset)
            else on_unavailable_option(on_unavailable)
        )
        self.why = why
        self._late = release_option(release) == "after_transaction"

    async def attempt(self, port: EnginePort, wait: Wait | Unset, *, scoped: bool = False) -> Lease:
        """See Acquirable."""
        engine = self.engine
        wait_s = self.wait_s if isinstance(wait, Unset) else wait_seconds(wait)
        owner = current_owner()
        held = self.already(owner)
        if held is not None:
            return held.take_up()
        token = os.urandom(16).hex()  # the source of secrets.token_hex, without its detour
        description = describe_holder(current_details(), self.why)
        try:
            outcome = await procedures.acquire(port, self.spec, token, description, wait_s)
            if type(outcome) is procedures.Grant:
                return self.lease(port, token, outcome, owner, scoped)
        except EngineUnavailable as error:
            if not degraded.applies(self, error):
                raise
            down = error
        except LockAppError:
            raise
        except BaseException:  # interrupted between the grant and its lease
            port.defer(Undo(self.name, token, tombstone=False))
            raise
        else:
            assert type(outcome) is procedures.NoGrant
            engine.observe("contended", self)
            raise self.contended(outcome)
        try:
            return await degraded.instead(self, port, down, owner, description, wait_s, scoped)
        finally:
            del down  # its traceback refers to this frame

    def already(self, owner: object) -> Lease | None:
        """Return the lease that ``owner`` has of it and may take up again, if any; ask nobody.

        Raises:
            AlreadyHeld: it has one, may not, and could only wait for itself.
        """
        held = None if self.several else self.engine.held_by(self.name, owner)
        if held is None:
            if self._late and self.engine.transactions is not None:
                self.engine.transactions.vet(self.name)
        elif self.spec.weight > held.spec.weight or not (self.reentrant or held.put_off):
            raise AlreadyHeld(
                f"{self.name!r} is already held here (fence {held.fence}); "
                "waiting for it would be waiting for oneself",
                name=self.name, fence=held.fence,
            )  # fmt: skip
        return held

    def lease(
        self,
        port: EnginePort,
        token: str,
        grant: procedures.Grant,
        owner: object,
        scoped: bool,
        kind: type[Lease] = Lease,
        engine: Engine | None = None,
    ) -> Lease:
        """Make a grant of this lock a lease that is remembered and looked after."""
        engine = engine or self.engine
        lease = kind(engine, self.spec, token, grant, owner, self.renew, scoped, self.several)
        if self._late:
            lease.transactions = engine.transactions
        if self.on_lost is not None and self.on_lost != RAISE:
            lease.on_lost(self.on_lost)
        if self.on_revoke is not None:
            lease.on_revoke(self.on_revoke)
        engine.remember(lease, port)
        return lease

    def contended(self, outcome: procedures.NoGrant) -> NotAcquired:
        """Put into words that somebody else holds it."""
        holder, waited = outcome
        about = holder.description.items() if holder else ()
        by = ", ".join(f"{key} {value}" for key, value in about if key in SHOWN) or "somebody"
        cls = WaitTimeout if waited else NotAcquired
        after = f" after waiting {waited:.1f} s" if waited else ""
        return cls(
            f"{readable(self.name)!r} is held by {by}{after}",
            name=self.name,
            holder=holder,
            waited=waited,
            retry_after=holder.remaining_ms / 1000 if holder else 0.0,
        )

    def is_locked(self) -> bool:
        """Whether anybody holds it. Out of date when it is answered: decide nothing by it.

        Raises:
            EngineUnavailable: could not ask.
        """
        return self.engine.show(self.name) is not None

    async def ais_locked(self) -> bool:
        """See is_locked()."""
        return await self.engine.ashow(self.name) is not None

    def holder(self) -> HolderState | None:
        """Who holds it (of several: whose lease ends first), as people read it, or None.

        Raises:
            EngineUnavailable: could not ask.
        """
        return _foremost(self.engine.show(self.name))

    async def aholder(self) -> HolderState | None:
        """See holder()."""
        return _foremost(await self.engine.ashow(self.name))

    def __repr__(self) -> str:
        return f"<Lock {readable(self.name)!r} on {self.engine.alias!r}>"


SHOWN = frozenset(("host", "pid", "task", "task_id", "user", "path", "why"))
"""What of a holder's description an error message repeats."""


def _foremost(state: LockState | None) -> HolderState | None:
    return None if state is None else min(state.holders, key=lambda it: it.deadline_ms)


def _hold_ms(default_ms: int, given: float | timedelta | Unset | None) -> int:
    if isinstance(given, Unset):
        return default_ms
    return 0 if given is None else to_ms(given, "max_hold")
