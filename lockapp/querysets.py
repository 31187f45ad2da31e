"""Questions to the audit log, the fences and the stored answers, in their own words.

The log is append-only: rows are added by the collector and removed by ``prune``, never changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from django.db import models
from django.db.models import Q
from django.utils import timezone

from lockapp.core.encoding import escape
from lockapp.naming import name_digest

if TYPE_CHECKING:
    from lockapp.models import (  # noqa: F401 - the type parameters below
        Fence,
        IdempotencyRecord,
        LockEvent,
    )


class LockEventQuerySet(models.QuerySet["LockEvent"]):
    """Lock events, oldest or newest first as the caller orders them."""

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

    def prune(self, before: datetime) -> int:
        """Remove what happened before ``before``; return how many rows that were."""
        removed, _ = super(LockEventQuerySet, self.filter(at__lt=before)).delete()
        return removed

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


class FenceQuerySet(models.QuerySet["Fence"]):
    """The fences of a database."""

    def for_lock(self, name: str) -> Self:
        """Keep the fence of exactly this lock."""
        return self.filter(digest=name_digest(name))

    def prune(self, before: datetime) -> int:
        """Remove fences that were last claimed before ``before``; return how many.

        A holder that was paused for longer than that is no longer refused.
        """
        removed, _ = self.filter(claimed_at__lt=before).delete()
        return removed


class IdempotencyRecordQuerySet(models.QuerySet["IdempotencyRecord"]):
    """The answers that are given again."""

    def expired(self) -> Self:
        """Keep those that are given again no more."""
        return self.filter(expires_at__lte=timezone.now())

    def prune(self, batch: int = 1000) -> int:
        """Remove those that have expired, ``batch`` rows at a time; return how many rows.

        Each batch is a transaction of its own, unless one is open. Twice at once does no harm.
        """
        removed = 0
        while digests := list(self.expired().values_list("pk", flat=True)[:batch]):
            removed += self.filter(pk__in=digests).delete()[0]
        return removed
