"""One step on one name: all or nothing.

A step works on a copy of the name's record, which :meth:`Step.commit` puts back by one assignment;
events and wake-ups follow it. So an exception that strikes in the middle (Ctrl-C, a soft time
limit) leaves the lock as it was or as it should be, never between. A wake-up that gets lost that
way costs its waiter one claim window, as a lost message would on a real server.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from lockapp.core.options import EngineOptions
from lockapp.core.values import GrantMessage, LockSpec
from lockapp.engines.memory.records import Holder, Inbox, Record, Tombstone

if TYPE_CHECKING:
    from lockapp.engines.memory.server import MemoryServer

Reply = TypeVar("Reply")


class Step:
    """The changes of one step. Made and used while the server's guard is held."""

    def __init__(self, server: MemoryServer, name: str, policy: EngineOptions) -> None:
        """Read the record; holders whose time is up and stale tombstones are dropped first."""
        self.server = server
        self.name = name
        self.policy = policy
        self.now_us = server.clock_us()
        self.now_ms = self.now_us // 1000
        self.expired: set[str] = set()
        self._events: list[tuple[str, int, dict[str, str]]] = []
        self._grants: list[tuple[Inbox, GrantMessage]] = []
        known = server.records.get(name)
        self.record = known.copy() if known else Record()
        self._purge()

    def _purge(self) -> None:
        record = self.record
        for token, holder in list(record.holders.items()):
            if holder.deadline_ms > self.now_ms + holder.ttl_ms:  # the clock was set back
                clamped = self.now_ms + holder.ttl_ms
                record.holders[token] = replace(holder, deadline_ms=clamped)
            elif holder.deadline_ms <= self.now_ms:
                self.expired.add(token)
                self.end(token, "expired", why=holder.ended_by(self.now_ms))
        for token, tombstone in list(record.tombstones.items()):
            if tombstone.until_ms <= self.now_ms:
                del record.tombstones[token]

    def grant(
        self, token: str, *, ttl_ms: int, weight: int, limit: int, max_hold_ms: int,
        description: str, waited_ms: int = 0, inbox: Inbox | None = None,
    ) -> Holder:  # fmt: skip
        """Make a token a holder; with an ``inbox`` it still has to take up the claim."""
        life_ms = min(ttl_ms, self.policy.claim_window_ms) if inbox else ttl_ms
        if max_hold_ms:
            life_ms = min(life_ms, max_hold_ms)
        # Past every earlier one, and past the clock, so that it grows over restarts too (P9).
        self.server.fence = max(self.server.fence + 1, self.now_us)
        holder = Holder(
            deadline_ms=self.now_ms + life_ms, ttl_ms=ttl_ms, weight=weight, limit=limit,
            fence=self.server.fence, granted_ms=self.now_ms, max_hold_ms=max_hold_ms,
            confirmed=inbox is None, description=description, inbox=inbox,
        )  # fmt: skip
        self.record.holders[token] = holder
        self._events.append((
            "acquired",
            holder.fence,
            {
                "waited_ms": str(waited_ms), "ttl_ms": str(ttl_ms), "weight": str(weight),
                "limit": str(limit), "max_hold_ms": str(max_hold_ms), "description": description,
            },
        ))  # fmt: skip
        if inbox:
            self._grants.append((inbox, GrantMessage(holder.deadline_ms, holder.fence)))
        return holder

    def grant_spec(self, spec: LockSpec, token: str, description: str) -> Holder:
        """Grant what somebody who is here asks for."""
        return self.grant(
            token, ttl_ms=spec.ttl_ms, weight=spec.weight, limit=spec.limit,
            max_hold_ms=spec.max_hold_ms, description=description,
        )  # fmt: skip

    def may_have(self, spec: LockSpec, token: str) -> bool:
        """Whether the token holds, or could at once."""
        if token in self.record.tombstones:
            return False
        free = not self.record.queue and self.record.fits(spec.weight, spec.limit)
        return token in self.record.holders or free

    def end(self, token: str, kind: str, *, why: str = "", note: str = "") -> None:
        """End a holder; ``kind`` names the event, ``note`` (JSON) says who did it and why."""
        holder = self.record.holders.pop(token)
        detail = json.loads(note) if note else {"why": why}
        held_ms = str(self.now_ms - holder.granted_ms)
        self._events.append((kind, holder.fence, {"held_ms": held_ms, **detail}))

    def shrink(self, token: str, weight: int, ttl_ms: int) -> Holder:
        """Make a holder's weight smaller, and prolong it on the way."""
        mine = self.record.holders[token]
        if weight < mine.weight:
            held_ms = str(self.now_ms - mine.granted_ms)
            detail = {"held_ms": held_ms, "weight": str(weight)}
            self._events.append(("downgraded", mine.fence, detail))
        mine = replace(
            mine, weight=min(mine.weight, weight), confirmed=True,
            deadline_ms=mine.prolonged_ms(self.now_ms, ttl_ms),
        )  # fmt: skip
        self.record.holders[token] = mine
        return mine

    def ask_to_let_go(self, token: str, note: str) -> None:
        """Leave a request for the holder; nothing is taken away."""
        mine = self.record.holders[token] = replace(self.record.holders[token], revoked=note)
        held_ms = str(self.now_ms - mine.granted_ms)
        self._events.append(("revoked", mine.fence, {"held_ms": held_ms, **json.loads(note)}))

    def bury(self, token: str, kind: str, note: str = "", *, least_ms: int = 0) -> None:
        """Refuse this token from now on, for the tombstone's life or ``least_ms`` if longer."""
        until_ms = self.now_ms + max(self.policy.tombstone_ms, least_ms)
        self.record.tombstones[token] = Tombstone(until_ms, kind, note)
        heapq.heappush(self.server.buried, (until_ms, self.name))

    def hand_off(self) -> None:
        """Give free capacity to those who wait, in order of arrival; the dead are passed over."""
        record = self.record
        for token, waiter in list(record.queue.items()):
            if waiter.alive(self.now_ms):
                if not record.fits(waiter.weight, waiter.limit):
                    return
                self.grant(
                    token,
                    ttl_ms=waiter.ttl_ms,
                    weight=waiter.weight,
                    limit=waiter.limit,
                    max_hold_ms=waiter.max_hold_ms,
                    description=waiter.description,
                    waited_ms=self.now_ms - waiter.queued_ms,
                    inbox=waiter.inbox,
                )
            del record.queue[token]

    def count(self, what: str) -> None:
        """Count what is too frequent for an event, per family."""
        self.server.counts[f"{what}:{self.name.partition(':')[0]}"] += 1

    def commit(self, reply: Reply) -> Reply:
        """Put the record back, then tell the log and those who were handed something."""
        self.server.put(self.name, self.record)
        for kind, fence, detail in self._events:
            self.server.log.add(kind, self.name, fence, self.now_us, detail, self.policy.event_cap)
        for inbox, grant in self._grants:
            inbox.put(grant)
        return reply
