"""The lock server of the memory engine: the steps, in plain Python, one at a time.

Invariants, as of any lock server of this package: weights of live holders never exceed the limit;
nobody passes a live waiter; a token that holds is answered with its own lease again; a buried
token is never granted; only what a token itself holds is ended or prolonged by it.

A free name leaves nothing behind, except that tombstones stay for their time, and then until the
next step of any name. There is one server per location, prefix and process. A forked child's
starts empty: what the parent holds binds only the parent.
"""

from __future__ import annotations

import heapq
import os
import secrets
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lockapp.core.options import EngineOptions
from lockapp.core.values import (
    AllGranted,
    Busy,
    EventRecord,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    HolderState,
    LockSpec,
    LockState,
    Queued,
    Refused,
    Released,
    Renewal,
    RenewItem,
    RenewReply,
    StreamIdentity,
)
from lockapp.engines.clock import boot_clock, steady_clock_us
from lockapp.engines.events import EventLog
from lockapp.engines.memory.flights import Flights
from lockapp.engines.memory.records import Inbox, Record, Waiter
from lockapp.engines.memory.step import Step


class MemoryServer:
    """Locks for the threads and event loops of one process.

    Every method is one step: it holds the guard from its first look to its last change. ``policy``
    brings the numbers of the engine that asks, as with a real server.
    """

    def __init__(
        self,
        clock_us: Callable[[], int] | None = None,
        now: Callable[[], float] = boot_clock,
    ) -> None:
        """Start empty.

        Args:
            clock_us: the server's clock in epoch microseconds; tests turn its hands.
            now: the clock, in seconds, of the engines that ask this server.
        """
        self.clock_us = clock_us or steady_clock_us()
        self.now = now
        self.start_empty()
        _SERVERS.add(self)

    def start_empty(self) -> None:
        """Forget everything, as a restart does; also the guard, which a fork may have frozen."""
        self.records: dict[str, Record] = {}
        self.listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self.log = EventLog(server=secrets.token_hex(20))
        self.counts: Counter[str] = Counter()
        self.fence = 0
        self.buried: list[tuple[int, str]] = []  # heap of (until, name): where tombstones stand
        self._guard = threading.Lock()
        self.flights = Flights(self)

    def put(self, name: str, record: Record) -> None:
        """Keep a changed record, or forget the name when there is nothing to remember."""
        if record:
            self.records[name] = record
        else:
            self.records.pop(name, None)

    def _step(self, name: str, policy: EngineOptions) -> Step:
        self._forget_tombstones()
        return Step(self, name, policy)

    def _forget_tombstones(self) -> None:
        now_ms = self.clock_us() // 1000
        while self.buried and self.buried[0][0] <= now_ms:
            _, name = heapq.heappop(self.buried)
            record = self.records.get(name)
            if record and not record.holders and not record.queue:
                live = {t: s for t, s in record.tombstones.items() if s.until_ms > now_ms}
                self.put(name, replace(record, tombstones=live))

    def acquire(
        self, policy: EngineOptions, spec: LockSpec, token: str, description: str,
        make_inbox: Callable[[], Inbox] | None,
    ) -> Granted | Queued | Busy | Refused:  # fmt: skip
        """Grant, or queue the token (with ``make_inbox``), or say who holds the lock."""
        with self._guard:
            step = self._step(spec.name, policy)
            record, now_ms = step.record, step.now_ms
            buried = record.tombstones.get(token)
            if buried:
                return step.commit(Refused(now_ms, buried.kind, buried.note))
            if token in record.queue:
                seen_until_ms = now_ms + policy.seen_ms
                record.queue[token] = replace(record.queue[token], seen_until_ms=seen_until_ms)
            step.hand_off()
            mine = record.holders.get(token)
            if mine:
                deadline_ms = mine.prolonged_ms(now_ms, mine.ttl_ms)
                mine = replace(mine, deadline_ms=deadline_ms, confirmed=True, inbox=None)
                record.holders[token] = mine
            elif not record.queue and record.fits(spec.weight, spec.limit):
                mine = step.grant_spec(spec, token, description)
            if mine:
                return step.commit(Granted(now_ms, mine.deadline_ms, mine.fence))
            if token not in record.queue:
                step.count("contended")
            if make_inbox is None:
                return step.commit(Busy(now_ms, _shown(record, now_ms)))
            if token not in record.queue:
                record.queue[token] = Waiter(
                    seen_until_ms=now_ms + policy.seen_ms, queued_ms=now_ms, ttl_ms=spec.ttl_ms,
                    weight=spec.weight, limit=spec.limit, max_hold_ms=spec.max_hold_ms,
                    description=description, inbox=make_inbox(),
                )  # fmt: skip
            position = list(record.queue).index(token)
            return step.commit(Queued(now_ms, position, record.deadline_ms))

    def acquire_all(
        self, policy: EngineOptions, specs: Sequence[LockSpec], tokens: Sequence[str],
        description: str,
    ) -> AllGranted | Busy:  # fmt: skip
        """Grant several locks to one caller: all of them, or none."""
        with self._guard:
            steps = [self._step(spec.name, policy) for spec in specs]
            for step in steps:
                step.hand_off()
            asked = list(zip(steps, specs, tokens, strict=True))
            for step, spec, token in asked:
                if not step.may_have(spec, token):
                    step.count("contended")
                    for other in steps:
                        other.commit(None)
                    return Busy(step.now_ms, _shown(step.record, step.now_ms))
            grants = []
            for step, spec, token in asked:
                mine = step.record.holders.get(token) or step.grant_spec(spec, token, description)
                grants.append((mine.deadline_ms, mine.fence))
                step.commit(None)
            return AllGranted(steps[0].now_ms, grants)

    def downgrade(
        self, policy: EngineOptions, name: str, token: str, weight: int, ttl_ms: int
    ) -> Granted | Gone:
        """Make a holder's weight smaller; nobody comes between."""
        with self._guard:
            step = self._step(name, policy)
            buried = step.record.tombstones.get(token)
            reply: Granted | Gone
            if buried:
                reply = Gone(step.now_ms, buried.kind, buried.note)
            elif token in step.record.holders:
                mine = step.shrink(token, weight, ttl_ms)
                reply = Granted(step.now_ms, mine.deadline_ms, mine.fence)
            else:
                reply = Gone(step.now_ms, "expired" if token in step.expired else "", "")
            step.hand_off()
            return step.commit(reply)

    def inbox(self, name: str, token: str) -> Inbox | None:
        """Return where the token's grant arrives; None when it neither waits nor was handed one."""
        with self._guard:
            record = self.records.get(name)
            return record.inbox(token) if record else None

    def release(
        self, policy: EngineOptions, name: str, token: str, *, tombstone: bool, why: str
    ) -> Released | Gone:
        """End a token's lease, or its waiting, and hand the lock on."""
        with self._guard:
            step = self._step(name, policy)
            record, now_ms = step.record, step.now_ms
            buried = record.tombstones.get(token)
            reply: Released | Gone
            if token in record.holders:
                step.end(token, "released", why=why)
                reply = Released(now_ms)
            elif token in step.expired:
                reply = Gone(now_ms, "expired", "")
            elif buried:
                reply = Gone(now_ms, buried.kind, buried.note)
            elif record.queue.pop(token, None):
                reply = Released(now_ms)
            else:
                reply = Gone(now_ms, "", "")
            if tombstone and not buried:
                step.bury(token, "undone")
            step.hand_off()
            return step.commit(reply)

    def cancel(
        self, policy: EngineOptions, name: str, token: str, *, tombstone: bool
    ) -> Granted | GaveUp | Gone:
        """Leave the queue; a hand-off that has happened is reported and stays."""
        with self._guard:
            step = self._step(name, policy)
            record, now_ms = step.record, step.now_ms
            mine = record.holders.get(token)
            waited = record.queue.pop(token, None)
            if tombstone and not mine and token not in record.tombstones:
                step.bury(token, "undone")
            step.hand_off()
            if mine:
                return step.commit(Granted(now_ms, mine.deadline_ms, mine.fence))
            if waited:
                step.count("gave_up")
                return step.commit(GaveUp(now_ms, _shown(record, now_ms)))
            buried = record.tombstones.get(token)
            kind, note = (buried.kind, buried.note) if buried else ("", "")
            return step.commit(Gone(now_ms, kind, note))

    def renew(self, policy: EngineOptions, leases: Sequence[RenewItem]) -> RenewReply:
        """Prolong leases; also say which other names have a lease that ran out."""
        with self._guard:
            now_ms = self.clock_us() // 1000
            renewals = [self._renewed(lease, now_ms) for lease in leases]
            late = (n for n, r in self.records.items() if r.holders and r.deadline_ms <= now_ms)
            expired = [name for name, _ in zip(late, range(policy.sweep_limit), strict=False)]
            return RenewReply(now_ms, renewals, expired)

    def _renewed(self, lease: RenewItem, now_ms: int) -> Renewal:
        record = self.records.get(lease.name) or Record()
        buried, holder = record.tombstones.get(lease.token), record.holders.get(lease.token)
        if buried:
            return Renewal(0, buried.kind, buried.note)
        if not holder:
            return Renewal(0, "gone", "")
        if holder.deadline_ms <= now_ms:
            return Renewal(0, "expired", "")
        deadline_ms = holder.prolonged_ms(now_ms, lease.ttl_ms)
        record.holders[lease.token] = replace(holder, deadline_ms=deadline_ms, confirmed=True)
        return Renewal(deadline_ms, "revoked" if holder.revoked else "", holder.revoked)

    def force_release(
        self, policy: EngineOptions, name: str, fence: int, note: str
    ) -> ForceOutcome:
        """Take away the lease with exactly this fence."""
        with self._guard:
            step = self._step(name, policy)
            holders = step.record.holders
            outcome = ForceOutcome.CHANGED if holders else ForceOutcome.NOT_HELD
            for token in [token for token, holder in holders.items() if holder.fence == fence]:
                step.end(token, "forced", note=note)
                step.bury(token, "forced", note)
                outcome = ForceOutcome.RELEASED
            step.hand_off()
            return step.commit(outcome)

    def revoke(self, policy: EngineOptions, name: str, fence: int, note: str) -> ForceOutcome:
        """Ask the holder with exactly this fence to let go."""
        with self._guard:
            step = self._step(name, policy)
            holders = step.record.holders
            outcome = ForceOutcome.CHANGED if holders else ForceOutcome.NOT_HELD
            for token in [token for token, holder in holders.items() if holder.fence == fence]:
                step.ask_to_let_go(token, note)
                outcome = ForceOutcome.ASKED
            step.hand_off()
            return step.commit(outcome)

    def tell(self, name: str) -> None:
        """Tell those who listen that something happened to a lease of this name."""
        for watchdog in list(self.listeners):
            watchdog.notice(name)

    def abandon(
        self, policy: EngineOptions, name: str, token: str, grace_ms: int, note: str
    ) -> ForceOutcome:
        """End a lease, or cut it to ``grace_ms``, and refuse its renewals."""
        with self._guard:
            step = self._step(name, policy)
            holder = step.record.holders.get(token)
            if holder:
                if grace_ms:
                    cut_ms = min(holder.deadline_ms, step.now_ms + grace_ms)
                    step.record.holders[token] = replace(holder, deadline_ms=cut_ms)
                else:
                    step.end(token, "abandoned", note=note)
                step.bury(token, "abandoned", note, least_ms=holder.ttl_ms)
            step.hand_off()
            return step.commit(ForceOutcome.RELEASED if holder else ForceOutcome.NOT_HELD)

    def sweep(self, policy: EngineOptions, names: Sequence[str]) -> int:
        """Reclaim expired holders and hand those locks on; return how many locks changed."""
        reclaimed = 0
        for name in names:
            with self._guard:
                step = self._step(name, policy)
                step.hand_off()
                step.commit(None)
                reclaimed += bool(step.expired or not step.record.holders)
        return reclaimed

    def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """Return how many names are held, and a page of them, earliest deadline first."""
        with self._guard:
            held = [(r.deadline_ms, name) for name, r in self.records.items() if r.holders]
            return len(held), [name for _, name in sorted(held)[offset : offset + count]]

    def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """Return the time (ms) and the state of those names that are held."""
        with self._guard:
            now_ms = self.clock_us() // 1000
            known = [(name, self.records.get(name)) for name in names]
            states = [r.shown(name, now_ms, waiters=waiters) for name, r in known if r]
            return now_ms, [state for state in states if state.holders]

    def read_events(self, after: str, count: int) -> list[EventRecord]:
        """Return events after the id ``after``, oldest first."""
        with self._guard:
            return self.log.after(after, count)

    def trim_events(self, through: str) -> None:
        """Forget the events up to and including ``through``."""
        with self._guard:
            self.log.trim(through)

    def stream_identity(self) -> StreamIdentity:
        """Say whose log this is and how far it goes."""
        with self._guard:
            return self.log.identity()


def _shown(record: Record, now_ms: int) -> HolderState | None:
    first = record.foremost
    return first.shown(now_ms) if first else None


_SERVERS: weakref.WeakSet[MemoryServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_SERVERS):
        server.start_empty()


os.register_at_fork(after_in_child=_after_fork)
