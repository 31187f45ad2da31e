"""What an event is, and which events are missing. Pure: no database, no engine, no clock.

Theory of operation
-------------------
The engine numbers the events of a shard densely, in the step that makes the transition, and
appends them to a stream. A collector reads on from the last event it stored. In order:

* **known**: the table has it already (the overlap is read again after a failover, or when a
  cursor was lost). Skipped; its number still tells where the table stands.
* **next**: the number is the one expected. Stored.
* **jump**: the number is larger. The ones between could not be appended, or left the capped stream
  before they were read: a gap with a count, then the event.
* **back**: the number is smaller. The counter began anew (data lost, or a server that lagged was
  promoted). What the former history still had is beyond knowing: a gap without a count.

A server that became another one (``run_id``) is a gap without a count too: what it recorded last
may not have survived. So is a process that kept events itself and **ended** without a word.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from lockapp.core.values import EventRecord, StreamIdentity
from lockapp.naming import family_of, name_digest

START = "0-0"
"""The stream id before every other."""
HOLDER_FIELDS = ("host", "pid", "task", "task_id", "user", "path")
"""What of a holder's description has a column of its own."""
GAP = "gap"
JUMP, BACK, SERVER, ENDED = "jump", "back", "server", "ended"
"""Why a gap is one; see the module's docstring."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIMITS = {"host": 255, "pid": 20, "task": 255, "task_id": 255, "user": 255, "path": 500}


@dataclass(frozen=True, slots=True)
class Place:
    """How far a stream has been stored. ``number`` None: any number may come next."""

    server: str
    stream_id: str = START
    number: int | None = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are missing (``missing``: how many), or may be (None)."""

    after: Place
    reason: str
    missing: int | None
    before: EventRecord | None = None


@dataclass(slots=True)
class Walk:
    """What came of a batch: what to store, in order, and where the stream has been read to."""

    place: Place
    found: list[EventRecord | Gap] = field(default_factory=list)
    known: int = 0


def is_before(one: str, other: str) -> bool:
    """Whether stream id ``one`` lies before ``other``."""
    return _parts(one) < _parts(other)


def id_before(stream_id: str) -> str:
    """Return the stream id right before ``stream_id``."""
    ms, sequence = _parts(stream_id)
    if sequence:
        return f"{ms}-{sequence - 1}"
    return f"{ms - 1}-{2**64 - 1}" if ms else START


def went_back(place: Place, here: StreamIdentity) -> bool:
    """Whether the stream ends before the place that was stored: read it from the start again."""
    return is_before(here.last_id, place.stream_id) or here.last_number < (place.number or 0)


def walk(place: Place, records: Iterable[EventRecord], known: Collection[str], alias: str) -> Walk:
    """Look at the records after ``place`` in order, and say what to store and what is missing.

    Args:
        place: where the table stands.
        records: what the stream has, oldest first.
        known: the identities of those that the table has.
        alias: the engine's.
    """
    result = Walk(place)
    number = place.number
    for record in records:
        if record_identity(alias, record) in known:
            result.known += 1
            number = max(number or 0, record.number)
        else:
            # Number 0: the counter itself could not be written. Nothing follows from it.
            if number is not None and record.number and record.number != number + 1:
                jump = record.number > number
                missing = record.number - number - 1 if jump else None
                after = Place(place.server, result.place.stream_id, number)
                result.found.append(Gap(after, JUMP if jump else BACK, missing, record))
            result.found.append(record)
            number = record.number or number
        result.place = Place(place.server, record.id, number)
    return result


def record_identity(alias: str, record: EventRecord) -> str:
    """Return what tells this event from every other, wherever and however often it is read.

    The server's id is no part of it: after a failover the same event is read from another server.
    Starts with the time, so that a database's index grows at its end.
    """
    seen = (alias, record.shard, record.id, record.number, record.kind, record.name, record.fence)
    return _identity(record.at_us, seen)


def record_fields(alias: str, server: str, record: EventRecord) -> dict[str, Any]:
    """Return the columns of an event's row, cut and cleaned so that every database takes them.

    One event that a database refuses would stop the collection of all that follow.
    """
    detail = {clean(key): _number(key, clean(value)) for key, value in record.detail.items()}
    note = _parsed(detail.pop("note", ""))
    description = _parsed(detail.pop("description", ""))
    actor = detail.pop("actor", "") or note.get("actor", "")
    reason = detail.pop("reason", "") or note.get("reason", "")
    if description:
        detail["description"] = description
    return {
        "identity": record_identity(alias, record),
        "alias": alias,
        "server": server[:64],
        "shard": record.shard,
        "stream_id": record.id,
        "number": record.number,
        "kind": clean(record.kind)[:20],
        "name": clean(record.name)[:255],
        "name_digest": name_digest(record.name),
        "family": clean(family_of(record.name))[:200],
        "fence": record.fence,
        "at": _EPOCH + timedelta(microseconds=min(max(record.at_us, 0), 2**53)),
        "actor": str(actor)[:200],
        "reason": str(reason),
        "detail": detail,
        **holder_fields(description),
    }


def holder_fields(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns that tell who held the lock."""
    return {key: str(description.get(key, ""))[:limit] for key, limit in _LIMITS.items()}


def gap_fields(alias: str, server: str, shard: int, gap: Gap, now: datetime) -> dict[str, Any]:
    """Return the columns of a gap's row. ``now`` dates a gap that nothing follows yet."""
    before = gap.before
    at_us = before.at_us if before else (now - _EPOCH) // timedelta(microseconds=1)
    upto = (before.id, before.number) if before else server
    seen = (GAP, alias, shard, gap.after.server, gap.after.stream_id, gap.after.number, upto)
    return {
        "identity": _identity(at_us, seen),
        "alias": alias,
        "server": server[:64],
        "shard": shard,
        "stream_id": before.id if before else gap.after.stream_id,
        "kind": GAP,
        "at": _EPOCH + timedelta(microseconds=at_us),
        "detail": {
            "missing": gap.missing,
            "why": gap.reason,
            "after_number": gap.after.number,
            "before_number": before.number if before else None,
        },
    }


def clean(text: str) -> str:
    """Replace what some database refuses in text: NUL, and halves of surrogate pairs."""
    text = text.replace("\x00", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _parts(stream_id: str) -> tuple[int, int]:
    ms, _, sequence = stream_id.partition("-")
    return int(ms), int(sequence or 0)


def _identity(at_us: int, seen: tuple[object, ...]) -> str:
    digest = blake2b(repr(seen).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    return f"{max(at_us, 0) % 16**14:014x}{digest}"


def _number(key: str, value: str) -> Any:
    whole = key.endswith("_ms") and value.isascii() and value.isdigit() and len(value) < 19
    return int(value) if whole else value


def _parsed(text: str) -> dict[str, Any]:
    """Read a JSON object; what can't be read is kept as text."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return {"text": text}
    return {clean(str(key)): clean(str(item)) for key, item in value.items()}
