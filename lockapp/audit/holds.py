"""Events → holds: one row for each lease, from its grant to its end.

Pure: works on rows that are about to be stored, asks nobody. What a batch says of a lease may be
its grant, its end, or both. Each is written so that what the table knows already stays: an end
finds the row of its grant, and makes one where the grant was never recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from lockapp.audit.event import HOLDER_FIELDS
from lockapp.core.values import EVERYBODY
from lockapp.models import LockEvent, LockHold

ENDS = frozenset(LockHold.Ended.values) - {LockHold.Ended.NOT}
IDENTITY = ("name_digest", "fence", "alias")
"""What tells a lease from every other."""
GRANT_FIELDS = ("kind", *HOLDER_FIELDS, "granted_at", "ttl_ms", "waited_ms")
"""What only a grant tells of it."""
END_FIELDS = ("ended_at", "ended", "actor", "reason", "held_ms")
"""What only its end tells."""

_LARGEST = 2**63 - 1


def holds_of(events: Iterable[LockEvent]) -> dict[tuple[str, ...], list[LockHold]]:
    """Return what the events say of holds, by the fields that they say something of.

    Args:
        events: in the order in which they happened.
    """
    holds: dict[tuple[str, int, str], LockHold] = {}
    told: dict[tuple[str, int, str], tuple[str, ...]] = {}
    for event in events:
        if event.fence is None or not (event.kind == LockEvent.Kind.ACQUIRED or event.kind in ENDS):
            continue
        lease = event.name_digest, event.fence, event.alias
        hold = holds.get(lease)
        if hold is None:
            hold = holds[lease] = _new(event, event.fence)
        if event.kind == LockEvent.Kind.ACQUIRED:
            _grant(hold, event)
            told[lease] = GRANT_FIELDS
        else:
            _end(hold, event)
            told[lease] = tuple(dict.fromkeys((*told.get(lease, ()), *END_FIELDS)))
    groups: dict[tuple[str, ...], list[LockHold]] = {}
    for lease, hold in holds.items():
        groups.setdefault(told[lease], []).append(hold)
    return groups


def _new(event: LockEvent, fence: int) -> LockHold:
    holder = {key: getattr(event, key) for key in HOLDER_FIELDS}
    held = timedelta(milliseconds=min(_number(event, "held_ms") or 0, 10**15))
    try:
        granted_at = event.at - held
    except OverflowError:  # a foreign hand's number
        granted_at = event.at
    return LockHold(
        alias=event.alias,
        name=event.name,
        name_digest=event.name_digest,
        family=event.family,
        fence=fence,
        granted_at=granted_at,
        **holder,
    )


def _grant(hold: LockHold, event: LockEvent) -> None:
    hold.granted_at = event.at
    hold.ttl_ms = _number(event, "ttl_ms")
    hold.waited_ms = _number(event, "waited_ms")
    hold.kind = _kind(_number(event, "weight"), _number(event, "limit"))


def _end(hold: LockHold, event: LockEvent) -> None:
    hold.ended = event.kind
    hold.ended_at = event.at
    hold.held_ms = _number(event, "held_ms")
    hold.actor = event.actor
    hold.reason = event.reason or str(event.detail.get("why", ""))


def _kind(weight: int | None, limit: int | None) -> str:
    """Say what a lease was; weight and limit are how the engine tells it."""
    if weight is None or limit is None:
        return ""
    if limit >= EVERYBODY:
        return LockHold.Kind.WRITE if weight >= EVERYBODY else LockHold.Kind.READ
    return LockHold.Kind.SEMAPHORE if limit > 1 else LockHold.Kind.MUTEX


def _number(event: LockEvent, key: str) -> int | None:
    """Read a whole number that a column holds; a foreign hand may have written anything."""
    value: Any = event.detail.get(key)
    text = str(value)
    whole = text.isascii() and text.isdigit() and len(text) < 20
    return min(int(text), _LARGEST) if whole else None
