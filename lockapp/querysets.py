"""Questions to the audit log, the holds, the fences and the stored answers, in their own words.

The log is append-only: rows are added by the collector and removed by ``prune``, never changed.
What ``prune`` removes goes by batches, oldest first, so that no table is locked for long.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from django.db import connections, models
from django.db.models import Q
from django.utils import timezone

from lockapp.core.encoding import escape
from lockapp.naming import family_of, name_digest

if TYPE_CHECKING:
    from lockapp.models import (  # noqa: F401 - the type parameters below
        Fence,
        IdempotencyRecord,
        LockEvent,
        LockHold,
    )

BATCH = 1000
"""Rows removed in one transaction: some 50 ms."""
Progress = Callable[[int], None]
"""Told after each batch how many rows have been removed so far."""


def prune(rows: Any, batch: int = BATCH, progress: Progress | None = None) -> int:
    """Remove ``rows`` of one of the tables below, oldest first; return how many there were.

    Each batch is a transaction of its own, unless one is open. Two at once do no harm, and what
    was removed before a failure or an interruption stays removed.
    """
    removed, rest, by = 0, rows, rows._by
    while found := list(rest.order_by(by).values_list("pk", by)[:batch]):
        # The model's own delete: that of a log refuses.
        removed += models.QuerySet.delete(rows.filter(pk__in=[pk for pk, _ in found]))[0]
        # Going on from here spares the database what it has removed and not yet cleared away.
        rest = rows.filter(**{f"{by}__gte": found[-1][1]})
        if progress is not None:
            progress(removed)
    return removed


def first_values(rows: models.QuerySet[Any], field: str, most: int) -> list[Any]:
    """Return the distinct values of ``field``, in order, up to ``most``.

    Jumps from one to the next in an index that starts with the field, where DISTINCT would read
    each of millions of rows.
    """
    values: list[Any] = []
    rest = rows.order_by(field).values_list(field, flat=True)
    while len(values) < most:
        after = rest.filter(**{f"{field}__gt": values[-1]}) if values else rest
        found = list(after[:1])
        if not found:
            break
        values += found
    return values


class LockEventQuerySet(models.QuerySet["LockEvent"]):
    """Lock events, oldest or newest first as the caller orders them."""

    _by = "at"  # the order of prune(); each has an index

    def for_lock(self, name: str) -> Self:
        """Keep the events of exactly this lock.

        Compared by digest: a database may take ``Order:7`` and ``order:7`` for the same text.
        """
        return self.filter(name_digest=name_digest(name))

    def naming(self, text: str) -> Self:
        """Keep the events of locks whose name contains ``text``, written out or encoded."""
        encoded = escape(text.encode("utf-8", "replace"))
        return self.filter(Q(name__icontains=text) | Q(name__icontains=encoded))

    def lost(self) -> Self:
        """Keep what ended a lease against its holder's will."""
        kinds = self.model.Kind
        return self.filter(kind__in=[kinds.EXPIRED, kinds.FORCED, kinds.ABANDONED])

    def degraded(self) -> Self:
        """Keep what ran without the server's lock, since it could not be asked."""
        return self.filter(kind=self.model.Kind.DEGRADED)

    def gaps(self) -> Self:
        """Keep the rows that say that events are, or may be, missing."""
        return self.filter(kind=self.model.Kind.GAP)

    def since(self, when: datetime) -> Self:
        """Keep what happened at or after ``when``."""
        return self.filter(at__gte=when)

    def before(self, when: datetime) -> Self:
        """Keep what happened before ``when``."""
        return self.filter(at__lt=when)

    def prune(
        self, before: datetime, *, batch: int = BATCH, progress: Progress | None = None
    ) -> int:
        """Remove what happened before ``before``; return how many rows that were. See prune()."""
        return prune(self.before(before), batch, progress)

    def update(self, **values: Any) -> NoReturn:
        """Refuse: the log is append-only.

        Raises:
            TypeError: always.
        """
        raise TypeError("lock events are append-only; they can be pruned, not changed")

    def delete(self) -> NoReturn:
        """Refuse: the log is append-only.

        Raises:
            TypeError: always.
        """
        raise TypeError("lock events are append-only; use prune(before) to drop old ones")


class LockHoldQuerySet(models.QuerySet["LockHold"]):
    """Leases from grant to end."""

    _by = "granted_at"

    def for_lock(self, name: str) -> Self:
        """Keep the holds of exactly this lock. Compared by digest, as events are."""
        return self.filter(name_digest=name_digest(name))

    def starting_with(self, text: str) -> Self:
        """Keep the holds of locks whose name starts with ``text``, by the index on names.

        Case counts. The name is the stored one, with its escapes.
        """
        vendor = connections[self.db].vendor
        if vendor == "sqlite":  # its LIKE takes no index; its comparisons go by code points
            return self.filter(name__gte=text, name__lt=text + chr(0x10FFFF))
        found = self.filter(name__startswith=text)
        if vendor == "mysql":  # its LIKE BINARY takes no index; plain LIKE does
            found = found.filter(name__istartswith=text)
        return found

    def named(self, text: str) -> Self:
        """Keep the holds of locks whose name starts with ``text``, written out or encoded.

        A colon separates parts either way. A family with its colon may be that of millions: it is
        looked up as such, in the order of the grants (and by case only where the database does).
        """
        if text.find(":") == len(text) - 1 > 0:
            return self.filter(family=family_of(text))
        encoded = ":".join(escape(part.encode("utf-8", "replace")) for part in text.split(":"))
        found = self.starting_with(text)
        return found if encoded == text else found | self.starting_with(encoded)

    def without_end(self) -> Self:
        """Keep what is held still, or whose end was not recorded."""
        return self.filter(ended="")

    def before(self, when: datetime) -> Self:
        """Keep what was granted before ``when`` and has not ended since.

        That has no end at all, or one before ``when``.
        """
        return self.filter(Q(ended_at=None) | Q(ended_at__lt=when), granted_at__lt=when)

    def prune(
        self, before: datetime, *, batch: int = BATCH, progress: Progress | None = None
    ) -> int:
        """Remove what was granted before ``before`` and did not end later; return how many.

        That takes also what is held for so long. Its end, when it comes, makes a new row. See
        prune().
        """
        return prune(self.before(before), batch, progress)


class FenceQuerySet(models.QuerySet["Fence"]):
    """The fences of a database."""

    _by = "digest"  # an index on the time would cost each claim more: goes through them all, once

    def for_lock(self, name: str) -> Self:
        """Keep the fence of exactly this lock."""
        return self.filter(digest=name_digest(name))

    def before(self, when: datetime) -> Self:
        """Keep those that were last claimed before ``when``."""
        return self.filter(claimed_at__lt=when)

    def prune(
        self, before: datetime, *, batch: int = BATCH, progress: Progress | None = None
    ) -> int:
        """Remove fences that were last claimed before ``before``; return how many. See prune().

        A holder that was paused for longer than that is no longer refused.
        """
        return prune(self.before(before), batch, progress)


class IdempotencyRecordQuerySet(models.QuerySet["IdempotencyRecord"]):
    """The answers that are given again."""

    _by = "expires_at"

    def expired(self) -> Self:
        """Keep those that are given again no more."""
        return self.filter(expires_at__lte=timezone.now())

    def prune(self, batch: int = BATCH, progress: Progress | None = None) -> int:
        """Remove those that have expired; return how many. See prune()."""
        return prune(self.expired(), batch, progress)
