"""The watchdog: renews what is held, notices what is lost, undoes what was left half done.

One per engine and process (``watchdog_thread``), and one per engine and event loop
(``watchdog_task``). Both go the same :meth:`Watchdog.round`, written once; they differ in how they
sleep.

Theory of operation
-------------------
* Leases are handed in by appending to a deque: no lock on the way of an acquire. The heap of due
  times belongs to the watchdog alone. It is woken only for something due earlier than what it
  sleeps for.
* It keeps weak references: a dropped lease is renewed no more.
* Leases that are due, and those due soon, are renewed together, up to ``renew_batch`` a call. A
  call is about one part of the engine (a shard of a Cluster): what becomes of one part is nothing
  to the leases of another.
* A failed renewal is tried again until the lease's own deadline; then the lease is lost.
* A notice channel tells at once what others did to a lease (forced, abandoned, asked to let go). A
  notice only makes a renewal due: its answer is the truth. When the channel opens again after it
  broke, everything held is asked for once. When it first opens it is not: what was told in the
  moment between the first grant and that, the next renewal tells.
* A watchdog with nothing to do ends; the next lease starts another.

Timeline of a lease with ttl 30 s that is held for long::

    t=0   granted; due at 10 s (a handed-off one: within its claim window)
    t=10  renewed to t=40;  t=20 to t=50 …
    t=3600  max_hold: renewed no more; lost when its last deadline passes
"""

from __future__ import annotations

import heapq
import logging
import weakref
from abc import ABC, abstractmethod
from collections import deque
from itertools import count
from typing import Generic, TypeVar

from lockapp.core import renewal, sweeping
from lockapp.core.chance import chance
from lockapp.core.ports import EVERY_LOCK, Notices, WatchPort
from lockapp.core.sweeping import Sweeps
from lockapp.core.values import Undo
from lockapp.engines import procedures
from lockapp.exceptions import EngineError, EngineUnavailable
from lockapp.lease import Lease

logger = logging.getLogger("lockapp")

EARLIEST = (1 - (1 - renewal.JITTER) / renewal.RENEWALS_PER_TTL) / 1000
"""Times a life in ms: how many seconds before its end a lease may be due at the earliest."""
NAP = 0.00029
"""Times claim_ms: seconds, less than after which a handed-off lease is due at the earliest."""
CROWD = 10_000
"""Leases handed in and not looked at yet that make it worth waking: most are over by then."""
GIVE_UP_UNDO_S = 3600.0
"""An undo that got no answer for so long is dropped."""
LISTEN_AGAIN_S = 1.0
"""How soon after an attempt to open a notice channel the next one may follow."""
LINGER_S = 5.0
"""How long a watchdog without work waits for more, before it closes idle connections and ends.

It sleeps no longer than this at a time either: nobody wakes it when he releases, and so it looks
whether what it sleeps for is still held.
"""


N = TypeVar("N", bound=Notices)


class Watchdog(ABC, Generic[N]):
    """The part of a watchdog that is the same for a thread and a task."""

    def __init__(self, port: WatchPort[N], alias: str) -> None:
        self.port = port
        self._claim_ms = port.options.claim_window_ms
        self.name = f"lockapp-watchdog-{alias}"
        self._handed_in: deque[weakref.ref[Lease]] = deque()
        self._undo: deque[tuple[Undo, float]] = deque()
        self._heap: list[tuple[float, int, weakref.ref[Lease]]] = []
        self._order = count()
        self._wake_at = float("inf")
        self._undo_at = 0.0
        self._sweeps = Sweeps(port.parts, chance.randrange(port.parts))
        self._noticed: deque[str] = deque()
        self.notices: N | None = None
        self._deaf = False  # the channel broke or could not be opened: something may be missed
        self._listen_at = 0.0
        self._hurried = False
        self._rest_over_at: float | None = None  # when to end, unless something turns up

    def watch(self, lease: Lease, ref: weakref.ref[Lease]) -> None:
        """Look after ``lease`` from now on, as long as somebody else keeps it."""
        self._handed_in.append(ref)
        # No clock is read here: this is on the way of every acquire, and early is early enough.
        life_ms = lease.spec.ttl_ms if lease.confirmed else self._claim_ms
        soonest = lease.valid_until - life_ms * EARLIEST
        if soonest < self._wake_at or len(self._handed_in) > CROWD:
            self.wake()

    def defer(self, undo: Undo) -> None:
        """Carry out ``undo`` soon, and again until it is answered."""
        self._undo.append((undo, self.port.now() + GIVE_UP_UNDO_S))
        self._undo_at = 0.0
        self.wake()

    @abstractmethod
    def wake(self) -> None:
        """Have a round run now."""

    def notice(self, name: str) -> None:
        """Look at the leases of ``name`` now: something happened to one of them. Any thread."""
        self._noticed.append(name)
        self.wake()

    def hurry(self) -> None:
        """Have a watchdog that runs end as soon as it has nothing to do, without lingering."""
        self._hurried = True
        self.ring()

    @abstractmethod
    def ring(self) -> None:
        """Have a round run now if the watchdog lives."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Sleep for so long, or until woken."""

    @abstractmethod
    def may_end(self) -> bool:
        """Whether to end now; from then on the next :meth:`wake` starts anew."""

    def has_work(self) -> bool:
        """Whether something was handed in that no round has seen."""
        return bool(self._handed_in or self._undo)

    async def live(self) -> None:
        """Go round until there has been nothing to do, and no connection in use, for a while.

        Goes past every fault: who ended by one would let all leases of the process run out.
        """
        self._hurried = False
        self._rest_over_at = None
        while True:
            try:
                if await self._turn():
                    return
            except Exception:
                logger.exception("%s: a round failed, going on", self.name)
                self._rest_over_at = None
                await self.port.sleep(renewal.RETRY_S)

    async def _turn(self) -> bool:
        """Go one round and sleep until the next is due; or end, and say so."""
        await self._hear()
        due = await self.round()
        now = self.port.now()
        if due is not None:
            self._rest_over_at = None
        elif self._rest_over_at is None:
            self._rest_over_at = now + LINGER_S
        over = self._rest_over_at is not None and (self._hurried or now >= self._rest_over_at)
        if over and await self.port.rest():
            # First of all, since once it may end another may start, and it hears for itself.
            await self._stop_hearing()
            self._listen_at, self._deaf = 0.0, False
            if self.may_end():
                return True
        if due is None:
            # Short naps: what is handed over while we linger is due after the next one, so
            # that nobody has to wake us.
            due = now + min(LINGER_S, self._claim_ms * NAP)
            self._wake_at = due
        if self.notices is None:
            due = min(due, self._listen_at)
        await self.pause(min(due - now, LINGER_S))
        return False

    async def _hear(self) -> None:
        """Have the notice channel open while this watchdog lives; notices are hints only.

        A server may take the connection and refuse the channel, so that the attempts are spaced
        whether they fail at once or later.
        """
        if self.notices is not None and self.notices.stale:
            await self._stop_hearing()
            self._deaf = True
        if self.notices is None and self.port.now() >= self._listen_at:
            self._listen_at = self.port.now() + LISTEN_AGAIN_S
            try:
                self.notices = await self.port.listen()
            except EngineError as error:
                self._deaf = True
                logger.debug("%s: no notice channel: %s", self.name, error)

    async def _stop_hearing(self) -> None:
        notices, self.notices = self.notices, None
        if notices is not None:
            await notices.close()

    def _due(self, lease: Lease, now: float) -> float:
        """When to look at ``lease`` next, after a grant or a renewal."""
        if lease.confirmed and (lease.final or not lease.renewing):
            return lease.valid_until
        return renewal.renew_at(now, lease.valid_until - now, chance.random())

    async def round(self) -> float | None:
        """Do what is due; return when (own clock) the next is, or None when nothing is left."""
        self._wake_at = float("-inf")  # awake: nobody needs to wake it
        await self._carry_out_undo()
        now = self.port.now()
        self._take_in(now)
        self._take_noticed(now)
        batch = self._take_due(now)
        while batch:
            await self._renew_all(batch)
            now = self.port.now()
            self._take_in(now)
            batch = self._take_due(now)
        part = self._sweeps.next(now)
        if part is not None:  # one a round: what is due must not wait for a tour of all
            await self._sweep(part)
        times = [self._heap[0][0]] if self._heap else []
        if self._undo:
            times.append(self._undo_at)
        if (sweep_at := self._sweeps.due(now)) != float("inf"):
            times.append(sweep_at)
        self._wake_at = min(times, default=float("inf"))
        # Looked at last: what is handed in from now on compares itself with the time just set.
        return now if self._handed_in else min(times, default=None)

    def _take_in(self, now: float) -> None:
        while self._handed_in:
            ref = self._handed_in.popleft()
            lease = ref()
            if lease is not None and lease.held:
                heapq.heappush(self._heap, (self._due(lease, now), next(self._order), ref))

    def _take_noticed(self, now: float) -> None:
        """Make due what something happened to: the answer to its renewal is the truth."""
        if not self._noticed:
            return
        names = set()
        while self._noticed:
            names.add(self._noticed.popleft())
        if EVERY_LOCK in names and self._deaf:
            self._deaf = False
        else:  # the first opening misses next to nothing; not worth a renewal of all
            names.discard(EVERY_LOCK)
        for at, (_, order, ref) in enumerate(self._heap):
            lease = ref()
            if lease is not None and lease.held and (EVERY_LOCK in names or lease.name in names):
                lease.noticed = True
                self._heap[at] = (now, order, ref)
        heapq.heapify(self._heap)

    def _take_due(self, now: float) -> list[Lease]:
        """Take leases to be renewed off the heap, a call's per part; note the losses on the way."""
        batch: list[Lease] = []
        most = self.port.options.renew_batch * self.port.parts
        while self._heap and len(batch) < most:
            due, _, ref = self._heap[0]
            lease = ref()
            if lease is None or not lease.held:
                heapq.heappop(self._heap)
                continue
            early = lease.spec.ttl_ms / 1000 / renewal.RENEWALS_PER_TTL * renewal.JITTER
            if due > now + (early if batch else 0):
                break
            heapq.heappop(self._heap)
            if now >= lease.valid_until:
                self._sweeps.suspect(self.port.part_of(lease.name), now + sweeping.AFTER_S)
                try:
                    lease.lose(lease.lost_reason or "expired")
                except BaseException:  # of who was told: the others stay looked after
                    self._put_off(batch)
                    raise
            elif lease.confirmed and (lease.final or not lease.renewing) and not lease.noticed:
                self._push(lease.valid_until, ref)
            else:
                batch.append(lease)
        return batch

    async def _renew_all(self, due: list[Lease]) -> None:
        parts: dict[int, list[Lease]] = {}
        for lease in due:
            parts.setdefault(self.port.part_of(lease.name), []).append(lease)
        most = self.port.options.renew_batch
        calls = [
            leases[at : at + most]
            for leases in parts.values()
            for at in range(0, len(leases), most)
        ]
        try:
            while calls:
                await self._renew(calls.pop())
        except BaseException:
            for batch in calls:
                self._put_off(batch)  # they stay looked after
            raise

    async def _renew(self, batch: list[Lease]) -> None:
        now = self.port.now()
        done = 0
        try:
            reply = await self.port.renew([lease.renew_item for lease in batch])
            self._sweeps.asked(now)
            if reply.expired:
                self._sweeps.suspect(self.port.part_of(batch[0].name), now)
            for lease, answer in zip(batch, reply.renewals, strict=True):
                lease.noticed = False
                lease.renewed(now, reply.now_ms, answer, self.defer)
                if lease.held:
                    self._push(self._due(lease, now), weakref.ref(lease))
                done += 1
        except EngineError as error:
            logger.warning("could not renew %d lease(s), trying again: %s", len(batch), error)
            self._put_off(batch[done:])
        except BaseException:  # a fault of ours or of who was told, or the loop ends
            self._put_off(batch[done:])  # they stay looked after
            raise

    def _put_off(self, batch: list[Lease]) -> None:
        for lease in batch:
            due = renewal.retry_at(self.port.now(), lease.valid_until)
            self._push(due, weakref.ref(lease))

    def _push(self, due: float, ref: weakref.ref[Lease]) -> None:
        heapq.heappush(self._heap, (due, next(self._order), ref))

    async def _sweep(self, part: int) -> None:
        try:
            await procedures.sweep(self.port, (part,))
        except EngineError as error:
            logger.warning("could not reclaim expired leases: %s", error)

    async def _carry_out_undo(self) -> None:
        if self.port.now() < self._undo_at:
            return
        silent = set()  # parts of which nothing is heard
        for _ in range(len(self._undo)):
            undo, until = self._undo[0]
            part = self.port.part_of(undo.name)
            if part in silent:
                self._undo.rotate(-1)  # their order doesn't matter
                continue
            try:
                await self.port.release(
                    undo.name, undo.token, tombstone=undo.tombstone, why=undo.why
                )
            except EngineUnavailable as error:
                self._undo_at = self.port.now() + renewal.RETRY_S
                if self.port.now() < until:
                    silent.add(part)
                    self._undo.rotate(-1)
                    continue
                logger.error("gave up undoing a request for %s: %s", undo.name, error)
            except EngineError:
                logger.exception("could not undo a request for %s", undo.name)
            self._undo.popleft()
