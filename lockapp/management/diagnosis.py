"""What endangers the locks of this site: settings, servers and audit log, each with its cure.

The order of CURES is that of gravity: what stops every lock, what may let two in, what loses the
audit log, what will hurt one day.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router

from lockapp.audit import event
from lockapp.audit.collector import cursor_key
from lockapp.checks import HINTS, TAG
from lockapp.dashboard.snapshot import duration
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError, LockAppError
from lockapp.fencing.checks import check_fences
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.models import EventCursor, Fence
from lockapp.naming import lock_name

ERROR, WARNING, INFO = checks.ERROR, checks.WARNING, checks.INFO
PROBE = "lockapp-doctor"
"""Family of the lock that is taken and freed. Its name tells host and process."""
LAG_S = 60
"""How old an event may become before somebody asks why nobody collects it."""
EXAMINED = {f"lockapp.{number}" for number in ("E004", "W006", "W007")}
"""Checks that ask a server what is asked here too."""

CURES: dict[str, tuple[int, str, str]] = {
    "unreachable": (ERROR, "The server could not be asked: {}.", HINTS["W007"]),
    "version": (ERROR, "The server is too old: {}.", HINTS["E004"]),
    "replica": (
        ERROR, "The server is a replica of {} and refuses every lock.",
        "Let LOCATION name the primary.",
    ),
    "cluster": (
        ERROR, "The server is a node of a Cluster, and is spoken to as if it were alone.",
        "Let LOCATION say so: redis+cluster://host:port,host:port.",
    ),
    "uncovered": (
        ERROR, "Nobody serves a part of the Cluster: {}.",
        "Mend its nodes. With cluster-require-full-coverage nobody gets any lock until then.",
    ),
    "replicas": (
        ERROR, "Fewer replicas are connected than every lease must reach: {}.",
        "Mend them, or lower min_replicas_acked; until then no lock is granted.",
    ),
    "permission": (
        ERROR, "The server's user may not: {}.",
        "ACL SETUSER user ~PREFIX:* &PREFIX:* +@all -@admin -@dangerous +info, with your prefix.",
    ),
    "refused": (
        ERROR, "A lock could not be taken and freed: {}.",
        "Without this no lock works. The message is the server's own.",
    ),
    "too slow": (
        ERROR, "The server takes too long to answer: {}.",
        "Move it closer, or raise command_timeout and ttl.",
    ),
    "unsaved": (
        ERROR, "The server can't write to its disk ({}); it may refuse new locks.",
        "Free its disk and look into its log.",
    ),
    "eviction": (
        ERROR, "The server may evict locks when it runs out of memory ({}).", HINTS["W006"],
    ),
    "memory": (
        WARNING, "The server's memory is nearly full ({} bytes); full, it refuses new locks.",
        "Raise maxmemory, or give locks a server of their own.",
    ),
    "clients": (
        WARNING, "The server has nearly as many connections as it accepts ({}).",
        "Raise maxclients, or find out who keeps so many.",
    ),
    "forgets": (
        WARNING, "The server keeps nothing on disk: when it restarts, every lock is free.",
        "Set appendonly yes on it. Fence your tables where work must not be done twice.",
    ),
    "audit": (
        ERROR, "The audit log can't be read: {}.",
        "Run migrate, and look into the database. Locks work all the same.",
    ),
    "overflow": (
        ERROR, "{} events wait to be stored; when they are about {}, the oldest are dropped.",
        "Run a collector: lockapp collect --follow, or the task lockapp.tasks.collect by beat.",
    ),
    "lag": (
        WARNING, "The oldest event that is not stored is {} old; {} wait.",
        "Run a collector: lockapp collect --follow, or the task lockapp.tasks.collect by beat.",
    ),
    "unswept": (
        WARNING, "{} locks ran out more than a minute ago, and nobody has reclaimed them.",
        "Nobody waits for them, so no lock is blocked. Run a collector; once: lockapp sweep.",
    ),
    "slow": (
        WARNING, "The server answers slowly: {}.",
        "Move it closer, or raise command_timeout and ttl.",
    ),
    "clock": (
        WARNING, "The server's clock is {}.",
        "Run NTP on both. Leases go by the server's clock alone; times shown here may mislead.",
    ),
    "snapshots": (
        INFO, "The server keeps snapshots at most: after a crash, locks taken since are free.",
        "Set appendonly yes on it. Fence your tables where work must not be done twice.",
    ),
}  # fmt: skip
"""By kind: how grave it is, what it is, and what to do."""
_GRAVITY = {kind: place for place, kind in enumerate(CURES)}


class Finding(NamedTuple):
    """One thing that is wrong, or could be."""

    level: int  # of django.core.checks
    kind: str  # one of CURES, or the id of a system check
    where: str  # the engine's alias; empty: the settings
    text: str
    cure: str

    @property
    def gravity(self) -> tuple[int, int]:
        """Sorts the gravest first; what settings say comes after what a server says."""
        return -self.level, _GRAVITY.get(self.kind, len(_GRAVITY))


@dataclass(frozen=True, slots=True)
class Visit:
    """What was learnt of one engine that has a server."""

    alias: str
    server: str  # its address, without secrets
    version: str
    round_trip_ms: float | None
    findings: tuple[Finding, ...]


def of_settings() -> Iterator[Finding]:
    """Yield what Django's own checks say of locks, those of ``--deploy`` too."""
    messages = checks.run_checks(tags=[TAG], include_deployment_checks=True)
    with suppress(DatabaseError):  # told by whoever reads the audit log
        messages += check_fences([router.db_for_write(Fence)])
    for message in messages:
        if message.id not in EXAMINED and not message.is_silenced():
            text, cure = str(message.msg), str(message.hint or "")
            yield Finding(message.level, str(message.id), "", text, cure)


def engines(alias: str | None) -> list[Engine]:
    """Return the engine asked for, or all of them that can be made; checks tell of the others.

    Raises:
        ImproperlyConfigured: the one asked for can't be made.
    """
    if alias is not None:
        return [locks[alias]]
    made = []
    with suppress(ImproperlyConfigured):  # there is no usable LOCKAPP at all
        for each in locks:
            with suppress(ImproperlyConfigured):
                made.append(locks[each])
    return made


def visit(engine: Engine) -> Visit | None:
    """Examine an engine's server, take a lock there, and look at the audit log; None: no server."""
    if engine.address is None:
        return None
    seen = engine.examine()
    found = [_finding(engine, each.kind, each.detail) for each in seen.problems]
    if seen.usable:
        found += _try_a_lock(engine)
        found += _of_audit(engine)
    return Visit(engine.alias, str(engine.address), seen.version, seen.round_trip_ms, tuple(found))


def _try_a_lock(engine: Engine) -> Iterator[Finding]:
    """Take and free a lock of one's own: only that shows whether the scripts may do their work."""
    name = lock_name(PROBE, socket.gethostname(), os.getpid())
    probe = Lock(engine, name, wait=0, renew=False, on_unavailable="raise", release="now")
    try:
        probe.acquire().release()
    except LockAppError as error:  # also that it was over before it could be freed
        yield _finding(engine, "refused", str(error))


def _of_audit(engine: Engine) -> Iterator[Finding]:
    try:
        stored = EventCursor.objects.using(router.db_for_write(EventCursor))
        cursors = stored.in_bulk([cursor_key(engine, shard) for shard in range(engine.shards)])
    except DatabaseError as error:
        yield _finding(engine, "audit", str(error))
        return
    try:
        for shard in range(engine.shards):
            yield from _of_stream(engine, shard, cursors.get(cursor_key(engine, shard)))
    except EngineError:
        return  # refused, which is told


def _of_stream(engine: Engine, shard: int, cursor: EventCursor | None) -> Iterator[Finding]:
    here = engine.stream_identity(shard)
    same = cursor is not None and cursor.server == here.server
    after = cursor.stream_id if cursor and same else event.START
    oldest = engine.read_events(shard, after, 1)
    if not oldest:
        return
    waiting = here.last_number - oldest[0].number + 1
    if waiting > engine.options.event_cap / 2:
        yield _finding(engine, "overflow", waiting, engine.options.event_cap)
        return
    age_s = time.time() - oldest[0].at_us / 1e6
    if age_s > LAG_S:
        yield _finding(engine, "lag", duration(age_s), waiting)


def _finding(engine: Engine, kind: str, *details: object) -> Finding:
    level, text, cure = CURES[kind]
    return Finding(level, kind, engine.alias, text.format(*details), cure)


def gravest(findings: Iterable[Finding]) -> int:
    """Return the level of the gravest, or 0."""
    return max((each.level for each in findings), default=0)
