"""The values that pass between a lock and its engine. Frozen; units in the names.

Times ending in ``_ms`` without another word are the server's epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

EVERYBODY = 1_000_000
"""The limit of a read/write lock: a reader weighs 1, a writer as much as all readers together."""


@dataclass(frozen=True, slots=True)
class LockSpec:
    """What is asked for, the same for every acquisition through one Lock.

    A mutex is ``limit=1, weight=1``: holders with weights under a limit is the general shape.
    """

    name: str
    ttl_ms: int
    max_hold_ms: int  # 0: no end
    limit: int = 1
    weight: int = 1


class Granted(NamedTuple):
    """The token holds the lock."""

    now_ms: int
    deadline_ms: int
    fence: int


class Queued(NamedTuple):
    """The token waits; the lease in front of it ends at ``next_deadline_ms`` unless renewed."""

    now_ms: int
    position: int  # 0 is next
    next_deadline_ms: int


class Busy(NamedTuple):
    """Somebody else holds the lock, and the token does not wait."""

    now_ms: int
    holder: HolderState | None


class AllGranted(NamedTuple):
    """Every token of a joint request holds its lock: deadline and fence of each, in order."""

    now_ms: int
    grants: list[tuple[int, int]]


class Refused(NamedTuple):
    """The token has been ended (undone, forced, abandoned) and is never granted again."""

    now_ms: int
    kind: str
    note: str


class Released(NamedTuple):
    """The token held the lock, or waited for it, and no longer does."""

    now_ms: int


class Gone(NamedTuple):
    """The token held nothing. ``kind`` says why when it is known (expired, forced)."""

    now_ms: int
    kind: str
    note: str


class GaveUp(NamedTuple):
    """The token waited and no longer does; ``holder`` is who has the lock."""

    now_ms: int
    holder: HolderState | None


class GrantMessage(NamedTuple):
    """What a waiter finds in its inbox: a hint with a deadline, not a possession."""

    deadline_ms: int
    fence: int


class RenewItem(NamedTuple):
    """One lease to be renewed."""

    name: str
    token: str
    ttl_ms: int


class Renewal(NamedTuple):
    """What became of one renewal.

    ``deadline_ms`` is 0 when the lease is over, and ``kind`` says how; else ``kind`` is empty, or
    ``revoked`` when its holder is asked to let go. ``note`` (JSON) says who and why.
    """

    deadline_ms: int
    kind: str
    note: str


class RenewReply(NamedTuple):
    """The renewals in the order asked for, and the names whose lease ran out elsewhere."""

    now_ms: int
    renewals: list[Renewal]
    expired: list[str]


class Undo(NamedTuple):
    """A token that may hold or wait although nobody wants it any more.

    ``tombstone``: a request for it may still be on its way and must be refused when it arrives.
    """

    name: str
    token: str
    tombstone: bool
    why: str = "undone"


class ForceOutcome(Enum):
    """What became of an operator's request to end a lease."""

    RELEASED = "released"
    CHANGED = "changed"  # somebody else holds it by now; nothing was done
    NOT_HELD = "not_held"
    ASKED = "asked"  # the holder was asked to let go; it still holds


class Forced(NamedTuple):
    """A lease that an operator took away here: whose, and why."""

    name: str
    fence: int
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which an engine could not be asked, as this process noticed it."""

    alias: str
    reason: str  # connect or timeout: what the last failure was
    seconds: float  # how long it was; 0 while it lasts


class Degraded(NamedTuple):
    """A body that ran without the server's lock, to be recorded when the server is back."""

    name: str  # empty: tells only how many more there were, in ``reason``
    mode: str  # local or open
    at_ms: int  # by this process's own clock
    reason: str  # why the engine could not be asked
    description: str  # JSON: who it was


@dataclass(frozen=True, slots=True)
class HolderState:
    """One holder, as people read it. Never carries the token."""

    fence: int
    granted_ms: int
    deadline_ms: int
    ttl_ms: int
    remaining_ms: int
    held_ms: int
    confirmed: bool  # False: handed off, and not heard of yet (claim window)
    description: dict[str, str] = field(default_factory=dict)
    weight: int = 1
    revoked: str = ""
    """Who asks it to let go, why and when (JSON: actor, reason, asked_ms). No refusal need tell."""


@dataclass(frozen=True, slots=True)
class WaiterState:
    """One waiter in the queue."""

    position: int
    queued_ms: int
    seen_until_ms: int
    description: dict[str, str] = field(default_factory=dict)
    weight: int = 1


@dataclass(frozen=True, slots=True)
class LockState:
    """One lock name that is held, with its holders and (when asked for) its queue.

    ``limit`` is what the holders' weights may add up to: 1 for a mutex.
    """

    name: str
    family: str
    limit: int
    holders: tuple[HolderState, ...]
    waiter_count: int
    waiters: tuple[WaiterState, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One page of the live locks. Out of date when shown."""

    total: int
    now_ms: int
    locks: tuple[LockState, ...]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One transition, as the engine recorded it.

    ``kind``: acquired, released, expired, forced, abandoned. ``number`` is dense per shard: a
    jump is a gap.
    """

    shard: int
    id: str
    number: int
    kind: str
    name: str
    fence: int
    at_us: int
    detail: dict[str, str]


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Which server's stream this is, and how far it goes."""

    server: str
    last_id: str
    last_number: int
