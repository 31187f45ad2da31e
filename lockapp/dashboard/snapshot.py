"""Engine state → what people are shown. No HTML, no requests.

The page, the command and its JSON are all made of these, so that they agree. Everything here is
out of date when it is read; whoever acts on it names the fence it was shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lockapp.core.encoding import escape
from lockapp.core.values import EVERYBODY, HolderState, LockState, WaiterState
from lockapp.engines.base import Engine
from lockapp.naming import family_of, readable

PAGE_SIZE = 50
"""Locks on one page."""
LOCK, SEMAPHORE, RWLOCK = "lock", "semaphore", "rwlock"
"""What a name is held as: by one, by so many, or by readers or a writer."""
READS, WRITES = "reads", "writes"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Person:
    """Who holds or waits, as far as it is known. Empty text: not known."""

    host: str = ""
    pid: str = ""
    thread: str = ""
    task: str = ""
    task_id: str = ""
    user: str = ""
    path: str = ""
    why: str = ""

    @classmethod
    def of(cls, description: dict[str, str]) -> Person:
        """Pick what is shown out of a description; what is not printable is spelled out."""
        return cls(**{key: printable(description.get(key, "")) for key in cls.__slots__})

    @property
    def process(self) -> str:
        """Host and process id."""
        return ":".join(filter(None, (self.host, self.pid)))

    @property
    def summary(self) -> str:
        """One line: the task or the request, the user, the process."""
        return ", ".join(filter(None, (self.task or self.path, self.user, self.process)))


@dataclass(frozen=True, slots=True)
class Request:
    """What a holder is asked: to let go. It keeps its lease until it does."""

    actor: str
    reason: str
    at: datetime | None  # server time
    ago_s: float | None
    told: bool  # the lease was renewed since, and with the answer its process got the request


@dataclass(frozen=True, slots=True)
class Holder:
    """One lease."""

    fence: int
    since: datetime  # server time
    held_s: float
    ttl_s: float
    remaining_s: float  # until it ends by itself, unless it is renewed
    confirmed: bool  # False: handed over, and not heard of yet
    person: Person
    role: str = ""  # reads or writes; nothing for other locks
    weight: int | None = None  # how much of the limit it takes; None: of a read/write lock
    request: Request | None = None

    @property
    def percent(self) -> int:
        """How much of its life is left."""
        return min(100, round(100 * self.remaining_s / self.ttl_s)) if self.ttl_s else 0


@dataclass(frozen=True, slots=True)
class Waiter:
    """One in the queue."""

    position: int  # 1 is next
    waiting_s: float
    person: Person
    role: str = ""


@dataclass(frozen=True, slots=True)
class LiveLock:
    """One lock that is held."""

    name: str
    readable: str
    family: str
    kind: str  # lock, semaphore or rwlock
    limit: int | None  # how many may hold it; None: any number of readers, or one writer
    used: int  # how much of the limit is taken
    holders: tuple[Holder, ...]
    waiting: int
    waiters: tuple[Waiter, ...] = ()  # known only when one lock was asked for


@dataclass(frozen=True, slots=True)
class LivePage:
    """One page of the locks of one engine. ``total`` counts also those that just expired."""

    alias: str
    total: int
    number: int  # 1 is the first
    pages: int
    locks: tuple[LiveLock, ...]


def live_page(engine: Engine, number: int = 1, size: int = PAGE_SIZE) -> LivePage:
    """Return a page of the live locks, those that end first at the top; the last page at most.

    Raises:
        EngineUnavailable: could not ask.
    """
    number = max(number, 1)
    state = engine.snapshot((number - 1) * size, size)
    pages = max(-(-state.total // size), 1)
    if number > pages:
        number = pages
        state = engine.snapshot((number - 1) * size, size)
    return LivePage(engine.alias, state.total, number, pages, tuple(map(live_lock, state.locks)))


def one_lock(engine: Engine, name: str) -> LiveLock | None:
    """Return one lock with its queue, or None while nobody holds it.

    Args:
        engine: where to look.
        name: as it is stored, or with its escapes written out as people read it.

    Raises:
        EngineUnavailable: could not ask.
    """
    encoded = ":".join(escape(piece.encode("utf-8", "replace")) for piece in name.split(":"))
    for spelling in dict.fromkeys((name, encoded)):
        state = engine.show(spelling)
        if state is not None:
            return live_lock(state)
    return None


def live_lock(state: LockState) -> LiveLock:
    """Turn a lock's state into what is shown of it."""
    shared = state.limit == EVERYBODY
    one = SEMAPHORE if state.limit > 1 else LOCK
    return LiveLock(
        name=state.name,
        readable=printable(readable(state.name)),
        family=printable(family_of(state.name)),
        kind=RWLOCK if shared else one,
        limit=None if shared else state.limit,
        used=len(state.holders) if shared else sum(each.weight for each in state.holders),
        holders=tuple(
            _holder(each, _role(each, shared))
            for each in sorted(state.holders, key=lambda each: each.fence)
        ),
        waiting=state.waiter_count,
        waiters=tuple(_waiter(each, _role(each, shared)) for each in state.waiters),
    )


def as_json(value: LiveLock | LivePage) -> dict[str, Any]:
    """Return the same as plain values: times in ISO 8601, durations in seconds."""
    plain: dict[str, Any] = _plain(asdict(value))
    return plain


def duration(seconds: float) -> str:
    """Return a length of time as people read it, in two units at most."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if parts:
            return " ".join([*parts, f"{count} {unit}"] if count else parts)
        if count:
            parts.append(f"{count} {unit}")
    return parts[0]


def printable(text: str) -> str:
    """Spell out what is not printable: a path or a user's name must not forge a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _role(state: HolderState | WaiterState, shared: bool) -> str:
    """Say who reads and who writes. One that waits to write shows it whoever holds the lock."""
    if state.weight >= EVERYBODY:
        return WRITES
    return READS if shared else ""


def _holder(state: HolderState, role: str) -> Holder:
    return Holder(
        fence=state.fence,
        since=_EPOCH + timedelta(milliseconds=state.granted_ms),
        held_s=state.held_ms / 1000,
        ttl_s=state.ttl_ms / 1000,
        remaining_s=state.remaining_ms / 1000,
        confirmed=state.confirmed,
        person=Person.of(state.description),
        role=role,
        weight=None if role else state.weight,
        request=_request(state) if state.revoked else None,
    )


def _request(state: HolderState) -> Request:
    try:
        note = json.loads(state.revoked)
    except ValueError:
        note = None
    asked = note if isinstance(note, dict) else {}
    asked_ms = asked.get("asked_ms", "")
    known = isinstance(asked_ms, str) and asked_ms.isascii() and asked_ms.isdigit()
    ms = int(asked_ms) if known else None
    now_ms = state.granted_ms + state.held_ms
    return Request(
        actor=printable(str(asked.get("actor", ""))),
        reason=printable(str(asked.get("reason", ""))),
        at=None if ms is None else _EPOCH + timedelta(milliseconds=ms),
        ago_s=None if ms is None else max(now_ms - ms, 0) / 1000,
        # Each renewal sets the deadline to a ttl from then.
        told=ms is not None and state.deadline_ms - state.ttl_ms >= ms,
    )


def _waiter(state: WaiterState, role: str) -> Waiter:
    person = Person.of(state.description)
    return Waiter(state.position + 1, state.queued_ms / 1000, person, role)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value
