"""How locks are written on a terminal: tables and facts, as plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unicodedata import east_asian_width

from lockapp.dashboard.snapshot import (
    READS,
    RWLOCK,
    SEMAPHORE,
    WRITES,
    Holder,
    LiveLock,
    Request,
    Waiter,
    duration,
    printable,
)

# The name comes last: it can be long, and must not push the others out of sight.
LISTED = ("HELD FOR", "TIME LEFT", "FENCE", "WAITING", "HOLDER", "NAME")
QUEUED = ("PLACE", "WHO", "WAITING FOR")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the head and each row, in columns."""
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        padded = [
            cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)
        ]
        yield "  ".join(padded).rstrip()


def listed(locks: Sequence[LiveLock]) -> list[tuple[str, ...]]:
    """Return a row for each holder of each lock."""
    return [
        (
            duration(holder.held_s),
            f"{duration(holder.remaining_s)} of {duration(holder.ttl_s)}",
            str(holder.fence),
            str(lock.waiting),
            _who(holder),
            "  ".join(_named(lock)),
        )
        for lock in locks
        for holder in lock.holders
    ]


def queued(lock: LiveLock) -> list[tuple[str, ...]]:
    """Return a row for each one that waits."""
    return [(str(each.position), _who(each), duration(each.waiting_s)) for each in lock.waiters]


def facts(lock: LiveLock) -> Iterator[str]:
    """Yield a line for everything that is known of a lock's holders."""
    if lock.readable != lock.name:
        yield f"  {'reads as':<10} {lock.readable}"
    if lock.kind == SEMAPHORE:
        yield f"  {'semaphore':<10} {_taken(lock)} taken"
    elif lock.kind == RWLOCK:
        yield f"  {'read/write':<10} {', '.join(_sides(lock))}"
    for number, holder in enumerate(lock.holders, 1):
        if len(lock.holders) > 1:
            yield f"\n  {number} of {len(lock.holders)} holders"
        for label, text in _facts_of(holder):
            if text:
                yield f"  {label:<10} {text}"


def _facts_of(holder: Holder) -> Iterator[tuple[str, str]]:
    person = holder.person
    yield "fence", str(holder.fence)
    yield "access", holder.role
    yield "weight", str(holder.weight) if (holder.weight or 0) > 1 else ""
    for key in ("task", "task_id", "user", "path", "why", "process", "thread"):
        yield key.replace("_", " "), getattr(person, key)
    yield "held for", f"{duration(holder.held_s)} (since {holder.since:%Y-%m-%d %H:%M:%S} UTC)"
    yield "time left", f"{duration(holder.remaining_s)} of {duration(holder.ttl_s)}"
    yield "state", "" if holder.confirmed else "just handed over, not heard of yet"
    if holder.request is not None:
        yield "asked", _asked(holder.request)
        yield "reason", holder.request.reason
        told = "yes: renewed since then" if holder.request.told else "not heard of since then"
        yield "knows", told


def _asked(request: Request) -> str:
    said = f"by {request.actor}" if request.actor else "by somebody"
    if request.at is None or request.ago_s is None:
        return f"to let go, {said}"
    return f"to let go, {said}, {duration(request.ago_s)} ago ({request.at:%Y-%m-%d %H:%M:%S} UTC)"


def _who(one: Holder | Waiter) -> str:
    return f"{one.role}: {one.person.summary}" if one.role else one.person.summary


def _named(lock: LiveLock) -> Iterator[str]:
    yield printable(lock.name)
    if lock.readable != lock.name:
        yield f"({lock.readable})"
    if lock.kind == SEMAPHORE:
        yield f"({_taken(lock)})"


def _taken(lock: LiveLock) -> str:
    return f"{lock.used} of {lock.limit}"


def _sides(lock: LiveLock) -> Iterator[str]:
    roles = [holder.role for holder in lock.holders]
    for role, one, many in ((READS, "reader", "readers"), (WRITES, "writer", "writers")):
        if count := roles.count(role):
            yield f"{count} {one if count == 1 else many}"


def _width(text: str) -> int:
    """Return how many columns a terminal needs for the text."""
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)
