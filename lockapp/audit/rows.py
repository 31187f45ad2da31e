"""What is stored of events: how a batch becomes rows, and how rows are written.

Nothing here decides which events those are, or when.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import connections
from django.utils import timezone

from lockapp.audit import event, holds
from lockapp.audit.event import Gap
from lockapp.core.values import EventRecord
from lockapp.models import LockEvent, LockHold


def known_of(alias: str, records: list[EventRecord], using: str) -> set[str]:
    """Return the identities of those events that the table has."""
    identities = [event.record_identity(alias, record) for record in records]
    stored = LockEvent.objects.using(using).filter(identity__in=identities)
    return set(stored.values_list("identity", flat=True)) if identities else set()


def rows_of(
    alias: str,
    server: str,
    shard: int,
    found: Iterable[EventRecord | Gap],
    now: datetime,
    using: str,
) -> list[LockEvent]:
    """Return the rows of events and gaps, in their order."""
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


def write(rows: list[LockEvent], using: str) -> None:
    """Insert events and what they say of holds. Within the caller's transaction."""
    LockEvent.objects.using(using).bulk_create(rows)
    features = connections[using].features
    unique = holds.IDENTITY if features.supports_update_conflicts_with_target else None
    for told, found in holds.holds_of(rows).items():
        LockHold.objects.using(using).bulk_create(
            found, update_conflicts=True, unique_fields=unique, update_fields=told
        )


def spell_out(row: LockEvent) -> None:
    """Make a row ASCII, for a database that has no room for other characters."""
    for field in LockEvent._meta.concrete_fields:
        value = getattr(row, field.attname)
        if isinstance(value, str) and not value.isascii():
            spelled = value.encode("ascii", "backslashreplace").decode()
            setattr(row, field.attname, spelled[: field.max_length])
