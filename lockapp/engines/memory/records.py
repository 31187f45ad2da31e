"""What a memory server knows of one lock name. Values and questions about them; no clock, no I/O.

Holders, waiters and tombstones are immutable, and a :class:`Record` only holds them in
dictionaries, so that copying one copies no more than its three dictionaries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lockapp.core.values import GrantMessage, HolderState, LockState, WaiterState

SHOWN_WAITERS = 100
"""Waiters described when one lock is shown; the rest are counted."""


class Inbox(Protocol):
    """Where one waiter finds its grant; how it blocks there is a port's business."""

    @property
    def closed(self) -> bool:
        """Whether nobody can ever read it again (its event loop is closed)."""
        ...

    def put(self, grant: GrantMessage) -> None:
        """Leave the grant and wake the waiter, which may belong to any thread or loop."""
        ...

    def ring(self) -> None:
        """Wake the waiter without a grant: it asks again."""
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """A token that holds. ``confirmed`` is False for a hand-off not heard of since."""

    deadline_ms: int
    ttl_ms: int
    weight: int
    limit: int
    fence: int
    granted_ms: int
    max_hold_ms: int
    confirmed: bool
    description: str
    inbox: Inbox | None = None  # where its grant lies, until it has been taken up
    revoked: str = ""  # who asks its holder to let go, and why (JSON)

    def prolonged_ms(self, now_ms: int, ttl_ms: int) -> int:
        """Return the deadline after a renewal: never shortened, never past ``max_hold_ms``.

        A deadline beyond the ttl means that the clock was set back, and is clamped.
        """
        wanted = now_ms + min(ttl_ms, self.ttl_ms)
        if self.max_hold_ms:
            wanted = min(wanted, self.granted_ms + self.max_hold_ms)
        return max(wanted, min(self.deadline_ms, now_ms + self.ttl_ms))

    def ended_by(self, now_ms: int) -> str:
        """Say why it expired: claim, max_hold, or empty when its holder just fell silent."""
        if not self.confirmed:
            return "claim"
        overdue = self.max_hold_ms and now_ms >= self.granted_ms + self.max_hold_ms
        return "max_hold" if overdue else ""

    def shown(self, now_ms: int) -> HolderState:
        """Return it as people read it."""
        return HolderState(
            fence=self.fence,
            granted_ms=self.granted_ms,
            deadline_ms=self.deadline_ms,
            ttl_ms=self.ttl_ms,
            remaining_ms=max(self.deadline_ms - now_ms, 0),
            held_ms=max(now_ms - self.granted_ms, 0),
            confirmed=self.confirmed,
            description=json.loads(self.description),
            weight=self.weight,
            revoked=self.revoked,
        )


@dataclass(frozen=True, slots=True)
class Waiter:
    """A token that waits, and counts as alive until ``seen_until_ms``."""

    seen_until_ms: int
    queued_ms: int
    ttl_ms: int
    weight: int
    limit: int
    max_hold_ms: int
    description: str
    inbox: Inbox

    def alive(self, now_ms: int) -> bool:
        """Whether a grant has a chance to be taken up."""
        return self.seen_until_ms > now_ms and not self.inbox.closed

    def shown(self, position: int, now_ms: int) -> WaiterState:
        """Return it as people read it."""
        return WaiterState(
            position=position,
            queued_ms=max(now_ms - self.queued_ms, 0),
            seen_until_ms=self.seen_until_ms,
            description=json.loads(self.description),
            weight=self.weight,
        )


class Tombstone(NamedTuple):
    """A token that is refused until ``until_ms``."""

    until_ms: int
    kind: str
    note: str


@dataclass(slots=True)
class Record:
    """All that is known of one name. ``queue`` is in order of arrival, as dictionaries are."""

    holders: dict[str, Holder] = field(default_factory=dict)
    queue: dict[str, Waiter] = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)

    def copy(self) -> Record:
        """Return a record that can be changed without changing this one."""
        return Record(dict(self.holders), dict(self.queue), dict(self.tombstones))

    @property
    def used(self) -> int:
        """What the holders' weights add up to."""
        return sum(holder.weight for holder in self.holders.values())

    @property
    def limit(self) -> int | None:
        """The smallest limit of those who hold; None while nobody does."""
        return min((holder.limit for holder in self.holders.values()), default=None)

    def fits(self, weight: int, limit: int) -> bool:
        """Whether one more of this weight fits, under the smallest limit of those concerned."""
        return self.used + weight <= min(limit, self.limit or limit)

    @property
    def foremost(self) -> Holder | None:
        """The holder whose lease ends first."""
        return min(self.holders.values(), key=lambda holder: holder.deadline_ms, default=None)

    @property
    def deadline_ms(self) -> int:
        """When the first of its leases ends; 0 while nobody holds it."""
        first = self.foremost
        return first.deadline_ms if first else 0

    def inbox(self, token: str) -> Inbox | None:
        """Return where the token's grant arrives, or lies."""
        entry = self.queue.get(token) or self.holders.get(token)
        return entry.inbox if entry else None

    def shown(self, name: str, now_ms: int, *, waiters: bool) -> LockState:
        """Return it as people read it; holders whose time is up are left out."""
        live = [holder for holder in self.holders.values() if holder.deadline_ms > now_ms]
        queue = list(self.queue.values())[: SHOWN_WAITERS if waiters else 0]
        return LockState(
            name=name,
            family=name.partition(":")[0],
            limit=min((holder.limit for holder in live), default=0),
            holders=tuple(holder.shown(now_ms) for holder in live),
            waiter_count=len(self.queue),
            waiters=tuple(waiter.shown(at, now_ms) for at, waiter in enumerate(queue)),
        )

    def __bool__(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self.holders or self.queue or self.tombstones)
