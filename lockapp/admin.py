"""The admin's view of locks: registers and routes; the pages are in lockapp.dashboard."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.timezone import get_current_timezone, is_naive, localtime
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from lockapp.audit.event import ENDED
from lockapp.dashboard import ending, views
from lockapp.dashboard.figures import figures
from lockapp.dashboard.long_lists import (
    MOST_ROWS,
    CappedPaginator,
    EngineFilter,
    FamilyFilter,
)
from lockapp.dashboard.snapshot import duration, printable
from lockapp.models import Fence, IdempotencyRecord, LiveLock, LockEvent, LockHold
from lockapp.querysets import LockEventQuerySet

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Rows to be looked at: nobody adds, changes or deletes one here."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: rows are added by the collector, by claims, or by answers."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: what happened, happened."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: without its row, a stale holder could commit, or a client pay twice."""
        return False


class LongListAdmin(ReadOnlyAdmin):
    """A list of millions of rows. What it asks of the database, an index serves."""

    list_per_page = 100
    paginator = CappedPaginator
    show_full_result_count = False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list under its own name, and say so when there are more rows than it shows."""
        title = {"title": capfirst(self.opts.verbose_name_plural)}
        page: Any = super().changelist_view(request, {**title, **(extra_context or {})})
        changes = getattr(page, "context_data", {}).get("cl")
        if changes is not None and changes.paginator.capped:
            page.context_data["subtitle"] = _(
                "The first {} are shown. Filters and the search lead to others."
            ).format(number_format(MOST_ROWS, force_grouping=True))
        return cast(HttpResponse, page)


@admin.register(LockHold)
class LockHoldAdmin(LongListAdmin):
    """Who held which lock, the newest first."""

    list_display = ["granted", "lock", "kind", "holder", "waited", "held", "ending", "fence"]
    list_filter = ["ended", "kind", FamilyFilter, EngineFilter]
    search_fields = ["name"]
    search_help_text = _("A lock's name, or how it begins. Case counts.")
    sortable_by = ["granted"]
    fieldsets = [
        (None, {"fields": ["granted", "lock", "kind", "family", "fence", "waited", "held"]}),
        (_("Holder"), {"fields": ["host", "pid", "task", "task_id", "user", "path"]}),
        (_("End"), {"fields": ["ended", "ended_at", "actor", "reason"]}),
        (_("Record"), {"fields": ["name", "alias", "ttl_ms"]}),
    ]

    def get_urls(self) -> list[URLPattern]:
        """Add the page of statistics to the pages of rows."""
        page = self.admin_site.admin_view(partial(figures, site=self.admin_site))
        name = "lockapp_lockhold_statistics"
        return [path("statistics/", page, name=name), *super().get_urls()]

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        """Find names by their beginning, as they are stored or as people read them."""
        text = search_term.strip()
        return (queryset.named(text) if text else queryset), False

    @admin.display(description=_("granted at"), ordering="granted_at")
    def granted(self, row: LockHold) -> str:
        """Return the time to the millisecond."""
        return _to_the_ms(row.granted_at)

    @admin.display(description=_("lock"))
    def lock(self, row: LockHold) -> str:
        """Return the name as people read it."""
        return printable(row.readable_name)

    @admin.display(description=_("holder"))
    def holder(self, row: LockHold) -> str:
        """Return whose lease it was."""
        return _who(row)

    @admin.display(description=_("waited"))
    def waited(self, row: LockHold) -> str:
        """Return how long it was waited for, in people's units."""
        return _ms(row.waited_ms)

    @admin.display(description=_("held"))
    def held(self, row: LockHold) -> str:
        """Return how long it was held."""
        return _ms(row.held_ms)

    @admin.display(description=_("end"))
    def ending(self, row: LockHold) -> str:
        """Return how it ended, by whom and why."""
        said = [row.get_ended_display() if row.ended else "", row.actor, row.reason]
        return printable(", ".join(filter(None, said)))


@admin.register(LockEvent)
class LockEventAdmin(LongListAdmin):
    """What happened to locks, the newest first."""

    list_display = ["time", "kind", "lock", "who", "what", "fence"]
    list_filter = ["kind", FamilyFilter, EngineFilter]
    search_fields = ["name", "task", "task_id", "user", "host", "actor"]
    search_help_text = _("Part of a lock's name, a task, a task id, a user or a host.")
    fieldsets = [
        (None, {"fields": ["time", "kind", "lock", "family", "fence", "what"]}),
        (_("Holder"), {"fields": ["host", "pid", "task", "task_id", "user", "path"]}),
        (_("Operator"), {"fields": ["actor", "reason"]}),
        (
            _("Record"),
            {
                "fields": [
                    "stored_name",
                    "alias",
                    "server",
                    "shard",
                    "stream_id",
                    "number",
                    "detail",
                ],
            },
        ),
    ]

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        """Find names also by what people read: they are stored with escapes."""
        found, duplicates = super().get_search_results(request, queryset, search_term)
        if not search_term.isascii() and isinstance(queryset, LockEventQuerySet):
            found |= queryset.naming(search_term.strip())
        return found, duplicates

    @admin.display(description=_("time"), ordering="at")
    def time(self, row: LockEvent) -> str:
        """Return the time to the millisecond, which orders what happens within a second."""
        return _to_the_ms(row.at)

    @admin.display(description=_("lock"), ordering="name")
    def lock(self, row: LockEvent) -> str:
        """Return the name as people read it."""
        return printable(row.readable_name)

    @admin.display(description=_("name as stored"))
    def stored_name(self, row: LockEvent) -> str:
        """Return the name with its escapes, as commands and scripts take it."""
        return row.name

    @admin.display(description=_("holder"))
    def who(self, row: LockEvent) -> str:
        """Return whose lease it was."""
        return _who(row)

    @admin.display(description=_("what"))
    def what(self, row: LockEvent) -> str:
        """Return what else is known, in a few words."""
        detail = row.detail
        said = []
        if row.kind == LockEvent.Kind.GAP:
            said.append(_gap(row))
        if row.kind == LockEvent.Kind.DEGRADED:
            said.append(_degraded(row))
        if detail.get("waited_ms"):
            said.append(str(_("waited {}")).format(_ms(detail["waited_ms"])))
        if "held_ms" in detail:
            said.append(str(_("held {}")).format(_ms(detail["held_ms"])))
        if row.actor:
            said.append(str(_("by {}")).format(row.actor))
        if row.reason:
            said.append(f"“{row.reason}”")
        return printable(", ".join(said))


def _degraded(row: LockEvent) -> str:
    """Say how it ran and when: the row's own time is when the server was back."""
    mode, at_ms = row.detail.get("mode"), row.detail.get("at_ms")
    if mode == "unreported":
        return str(_("{} more, of which nothing else is recorded")).format(row.reason)
    how = {"local": _("locked within its process"), "open": _("without a lock")}.get(mode, mode)
    if not isinstance(at_ms, int):
        return str(how)
    at = datetime.fromtimestamp(min(at_ms / 1000, 2**35), UTC)
    return f"{how}, {at.astimezone(get_current_timezone()):%Y-%m-%d %H:%M:%S}"


def _gap(row: LockEvent) -> str:
    if row.detail.get("why") == ENDED:
        return str(_("a process ended; its last events may be missing"))
    if row.missing is None:
        return str(_("the server lost or changed its data; events may be missing"))
    text = ngettext("{} event is missing", "{} events are missing", row.missing)
    return text.format(row.missing)


def _ms(value: Any) -> str:
    if value is None:
        return ""
    return duration(value / 1000) if isinstance(value, int) else str(value)


def _to_the_ms(at: datetime) -> str:
    local = at if is_naive(at) else localtime(at)
    return local.isoformat(sep=" ", timespec="milliseconds")[:23]


def _who(row: LockEvent | LockHold) -> str:
    process = ":".join(filter(None, (row.host, row.pid)))
    return printable(", ".join(filter(None, (row.task or row.path, row.user, process))))


@admin.register(Fence)
class FenceAdmin(ReadOnlyAdmin):
    """Who has last claimed each lock in this database."""

    list_display = ["lock", "engine", "epoch", "fence", "claimed_at"]
    search_fields = ["name"]
    ordering = ["-claimed_at"]
    show_full_result_count = False
    fields = ["lock", "engine", "epoch", "fence", "claimed_at"]

    @admin.display(description=_("lock"), ordering="name")
    def lock(self, row: Fence) -> str:
        """Return the name as people read it."""
        return printable(row.readable_name)


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnlyAdmin):
    """What is answered again, without the answers themselves: they are their users'."""

    list_display = ["key", "method", "path", "status", "created_at", "expires_at"]
    search_fields = ["key"]
    search_help_text = _("Part of an Idempotency-Key.")
    ordering = ["-expires_at"]  # by the index
    show_full_result_count = False
    fields = ["key", "method", "path", "status", "created_at", "expires_at"]


@admin.register(LiveLock)
class LiveLockAdmin(ReadOnlyAdmin):
    """Gives the page of live locks its address and its place in the index."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may see lock events, past or present."""
        return bool(request.user.has_perm(views.VIEW))

    def get_urls(self) -> list[URLPattern]:
        """Return the page of live locks and those on which one is ended."""
        live = self.admin_site.admin_view(self.changelist_view)
        pages = [path("", live, name="lockapp_livelock_changelist")]
        for way in (ending.ASK, ending.TAKE):
            view = partial(ending.end, site=self.admin_site, ending=way)
            pages.append(
                path(
                    f"{way.page}/",
                    self.admin_site.admin_view(view),
                    name=f"lockapp_livelock_{way.page}",
                )
            )
        return pages

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of live locks in the place of a list of rows."""
        return views.live(request, self.admin_site)
