"""What lockapp keeps in the database: audit log, holds, how far it was read, fences, answers.

Rows of the log and of holds are written by :mod:`lockapp.audit.collector` only, those of fences by
:mod:`lockapp.fencing` only, answers by :mod:`lockapp.idempotency` only. Nothing here
takes, frees or judges a lock.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from lockapp.naming import readable
from lockapp.querysets import (
    FenceQuerySet,
    IdempotencyRecordQuerySet,
    LockEventQuerySet,
    LockHoldQuerySet,
)


class _Named(models.Model):
    name: models.CharField[Any, str]

    class Meta:
        abstract = True

    @property
    def readable_name(self) -> str:
        """The lock's name for people's eyes. Never look one up by it."""
        return readable(self.name)


class _OfHolder(_Named):
    host = models.CharField(_("host"), max_length=255, blank=True)
    pid = models.CharField(_("process"), max_length=20, blank=True)
    task = models.CharField(_("task"), max_length=255, blank=True)
    task_id = models.CharField(_("task id"), max_length=255, blank=True)
    user = models.CharField(_("user"), max_length=255, blank=True)
    path = models.CharField(_("path"), max_length=500, blank=True)

    class Meta:
        abstract = True


class LockEvent(_OfHolder):
    """One transition of one lock, as the lock engine recorded it. Append-only.

    Invariant: each recorded transition is stored exactly once (``identity``), and what could not
    be stored is itself a row of the kind ``gap``.
    """

    class Kind(models.TextChoices):
        """What happened. A kind of a newer release is stored as it is."""

        ACQUIRED = "acquired", pgettext_lazy("event", "acquired")
        RELEASED = "released", pgettext_lazy("event", "released")
        DOWNGRADED = "downgraded", pgettext_lazy("event", "downgraded")
        REVOKED = "revoked", pgettext_lazy("event", "asked to let go")
        EXPIRED = "expired", pgettext_lazy("event", "expired")
        FORCED = "forced", pgettext_lazy("event", "taken away")
        ABANDONED = "abandoned", pgettext_lazy("event", "abandoned")
        DEGRADED = "degraded", pgettext_lazy("event", "ran without the server")
        GAP = "gap", pgettext_lazy("event", "gap")

    id = models.BigAutoField(primary_key=True)
    # Digest of what happened, where and when. Hexadecimal, since a database may compare text
    # without regard to case or trailing spaces.
    identity = models.CharField(max_length=48, unique=True, editable=False)

    alias = models.CharField(_("engine"), max_length=100)
    server = models.CharField(_("server"), max_length=64, blank=True)
    shard = models.PositiveIntegerField(_("shard"), default=0)
    stream_id = models.CharField(_("stream id"), max_length=41, blank=True)
    number = models.BigIntegerField(_("number"), default=0)

    kind = models.CharField(_("event"), max_length=20, choices=Kind)
    name = models.CharField(_("lock"), max_length=255, blank=True)
    name_digest = models.CharField(max_length=32, blank=True, editable=False)
    family = models.CharField(_("family"), max_length=200, blank=True)
    fence = models.BigIntegerField(_("fence"), null=True, blank=True)
    at = models.DateTimeField(_("time"))

    actor = models.CharField(_("by"), max_length=200, blank=True)
    reason = models.TextField(_("reason"), blank=True)

    detail = models.JSONField(_("detail"), default=dict, blank=True)

    objects = LockEventQuerySet.as_manager()

    class Meta:
        verbose_name = _("lock event")
        verbose_name_plural = _("lock events")
        ordering = ["-at", "-id"]
        default_permissions = ("view",)
        permissions = [
            ("force_release_lock", "Can take a lock away from its holder"),
            ("revoke_lock", "Can ask the holder of a lock to let go"),
        ]
        indexes = [
            models.Index(fields=["-at", "-id"], name="lockapp_event_at"),
            models.Index(fields=["name_digest", "fence"], name="lockapp_event_lock"),
            models.Index(fields=["family", "-at"], name="lockapp_event_family"),
        ]

    def __str__(self) -> str:
        what = self.get_kind_display()
        return f"{self.readable_name}: {what}" if self.name else what

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert. A row that exists is refused: the log is append-only.

        Raises:
            TypeError: the row exists.
        """
        if not self._state.adding:
            raise TypeError("lock events are append-only; they can be pruned, not changed")
        super().save(*args, **kwargs)

    @property
    def missing(self) -> int | None:
        """How many events a gap lacks; None when nobody can know, or when this is no gap."""
        value = self.detail.get("missing")
        return value if isinstance(value, int) else None

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: the log is append-only.

        Raises:
            TypeError: always.
        """
        raise TypeError("lock events are append-only; use LockEvent.objects.prune(before)")


class LockHold(_OfHolder):
    """One lease from its grant to its end, as the events tell it.

    Written together with the events it follows from, so that it is stored exactly once too. A row
    without an end is held still, or its end was not recorded; one without a kind had its end
    recorded only. Runs without the server's lock are no holds.
    """

    class Kind(models.TextChoices):
        """What was held."""

        MUTEX = "mutex", pgettext_lazy("hold", "lock")
        SEMAPHORE = "semaphore", pgettext_lazy("hold", "semaphore")
        READ = "read", pgettext_lazy("hold", "read")
        WRITE = "write", pgettext_lazy("hold", "write")

    class Ended(models.TextChoices):
        """How it ended: the event's kind."""

        NOT = "", pgettext_lazy("hold", "no end recorded")
        RELEASED = "released", pgettext_lazy("event", "released")
        EXPIRED = "expired", pgettext_lazy("event", "expired")
        FORCED = "forced", pgettext_lazy("event", "taken away")
        ABANDONED = "abandoned", pgettext_lazy("event", "abandoned")

    id = models.BigAutoField(primary_key=True)
    alias = models.CharField(_("engine"), max_length=100)
    kind = models.CharField(_("kind"), max_length=10, choices=Kind, blank=True)
    name = models.CharField(_("lock"), max_length=255)
    name_digest = models.CharField(max_length=32, editable=False)
    family = models.CharField(_("family"), max_length=200, blank=True)
    fence = models.BigIntegerField(_("fence"))

    granted_at = models.DateTimeField(_("granted at"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    ended = models.CharField(_("end"), max_length=20, choices=Ended, blank=True)
    actor = models.CharField(_("by"), max_length=200, blank=True)
    reason = models.TextField(_("reason"), blank=True)
    ttl_ms = models.BigIntegerField(_("ttl (ms)"), null=True, blank=True)
    waited_ms = models.BigIntegerField(_("waited (ms)"), null=True, blank=True)
    held_ms = models.BigIntegerField(_("held (ms)"), null=True, blank=True)

    objects = LockHoldQuerySet.as_manager()

    class Meta:
        verbose_name = _("lock hold")
        verbose_name_plural = _("lock holds")
        ordering = ["-granted_at", "-id"]
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=["name_digest", "fence", "alias"], name="lockapp_hold_lease"
            )
        ]
        # Each filter of the admin's list has one with the list's order, which is read backwards.
        indexes = [
            models.Index(fields=["granted_at", "id"], name="lockapp_hold_at"),
            models.Index(fields=["family", "granted_at", "id"], name="lockapp_hold_family"),
            models.Index(fields=["ended", "granted_at", "id"], name="lockapp_hold_ended"),
            models.Index(fields=["kind", "granted_at", "id"], name="lockapp_hold_kind"),
            models.Index(fields=["alias", "granted_at", "id"], name="lockapp_hold_alias"),
            # PostgreSQL looks up prefixes in an index of this class only; others ignore it.
            models.Index(
                fields=["name"], name="lockapp_hold_name", opclasses=["varchar_pattern_ops"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.readable_name} {self.fence}"


class LiveLock(LockEvent):
    """Gives the page of live locks its place in the admin's index. Has no rows of its own."""

    class Meta:
        proxy = True
        verbose_name = _("live lock")
        verbose_name_plural = _("live locks")
        default_permissions = ()


class Fence(_Named):
    """The latest holder of a lock that has claimed it in this database. One row per lock, for ever.

    Written by :func:`lockapp.fencing.fenced_atomic` only, and locked by it for as long as a
    transaction lasts. Invariant: (``epoch``, ``fence``) never becomes smaller.
    """

    # Hexadecimal: a database may compare names without regard to case or trailing spaces.
    digest = models.CharField(max_length=32, primary_key=True, editable=False)
    name = models.CharField(_("lock"), max_length=255)
    # Whose tokens these are; those of another engine can't be compared with them.
    engine = models.CharField(_("engine"), max_length=200)
    epoch = models.BigIntegerField(_("epoch"))
    fence = models.BigIntegerField(_("fence"))
    owner = models.CharField(max_length=32, editable=False)  # Lease.mark: which lease it was
    claimed_at = models.DateTimeField(_("claimed at"))

    objects = FenceQuerySet.as_manager()

    class Meta:
        verbose_name = _("fence")
        verbose_name_plural = _("fences")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.readable_name} {self.epoch}/{self.fence}"


class IdempotencyRecord(models.Model):
    """What was answered under one Idempotency-Key, to be answered again until it expires.

    Written by ``@idempotent_view`` only, in the transaction of what the view wrote. Nobody else
    ever sees one without its answer.
    """

    # Of scope, path and key, hexadecimal: a database may compare text without regard to case.
    digest = models.CharField(max_length=40, primary_key=True, editable=False)
    fingerprint = models.CharField(max_length=40, editable=False)  # of the payload
    key = models.CharField(_("key"), max_length=255)
    method = models.CharField(_("method"), max_length=20)
    path = models.CharField(_("path"), max_length=500)
    status = models.PositiveSmallIntegerField(_("status"), null=True)
    headers = models.JSONField(_("headers"), default=dict)
    body = models.BinaryField(_("body"), default=bytes)
    created_at = models.DateTimeField(_("created at"))
    expires_at = models.DateTimeField(_("expires at"))

    objects = IdempotencyRecordQuerySet.as_manager()

    class Meta:
        verbose_name = _("idempotency record")
        verbose_name_plural = _("idempotency records")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["expires_at"], name="lockapp_idempotency_expires")]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.key}"


class EventCursor(models.Model):
    """How far the event stream of one shard has been stored.

    ``version`` grows with each step, so that of two collectors that read the same events only one
    can store them.
    """

    key = models.CharField(max_length=32, primary_key=True)  # digest of alias and shard
    alias = models.CharField(_("engine"), max_length=100)
    shard = models.PositiveIntegerField(_("shard"), default=0)
    server = models.CharField(_("server"), max_length=64, blank=True)
    stream_id = models.CharField(_("stream id"), max_length=41, default="0-0")
    # NULL: the stream was begun anew, and whatever number comes next is right.
    number = models.BigIntegerField(_("number"), null=True, default=0)
    version = models.BigIntegerField(default=0)
    stored_at = models.DateTimeField(_("stored at"), null=True)
    # Of a stream that a process keeps for itself: whether the rest was stored before it ended.
    ended = models.BooleanField(default=False)

    class Meta:
        verbose_name = _("event cursor")
        verbose_name_plural = _("event cursors")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.alias}/{self.shard} {self.stream_id}"
