"""A lease: one time-limited grant of a lock, and how it is prolonged and given back.

What its holder may know about it is in :mod:`lockapp.holding`. What neither can do is stop the
holder. Between a ``check()`` and the write that follows, the process may be paused for longer than
the lease lasts; only the protected resource can refuse the late write, by comparing
``lease.fence``.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from lockapp.core.ports import StepPort
from lockapp.core.run import run_sync
from lockapp.core.values import Gone, Granted, Renewal
from lockapp.engines import procedures
from lockapp.exceptions import LockAppError, NotHeld
from lockapp.holding import HELD, LEFT, LOST, RELEASED, RELEASING, Holding

logger = logging.getLogger("lockapp")


class Lease(Holding):
    """One grant of a lock.

    Guarantee: while ``lost`` is False, nobody else holds the lock (exceptions: an operator's
    forced release until it is noticed, a server that lost its data).
    Duty: release it, or let a ``with`` block do so; look at ``check()`` before each step that
    must not be done by two. A dropped lease is no longer renewed and ends within its ttl.
    """

    __slots__ = ()

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
