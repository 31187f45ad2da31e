"""Judges the events of one shard, in the order in which they were recorded. Pure.

What counts as a fault:

* *overlap*: a lease was granted while leases that had not ended took so much of the lock's limit
  that it did not fit (of a mutex: while any had not);
* *token*: a grant's fencing token is not larger than every earlier one of its lock;
* *open*: a grant without an end, although its lease must be over;
* *end*: an end without a grant, or a second one;
* *gap*: events are missing, or may be, or one is there twice.

What a gap could have swallowed is not held against the rest: a lease that was open there may have
ended in it, and one that ends later may have been granted in it. The same holds for what was
granted before the history begins.

Memory: a record for each lease that is open. Nothing is kept of a lock that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockapp.audit.event import GAP
from lockapp.core.values import EventRecord

OVERLAP, TOKEN, OPEN, END = "overlap", "token", "open", "end"
ENDS = frozenset(("released", "expired", "forced", "abandoned"))
"""Kinds of events with which a lease is over."""
SLACK_MS = 60_000
"""An expiry is recorded by whoever comes next to the lock, or by the next sweep."""
UNLIMITED = 2**62


class Fault(NamedTuple):
    """Something that must not happen; ``kind`` as above, ``about`` in words."""

    kind: str
    name: str
    about: str
    at_us: int = 0  # server time, in microseconds since the epoch; 0: not known


@dataclass(slots=True)
class Grant:
    """A lease that was granted and has not ended. Its weight is what it takes of the limit."""

    name: str
    fence: int
    at_us: int
    weight: int
    limit: int
    max_hold_ms: int  # 0: may be renewed without end

    def overdue(self, now_us: int) -> bool:
        """Whether its end must have been recorded by then, however often it was renewed."""
        longest_us = (self.max_hold_ms + SLACK_MS) * 1000
        return bool(self.max_hold_ms) and now_us > self.at_us + longest_us

    def unended(self) -> Fault:
        """Say that it never ended."""
        return Fault(OPEN, self.name, f"{self.fence} was granted and never ended", self.at_us)


@dataclass(slots=True)
class History:
    """What is known after the events so far. Feed each event to ``add``, oldest first.

    Args:
        highest_of: returns the highest fencing token granted of a lock before the event that is
            being added, or 0. Asked only when a token is not the highest of all locks, which in
            a good history is rare.
        numbered: whether all events of the shard are fed, so that a missing number is one.
    """

    highest_of: Callable[[str], int]
    numbered: bool = True
    last_us: int = field(default=0, init=False)
    _number: int | None = field(default=None, init=False)
    _known_ms: int | None = field(default=None, init=False)  # not known: what was granted before
    _highest: int = field(default=0, init=False)
    _open: dict[str, dict[int, Grant]] = field(default_factory=dict, init=False)

    def add(self, event: EventRecord) -> list[Fault]:
        """Take the next event; return what is wrong about it."""
        self.last_us = max(self.last_us, event.at_us)
        if event.kind == GAP:
            self._forget(event)
            return [Fault(GAP, "", _missing(event), event.at_us)]
        found: list[Fault] = []
        if self._known_ms is None:  # a stream's first event has nothing before it
            self._known_ms = event.at_us // 1000 if event.number != 1 else -1
        if self.numbered and event.number:
            last = event.number - 1 if self._number is None else self._number
            if event.number != last + 1:
                about = f"number {event.number} after {last}"
                found.append(Fault(GAP, event.name, about, event.at_us))
                if event.number <= last:
                    return found  # it is there twice
                self._forget(event)
            self._number = event.number
        if event.kind == "acquired":
            found += self._granted(event)
        elif event.kind in ENDS:
            found += self._ended(event)
        elif event.kind == "downgraded":
            grant = self._open.get(event.name, {}).get(event.fence)
            if grant is not None:
                grant.weight = _number(event, "weight", grant.weight)
        return found

    def open(self) -> Iterator[Grant]:
        """Yield the leases that have not ended."""
        for grants in self._open.values():
            yield from grants.values()

    def _granted(self, event: EventRecord) -> Iterator[Fault]:
        name, at_us = event.name, event.at_us
        if event.fence <= self._highest and event.fence <= (before := self.highest_of(name)):
            yield Fault(TOKEN, name, f"{event.fence} after {before}", at_us)
        self._highest = max(self._highest, event.fence)
        # An event of an older release tells neither weight nor limit, and is not judged by them.
        grant = Grant(
            name, event.fence, at_us, _number(event, "weight", 0),
            _number(event, "limit", UNLIMITED), _number(event, "max_hold_ms", 0),
        )  # fmt: skip
        grants = self._open.setdefault(name, {})
        for late in [each for each in grants.values() if each.overdue(at_us)]:
            del grants[late.fence]
            yield late.unended()
        grants[grant.fence] = grant
        limit = min(each.limit for each in grants.values())
        if len(grants) > 1 and sum(each.weight for each in grants.values()) > limit:
            together = ", ".join(map(str, sorted(grants)))
            yield Fault(OVERLAP, name, f"granted together: {together}", at_us)

    def _ended(self, event: EventRecord) -> Iterator[Fault]:
        grants = self._open.get(event.name, {})
        if grants.pop(event.fence, None) is None:
            granted_ms = event.at_us // 1000 - _number(event, "held_ms", 0)
            if granted_ms > (self._known_ms or 0):
                about = f"{event.kind} {event.fence}, which was not held"
                yield Fault(END, event.name, about, event.at_us)
        if not grants:
            self._open.pop(event.name, None)

    def _forget(self, event: EventRecord) -> None:
        self._open.clear()
        self._known_ms = event.at_us // 1000
        self._number = None


def judge(events: Sequence[EventRecord]) -> list[Fault]:
    """Return every fault of a whole history of one shard, at whose end nothing is held."""
    highest: dict[str, int] = {}
    history = History(lambda name: highest.get(name, 0))
    found: list[Fault] = []
    for event in events:
        found += history.add(event)
        if event.kind == "acquired":
            highest[event.name] = max(highest.get(event.name, 0), event.fence)
    return [*found, *(grant.unended() for grant in history.open())]


def _missing(event: EventRecord) -> str:
    missing = event.detail.get("missing")
    many = "an unknown number of" if missing is None else str(missing)
    return f"{many} events are missing ({event.detail.get('why', 'not said why')})"


def _number(event: EventRecord, key: str, default: int) -> int:
    """Read a whole number of an event's detail: text from a stream, a number from a row."""
    value = str(event.detail.get(key, ""))
    return int(value) if value.isascii() and value.isdigit() else default
