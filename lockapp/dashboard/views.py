"""The page of live locks: all of them, or one with its queue. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from lockapp.dashboard.snapshot import live_page, one_lock, printable
from lockapp.exceptions import EngineError
from lockapp.handler import locks
from lockapp.models import LiveLock as LiveLockModel
from lockapp.naming import readable

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

    from lockapp.engines.base import Engine

VIEW = "lockapp.view_lockevent"
MAY_ASK = "lockapp.revoke_lock"
MAY_RELEASE = "lockapp.force_release_lock"
REFRESH_S = 5
"""Seconds between two refreshes of the page where JavaScript runs."""
SHOWN = 5
"""Holders of one lock in the list of all; the page of the lock itself has every one."""


@require_safe
def live(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """Show the locks that are held, a page at a time, or one of them with its queue."""
    require(request, VIEW)
    engine = engine_of(request.GET.get("using"))
    name = request.GET.get("name", "")
    context: dict[str, Any] = {
        "title": printable(readable(name)) or gettext("Live locks"),
        "aliases": list(locks),
        "using": engine.alias,
        "shared": engine.shared_between_processes,
        "name": name,
        "can_ask": request.user.has_perm(MAY_ASK),
        "can_release": request.user.has_perm(MAY_RELEASE),
        "refresh_s": REFRESH_S,
    }
    try:
        if name:
            found = one_lock(engine, name)
            context |= {"locks": [found] if found else [], "most": ":"}
        else:
            page = live_page(engine, _number(request.GET.get("page")))
            context |= {"page": page, "locks": page.locks, "shown": SHOWN, "most": f":{SHOWN}"}
    except EngineError as error:
        context["unavailable"] = str(error)
    return respond(request, site, "live", context)


def require(request: HttpRequest, *permissions: str) -> None:
    """Raise PermissionDenied unless the user has all of these."""
    if not request.user.has_perms(permissions):
        raise PermissionDenied


def engine_of(alias: str | None) -> Engine:
    """Return the engine asked for, or the first; Http404 when there is none of that name."""
    known = list(locks)
    if alias is None and known:
        alias = known[0]
    if alias not in known:
        raise Http404(gettext("There is no lock engine of that name."))
    return locks[alias]


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1


def respond(
    request: HttpRequest, site: AdminSite, page: str, context: dict[str, Any]
) -> TemplateResponse:
    """Render a page of the admin; 503 when the engine could not be asked."""
    request.current_app = site.name
    return TemplateResponse(
        request,
        f"admin/lockapp/livelock/{page}.html",
        {**site.each_context(request), "opts": LiveLockModel._meta, **context},
        status=503 if "unavailable" in context else 200,
    )
