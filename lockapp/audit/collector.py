"""Event stream → rows of events and holds, exactly once.

One step, for one shard::

    read the cursor (version v) → ask the stream how far it goes → read a batch after the cursor
    → look up which of it the table has → BEGIN → move the cursor from v to v + 1 → insert → COMMIT
    → trim the stream up to the cursor

* Killed before COMMIT: nothing happened. After it: the next step goes on from the cursor, and what
  was not trimmed is dropped by the next trim.
* Two collectors at once: the cursor's row lets only one of them leave version v; the other has
  written nothing and reads again. The transaction starts with that write, so that SQLite takes its
  writer's place where it can wait for it, and holds it for the inserts only, never for Redis.
* The stream went back (failover, lost data): read from its start again; what the table has is
  recognised by its identity. Which events are missing is worked out in :mod:`lockapp.audit.event`.

Never inside a caller's transaction: rolled back, the rows would be gone and the stream trimmed.
Never in a lock's way: what fails here is told to whoever collects, and stays in the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.db import DatabaseError, DataError, connections, router, transaction
from django.db.models import F
from django.utils import timezone

from lockapp.audit import event, holds
from lockapp.audit.event import Gap, Place
from lockapp.core.values import EventRecord
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError
from lockapp.models import EventCursor, LockEvent, LockHold
from lockapp.naming import name_digest

logger = logging.getLogger("lockapp")

BATCH = 1000
"""Events stored in one transaction: about 0.1 s of SQLite's only writer."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run did."""

    stored: int = 0  # events
    gaps: int = 0  # rows that say that events are, or may be, missing
    known: int = 0  # events read again that were stored already
    reclaimed: int = 0  # locks whose holder's lease had run out
    lag_ms: int = 0  # how long the oldest of the stored events had waited to be stored

    def __add__(self, other: Collected) -> Collected:
        return Collected(
            self.stored + other.stored,
            self.gaps + other.gaps,
            self.known + other.known,
            self.reclaimed + other.reclaimed,
            max(self.lag_ms, other.lag_ms),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """What is to be stored in one transaction, and how far the stream has been read then."""

    rows: list[LockEvent]
    place: Place
    did: Collected
    last: bool


def collect(engine: Engine, *, batch: int = BATCH) -> Collected:
    """Reclaim expired leases, then store every event that the engine has recorded.

    Safe to run any number of times, several at once, and to be killed.

    Args:
        engine: whose events.
        batch: how many events go into one transaction.

    Raises:
        RuntimeError: called inside a transaction.
        EngineUnavailable: could not ask; what was stored stays stored.
        django.db.DatabaseError: could not store; the events stay in the stream.
    """
    using = router.db_for_write(LockEvent)
    with transaction.atomic(using=using, durable=True):
        pass  # refuses an open transaction, before anything is done
    total = Collected(reclaimed=engine.sweep())
    for shard in range(engine.shards):
        total += _collect_shard(engine, shard, batch, using)
    return total


def collect_all(engines: Iterable[Engine]) -> tuple[dict[str, Collected], dict[str, Exception]]:
    """Collect several engines; one that fails does not keep the others waiting.

    Returns:
        What was done and what failed, by alias. Each failure has been logged.
    """
    done: dict[str, Collected] = {}
    failed: dict[str, Exception] = {}
    for engine in engines:
        try:
            done[engine.alias] = collect(engine)
        except (EngineError, DatabaseError) as error:
            logger.warning("could not collect the lock events of %s: %s", engine.alias, error)
            failed[engine.alias] = error
    return done, failed


def _collect_shard(engine: Engine, shard: int, size: int, using: str) -> Collected:
    total = Collected()
    may_go_back = True  # once a run: going on must end, whatever the server's counter says
    while True:
        cursor, _ = EventCursor.objects.using(using).get_or_create(
            key=name_digest(f"{engine.alias}\n{shard}"),
            defaults={"alias": engine.alias, "shard": shard},
        )
        step = _read(engine, cursor, size, using, may_go_back=may_go_back)
        may_go_back = False
        if not _store(cursor, step, using):
            continue  # another collector was faster; go on where it is
        total += step.did
        if step.did.stored or step.did.known:
            _trim(engine, shard, step.place.stream_id)
        if step.last:
            return total


def _read(
    engine: Engine, cursor: EventCursor, size: int, using: str, *, may_go_back: bool
) -> _Step:
    """Read the next batch and work out its rows. Writes nothing."""
    alias, shard, now = engine.alias, cursor.shard, datetime.now(UTC)
    here = engine.stream_identity(shard)
    place = Place(cursor.server, cursor.stream_id, cursor.number)
    found: list[EventRecord | Gap] = []
    if place.server != here.server:
        if place.server:
            logger.warning("lock events of %s come from another server, or a restarted one", alias)
            found.append(Gap(place, event.SERVER, None))
            place = _resume(engine, shard, place)
        place = replace(place, server=here.server)
    elif may_go_back and event.went_back(place, here):
        place = replace(place, stream_id=event.START)
    records = engine.read_events(shard, place.stream_id, size)
    known = _known(alias, records, using)
    walked = event.walk(place, records, known, alias)
    found += walked.found
    new = [each for each in found if isinstance(each, EventRecord)]
    oldest_us = min((record.at_us for record in new), default=0)
    did = Collected(
        stored=len(new),
        gaps=len(found) - len(new),
        known=walked.known,
        lag_ms=max(int(now.timestamp() * 1000) - oldest_us // 1000, 0) if new else 0,
    )
    rows = _rows(alias, here.server, shard, found, now, using)
    return _Step(rows, walked.place, did, last=len(records) < size)


def _resume(engine: Engine, shard: int, place: Place) -> Place:
    """Say where to read on, on a server that is another one, or the same one restarted.

    Where the last event that was stored is still there, what follows it is what is new. Else the
    stream is another history, of which the table may have a part.
    """
    if place.stream_id != event.START:
        anchor = engine.read_events(shard, event.id_before(place.stream_id), 1)
        if anchor and (anchor[0].id, anchor[0].number) == (place.stream_id, place.number):
            return place
    return Place(place.server, event.START, None)


def _known(alias: str, records: list[EventRecord], using: str) -> set[str]:
    """Return the identities of those events that the table has."""
    identities = [event.record_identity(alias, record) for record in records]
    stored = LockEvent.objects.using(using).filter(identity__in=identities)
    return set(stored.values_list("identity", flat=True)) if identities else set()


def _rows(
    alias: str,
    server: str,
    shard: int,
    found: list[EventRecord | Gap],
    now: datetime,
    using: str,
) -> list[LockEvent]:
    rows = [
        LockEvent(**event.gap_fields(alias, server, shard, each, now))
        if isinstance(each, Gap)
        else LockEvent(**event.record_fields(alias, server, each))
        for each in found
    ]
    if timezone.is_naive(timezone.now()):  # USE_TZ is off: databases refuse aware times then
        for row in rows:
            row.at = timezone.make_naive(row.at)
    _add_holders(alias, rows, using)
    return rows


def _add_holders(alias: str, rows: list[LockEvent], using: str) -> None:
    """Tell of every event whose lease it was; the engine says so only when it grants one."""
    holders: dict[tuple[str, int | None], dict[str, str]] = {}
    unknown: set[tuple[str, int | None]] = set()
    for row in rows:
        lease = (row.name_digest, row.fence)
        if row.kind == LockEvent.Kind.ACQUIRED:
            holders[lease] = {key: getattr(row, key) for key in event.HOLDER_FIELDS}
        elif row.kind != LockEvent.Kind.GAP and lease not in holders:
            unknown.add(lease)
    if unknown:
        grants = LockEvent.objects.using(using).filter(
            alias=alias,
            kind=LockEvent.Kind.ACQUIRED,
            name_digest__in={digest for digest, _ in unknown},
            fence__in={fence for _, fence in unknown},
        )
        for grant in grants.values("name_digest", "fence", *event.HOLDER_FIELDS):
            holders[grant.pop("name_digest"), grant.pop("fence")] = grant
    for row in rows:
        for key, value in holders.get((row.name_digest, row.fence), {}).items():
            setattr(row, key, value)


def _store(cursor: EventCursor, step: _Step, using: str) -> bool:
    """Write the rows and move the cursor; return False, with nothing written, if it has moved."""
    if not step.rows and step.place == Place(cursor.server, cursor.stream_id, cursor.number):
        return True
    try:
        return _write(cursor, step, using)
    except DataError:
        # A column's character set lacks a character: what can't be stored as it is must not keep
        # everything that follows from being stored.
        logger.warning("the database refuses some text of lock events; storing it as ASCII")
        for row in step.rows:
            _spell_out(row)
        return _write(cursor, step, using)


def _spell_out(row: LockEvent) -> None:
    for field in LockEvent._meta.concrete_fields:
        value = getattr(row, field.attname)
        if isinstance(value, str) and not value.isascii():
            spelled = value.encode("ascii", "backslashreplace").decode()
            setattr(row, field.attname, spelled[: field.max_length])


def _write(cursor: EventCursor, step: _Step, using: str) -> bool:
    place = step.place
    with transaction.atomic(using=using, durable=True):
        moved = EventCursor.objects.using(using).filter(pk=cursor.pk, version=cursor.version)
        if not moved.update(
            server=place.server,
            stream_id=place.stream_id,
            number=place.number,
            version=F("version") + 1,
            stored_at=timezone.now(),
        ):
            return False
        LockEvent.objects.using(using).bulk_create(step.rows)
        _write_holds(step.rows, using)
    return True


def _write_holds(rows: list[LockEvent], using: str) -> None:
    features = connections[using].features
    unique = holds.IDENTITY if features.supports_update_conflicts_with_target else None
    for told, found in holds.holds_of(rows).items():
        LockHold.objects.using(using).bulk_create(
            found, update_conflicts=True, unique_fields=unique, update_fields=told
        )


def _trim(engine: Engine, shard: int, through: str) -> None:
    try:
        engine.trim_events(shard, through)
    except EngineError as error:
        # They are stored; the next trim drops them too.
        logger.warning("could not trim the lock events of %s: %s", engine.alias, error)
