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

from django.db import DatabaseError, DataError, router, transaction
from django.db.models import F
from django.utils import timezone

from lockapp.audit import event
from lockapp.audit.event import Gap, Place
from lockapp.audit.rows import known_of, rows_of, spell_out, write
from lockapp.core.values import EventRecord
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError
from lockapp.models import EventCursor, LockEvent
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

    What an engine leaves in the process that used it, only that process can store (by a sink): of
    such an engine expired leases are reclaimed here, and no more. A process that collects would
    else look like one that used the engine and died.

    Returns:
        What was done and what failed, by alias. Each failure has been logged.
    """
    done: dict[str, Collected] = {}
    failed: dict[str, Exception] = {}
    for engine in engines:
        try:
            if engine.events_in_process:
                done[engine.alias] = Collected(reclaimed=engine.sweep())
            else:
                done[engine.alias] = collect(engine)
        except (EngineError, DatabaseError) as error:
            logger.warning("could not collect the lock events of %s: %s", engine.alias, error)
            failed[engine.alias] = error
    return done, failed


def cursor_key(engine: Engine, shard: int) -> str:
    """Return the key of the row that tells how far a stream has been stored.

    A stream that each process keeps for itself has a row for each.
    """
    parts = [engine.alias, str(shard)]
    if engine.events_in_process:
        parts.append(engine.stream_identity(shard).server)
    return name_digest("\n".join(parts))


def _collect_shard(engine: Engine, shard: int, size: int, using: str) -> Collected:
    total = Collected()
    may_go_back = True  # once a run: going on must end, whatever the server's counter says
    while True:
        cursor, _ = EventCursor.objects.using(using).get_or_create(
            key=cursor_key(engine, shard), defaults={"alias": engine.alias, "shard": shard}
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
    known = known_of(alias, records, using)
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
    rows = rows_of(alias, here.server, shard, found, now, using)
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
            spell_out(row)
        return _write(cursor, step, using)


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
        write(step.rows, using)
    return True


def _trim(engine: Engine, shard: int, through: str) -> None:
    try:
        engine.trim_events(shard, through)
    except EngineError as error:
        # They are stored; the next trim drops them too.
        logger.warning("could not trim the lock events of %s: %s", engine.alias, error)


def give_up(cursor: EventCursor, reason: str) -> None:
    """Remove the cursor of a stream that is gone; what may not have been stored of it is a gap.

    Changes nothing when the cursor has moved, or given a sign of life, since it was read.
    """
    using = router.db_for_write(LockEvent)
    same = {key: getattr(cursor, key) for key in ("pk", "version", "stored_at")}
    place = Place(cursor.server, cursor.stream_id, cursor.number)
    now = datetime.now(UTC)
    with transaction.atomic(using=using, durable=True):
        gone, _ = EventCursor.objects.using(using).filter(**same).delete()
        if gone and not cursor.ended:
            gap = Gap(place, reason, None)
            write(rows_of(cursor.alias, cursor.server, cursor.shard, [gap], now, using), using)
