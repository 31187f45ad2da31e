"""Replays the history of locks, as stored and as still in the streams, and reports its faults.

What is a fault stands in :mod:`lockapp.audit.history`. In order:

1. the rows of the table, by their key: each shard's are in the order in which things happened;
2. the events that no collector has stored yet, where the engine can be asked. What a collector
   stores and trims meanwhile is found in the table, by its numbers;
3. of the leases without an end, those are right that the engine says are held. The others were
   over before it was asked, so their ends are recorded by now, or never.

Memory: a page of rows, and what is held at once; not the history's length. Writes nothing, but has
the engine reclaim leases that ran out, as a collector does: that records their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Max, Min
from django.utils import timezone

from lockapp.audit import event
from lockapp.audit.collector import cursor_key
from lockapp.audit.event import GAP, Gap, Place
from lockapp.audit.history import ENDS, Fault, Grant, History
from lockapp.core.values import EventRecord
from lockapp.engines.base import Engine
from lockapp.models import EventCursor, LockEvent
from lockapp.naming import family_of, name_digest

PAGE = 2000
"""Rows, or events of a stream, in memory at once."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = (
    "pk", "alias", "server",
    "shard", "stream_id", "number", "kind", "name", "fence", "at", "detail",
)  # fmt: skip

Key = tuple[str, int, str]
"""Whose history: alias, number of the stream, and the process where each keeps its own events."""


class Found(NamedTuple):
    """A fault, and in which history."""

    alias: str
    shard: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of the history is looked at. What lies outside is not held against it."""

    since: datetime | None = None
    until: datetime | None = None  # not included
    alias: str = ""
    family: str = ""


@dataclass(slots=True)
class Verification:
    """One replay. Run it once.

    Args:
        engines: whose unread events are replayed too, and who are asked what is held. Of others
            a lease without an end is a fault only when it has outlived its ``max_hold``, by the
            time of the newest event.
        part: which part of the history.
        apart: aliases whose events wait in each process to be stored. In which order those of
            two processes happened nobody knows, so each process's are judged by themselves.
        progress: told after each page how many events were seen, and how much of the table
            (0 to 1).
    """

    engines: Sequence[Engine] = ()
    part: Part = field(default_factory=Part)
    apart: Collection[str] = ()
    progress: Callable[[int, float], None] = lambda seen, done: None
    seen: Counter[str] = field(default_factory=Counter, init=False)  # events by their kind
    _histories: dict[Key, History] = field(default_factory=dict, init=False)
    _over: set[Key] = field(default_factory=set, init=False)  # the part's end was passed
    _places: dict[tuple[str, int], Place] = field(default_factory=dict, init=False)
    _unread: dict[str, dict[str, int]] = field(default_factory=dict, init=False)
    _using: str = field(default_factory=lambda: router.db_for_write(LockEvent), init=False)
    _last_pk: int = field(default=0, init=False)

    def run(self) -> Iterator[Found]:
        """Yield each fault as it is found; those of leases that never ended come last.

        Raises:
            EngineUnavailable: could not ask an engine.
            django.db.DatabaseError: could not read.
        """
        # Read first: what the rows have beyond it is recognised in the stream.
        cursors = {it.key: it for it in self._rows_of(EventCursor)}
        yield from self._stored()
        for engine in self.engines:
            for shard in range(engine.shards):
                cursor = cursors.get(cursor_key(engine, shard))
                yield from self._still_in_stream(engine, shard, cursor)
        for engine in self.engines:
            yield from self._unended(engine)
        asked = {engine.alias for engine in self.engines}
        now_us = max((each.last_us for each in self._histories.values()), default=0)
        for (alias, shard, _), history in self._histories.items():
            if alias not in asked:
                late = (grant for grant in history.open() if grant.overdue(now_us))
                yield from (Found(alias, shard, grant.unended()) for grant in late)

    def _rows_of(self, model: Any, **which: Any) -> Any:
        return model._base_manager.using(self._using).filter(**which).order_by("pk")

    # The table

    def _stored(self) -> Iterator[Found]:
        """Replay the rows that are there now."""
        part = self.part
        which: dict[str, Any] = {}
        if part.alias:
            which["alias"] = part.alias
        if part.family:
            which["family__in"] = (part.family, "")  # a gap has none
        bounded = self._rows_of(LockEvent, **which)
        if part.since:
            bounded = bounded.filter(at__gte=part.since)
        if part.until:
            bounded = bounded.filter(at__lt=part.until)
        bounds = bounded.order_by().aggregate(first=Min("pk"), last=Max("pk"))
        if bounds["first"] is None:
            return
        first, last = bounds["first"], bounds["last"]
        self._last_pk = first - 1
        while self._last_pk < last:
            rows = self._rows_of(LockEvent, pk__gt=self._last_pk, pk__lte=last, **which)
            page = list(rows.values_list(*_COLUMNS)[:PAGE])
            for pk, alias, server, *columns in page:
                yield from self._feed(alias, _record(*columns), server)
                self._last_pk = pk
            if len(page) < PAGE:
                self._last_pk = last
            total = sum(self.seen.values())
            self.progress(total, (self._last_pk - first + 1) / (last - first + 1))

    # The stream

    def _still_in_stream(self, engine: Engine, shard: int, cursor: Any) -> Iterator[Found]:
        """Replay what no collector has stored."""
        here = engine.stream_identity(shard)
        place = Place(cursor.server, cursor.stream_id, cursor.number) if cursor else Place("")
        if place.server and place.server != here.server:
            gap = Gap(place, event.SERVER, None)
            yield from self._feed(engine.alias, _gap_record(shard, gap))
            place = Place(here.server, event.START, None)
        elif event.went_back(place, here):
            place = replace(place, stream_id=event.START)
        self._places[engine.alias, shard] = place
        for records in _pages(engine, shard, place.stream_id, here.last_number):
            walked = event.walk(place, records, self._known(engine.alias, records), engine.alias)
            for each in walked.found:
                if isinstance(each, EventRecord):
                    yield from self._feed(engine.alias, each, unread=True)
                elif each.missing is None:
                    yield from self._feed(engine.alias, _gap_record(shard, each))
                else:  # stored and trimmed meanwhile; or missing, as the numbers will tell
                    yield from self._between(engine.alias, shard, each)
            self._places[engine.alias, shard] = place = walked.place

    def _known(self, alias: str, records: list[EventRecord]) -> set[str]:
        """Return the identities of those that were replayed as rows already."""
        identities = [event.record_identity(alias, record) for record in records]
        stored = self._rows_of(LockEvent, identity__in=identities, pk__lte=self._last_pk)
        return set(stored.values_list("identity", flat=True)) if identities else set()

    def _between(self, alias: str, shard: int, gap: Gap) -> Iterator[Found]:
        assert gap.before is not None
        numbers = {"number__gt": gap.after.number, "number__lt": gap.before.number}
        rows = self._rows_of(
            LockEvent, pk__gt=self._last_pk, alias=alias, shard=shard, **numbers
        ).values_list(*_COLUMNS)
        for _, _, _, *columns in rows.iterator(PAGE):
            yield from self._feed(alias, _record(*columns), unread=True)

    # Judgement

    def _feed(
        self, alias: str, record: EventRecord, server: str = "", *, unread: bool = False
    ) -> Iterator[Found]:
        process = server if alias in self.apart else ""
        key, part = (alias, record.shard, process), self.part
        if part.alias not in ("", alias) or key in self._over:
            return
        if part.family and record.kind != GAP and family_of(record.name) != part.family:
            return
        history = self._histories.get(key)
        if history is None:
            if part.since and record.at_us < _us(part.since):
                return
            history = self._histories[key] = History(
                lambda name: self._highest_of(key, name), numbered=not part.family
            )
        if part.until and record.at_us >= _us(part.until):
            self._over.add(key)
            return
        self.seen[record.kind] += 1
        for fault in history.add(record):
            yield Found(alias, record.shard, fault)
        if unread and record.kind == "acquired":
            known = self._unread.setdefault(alias, {})
            known[record.name] = max(known.get(record.name, 0), record.fence)

    def _highest_of(self, key: Key, name: str) -> int:
        """Return the highest fencing token of a lock before the event that is looked at."""
        alias, shard, process = key
        which = {"server": process} if process else {}
        granted = self._rows_of(
            LockEvent, name_digest=name_digest(name), alias=alias, shard=shard, kind="acquired",
            **which,
        )  # fmt: skip
        before = granted.filter(pk__lte=self._last_pk).order_by()
        stored = before.aggregate(highest=Max("fence"))["highest"] or 0
        return max(stored, self._unread.get(alias, {}).get(name, 0))

    def _unended(self, engine: Engine) -> Iterator[Found]:
        """Judge the leases that have no end. See the module's docstring for the order of steps."""
        for (alias, shard, _), history in self._histories.items():
            if alias != engine.alias:
                continue
            held = {grant.name for grant in history.open()}
            states = {name: engine.show(name) for name in sorted(held)}
            fences = {
                (name, holder.fence)
                for name, state in states.items()
                for holder in (state.holders if state else ())
            }
            over = [it for it in history.open() if (it.name, it.fence) not in fences]
            if not over:
                continue
            engine.sweep()
            ended = self._ended_since(engine, shard, over)
            for grant in over:
                if (grant.name, grant.fence) not in ended:
                    yield Found(alias, shard, grant.unended())

    def _ended_since(
        self, engine: Engine, shard: int, grants: list[Grant]
    ) -> set[tuple[str, int | None]]:
        """Return those of the leases whose end was recorded after what was replayed."""
        found: set[tuple[str, int | None]] = set()
        after = event.START if self.part.until else self._places[engine.alias, shard].stream_id
        wanted = {(grant.name, grant.fence) for grant in grants}
        for records in _pages(engine, shard, after, engine.stream_identity(shard).last_number):
            ends = {(each.name, each.fence) for each in records if each.kind in ENDS}
            found |= ends & wanted
        left = iter(grants)
        while batch := list(islice(left, 500)):
            rows = self._rows_of(
                LockEvent,
                alias=engine.alias,
                kind__in=ENDS,
                name_digest__in={name_digest(grant.name) for grant in batch},
                fence__in={grant.fence for grant in batch},
            )
            found |= set(rows.values_list("name", "fence"))
        return found


def _pages(engine: Engine, shard: int, after: str, last: int) -> Iterator[list[EventRecord]]:
    """Read on to the event with the number ``last``: a busy stream grows while it is read."""
    while records := engine.read_events(shard, after, PAGE):
        yield records
        after = records[-1].id
        if records[-1].number >= last:
            return


def _record(
    shard: int, stream_id: str, number: int, kind: str, name: str, fence: int | None,
    at: datetime, detail: dict[str, Any],
) -> EventRecord:  # fmt: skip
    return EventRecord(shard, stream_id, number, kind, name, fence or 0, _us(at), detail)


def _gap_record(shard: int, gap: Gap) -> EventRecord:
    at_us = gap.before.at_us if gap.before else _us(datetime.now(UTC))
    detail: dict[str, Any] = {"missing": gap.missing, "why": gap.reason}
    return EventRecord(shard, gap.after.stream_id, 0, GAP, "", 0, at_us, detail)


def _us(at: datetime) -> int:
    if at.tzinfo is None:  # USE_TZ is off
        at = timezone.make_aware(at)
    return (at - _EPOCH) // timedelta(microseconds=1)
