"""Script replies → values. The only code that knows their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lockapp.core.values import (
    AllGranted,
    Busy,
    EventRecord,
    GaveUp,
    Gone,
    Granted,
    GrantMessage,
    HolderState,
    LockState,
    Queued,
    Refused,
    Released,
    Renewal,
    RenewReply,
    WaiterState,
)

Reply = Sequence[Any]


def text(value: bytes | str) -> str:
    """Decode what a server sent; never fails on bytes of a foreign hand."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def description(value: bytes | str) -> dict[str, str]:
    """Read a holder's description; what can't be read is shown as it is."""
    raw = text(value)
    try:
        parsed = json.loads(raw)
    except ValueError:
        return {"text": raw}
    if not isinstance(parsed, dict):
        return {"text": raw}
    return {str(key): str(item) for key, item in parsed.items()}


def holder(now_ms: int, fields: Reply) -> HolderState | None:
    """Read one holder: fence, granted, deadline, ttl, confirmed, description, weight; a request.

    The last comes from inspect only: who is refused has no use for it.
    """
    if not fields:
        return None
    fence, granted_ms, deadline_ms, ttl_ms, confirmed, described, weight, *asked = fields
    return HolderState(
        fence=fence,
        granted_ms=granted_ms,
        deadline_ms=deadline_ms,
        ttl_ms=ttl_ms,
        remaining_ms=max(deadline_ms - now_ms, 0),
        held_ms=max(now_ms - granted_ms, 0),
        confirmed=bool(confirmed),
        description=description(described),
        weight=weight,
        revoked=text(asked[0]) if asked else "",
    )


def acquired(reply: Reply) -> Granted | Queued | Busy | Refused:
    """Read acquire's reply."""
    status = reply[0]
    if status == b"GRANTED":
        return Granted(reply[1], reply[2], reply[3])
    if status == b"QUEUED":
        return Queued(reply[1], reply[2], reply[3])
    if status == b"BUSY":
        return Busy(reply[1], holder(reply[1], reply[2]))
    return Refused(reply[1], text(reply[2]), text(reply[3]))


def all_acquired(reply: Reply) -> AllGranted | Busy:
    """Read acquire_all's reply."""
    if reply[0] == b"GRANTED":
        return AllGranted(reply[1], [(deadline_ms, fence) for deadline_ms, fence in reply[2:]])
    return Busy(reply[1], holder(reply[1], reply[2]))


def released(reply: Reply) -> Released | Gone:
    """Read release's reply."""
    if reply[0] == b"RELEASED":
        return Released(reply[1])
    return Gone(reply[1], text(reply[2]), text(reply[3]))


def cancelled(reply: Reply) -> Granted | GaveUp | Gone:
    """Read cancel's reply."""
    status = reply[0]
    if status == b"GRANTED":
        return Granted(reply[1], reply[2], reply[3])
    if status == b"GAVE_UP":
        return GaveUp(reply[1], holder(reply[1], reply[2]))
    return Gone(reply[1], text(reply[2]), text(reply[3]))


def renewed(reply: Reply) -> RenewReply:
    """Read renew's reply."""
    now_ms, renewals, expired = reply
    return RenewReply(
        now_ms,
        [Renewal(deadline, text(kind), text(note)) for deadline, kind, note in renewals],
        [text(name) for name in expired],
    )


def grant_message(value: bytes) -> GrantMessage:
    """Read what a hand-off put into an inbox."""
    deadline_ms, fence = value.split()
    return GrantMessage(int(deadline_ms), int(fence))


def inspected(names: Sequence[str], reply: Reply) -> tuple[int, list[LockState]]:
    """Read inspect's reply; names that nobody holds are left out."""
    now_ms: int = reply[0]
    locks = []
    for name, (limit, waiting, holders, waiters) in zip(names, reply[1:], strict=True):
        if not holders:
            continue
        locks.append(
            LockState(
                name=name,
                family=name.partition(":")[0],
                limit=limit,
                holders=tuple(state for item in holders if (state := holder(now_ms, item))),
                waiter_count=waiting,
                waiters=tuple(
                    WaiterState(
                        position, max(now_ms - queued_ms, 0), seen_ms, description(about), weight
                    )
                    for position, (queued_ms, seen_ms, about, weight) in enumerate(waiters)
                ),
            )
        )
    return now_ms, locks


DETAIL = {
    "acquired": ("waited_ms", "ttl_ms", "weight", "limit", "max_hold_ms", "description"),
    "released": ("held_ms", "why"),
    "downgraded": ("held_ms", "weight"),
    "expired": ("held_ms", "why"),
    "forced": ("held_ms", "note"),
    "abandoned": ("held_ms", "note"),
    "revoked": ("held_ms", "note"),
    "degraded": ("mode", "at_ms", "reason", "description"),
}
"""What an event's ``detail`` is made of: words separated by one space, the last may contain any."""


def detail_of(kind: str, detail: str) -> dict[str, str]:
    """Read an event's detail. An operator's note (actor, reason) is spread out."""
    fields = DETAIL.get(kind)
    if fields is None:
        return {"detail": detail}
    found = dict(zip(fields, detail.split(" ", len(fields) - 1), strict=False))
    if "note" in found:
        found |= description(found.pop("note"))
    return found


def _number(value: str) -> int:
    """Read a whole number; an entry of a foreign hand must not stop those who read the stream."""
    return int(value) if value.isascii() and value.isdigit() else 0


def event(shard: int, entry: tuple[bytes, Sequence[bytes]]) -> EventRecord:
    """Read one entry of the event stream."""
    entry_id, flat = entry
    fields = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
    words = [*fields.get("event", "").split(" ", 4), "", "", "", ""]
    number, kind, fence, at_us, detail = words[:5]
    return EventRecord(
        shard=shard,
        id=text(entry_id),
        number=_number(number),
        kind=kind,
        name=fields.get("name", ""),
        fence=_number(fence),
        at_us=_number(at_us),
        detail=detail_of(kind, detail),
    )
