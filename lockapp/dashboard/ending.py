"""Two pages on which an operator ends a lease: ask its holder to let go, or take the lock away.

Invariant: what is done is done to the lease that was shown, or to none. The form carries the
fence; a page that has grown old, a second click or a holder that changed do no harm and say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from lockapp.core.values import ForceOutcome
from lockapp.dashboard.snapshot import Holder, LiveLock, one_lock, printable
from lockapp.dashboard.views import MAY_ASK, MAY_RELEASE, VIEW, engine_of, require, respond
from lockapp.exceptions import EngineError
from lockapp.models import LiveLock as LiveLockModel
from lockapp.naming import name_digest, readable

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

    from lockapp.engines.base import Engine

logger = logging.getLogger("lockapp")


@dataclass(frozen=True)
class Ending:
    """One way to end a lease: who may, what it does, and how it is put."""

    page: str  # of its template and its address
    permission: str
    act: Callable[..., ForceOutcome]  # (engine, name, fence, actor=, reason=)
    done: ForceOutcome
    title: str | Promise
    told: str | Promise  # to the operator, with name and fence
    nothing: str | Promise  # the same when somebody else holds it by now
    noted: str | Promise  # in the admin's history, with fence and reason


ASK = Ending(
    page="revoke",
    permission=MAY_ASK,
    act=lambda engine, *which, **said: engine.revoke(*which, **said),
    done=ForceOutcome.ASKED,
    title=_("Ask the holder of this lock to let go?"),
    told=_(
        "The holder of %(name)s with fence %(fence)d was asked to let go. It keeps the lock until "
        "it does."
    ),
    nothing=_("%(name)s is no longer held with fence %(fence)d: nobody was asked."),
    noted=_("Asked to let go (fence %(fence)d): %(reason)s"),
)
TAKE = Ending(
    page="release",
    permission=MAY_RELEASE,
    act=lambda engine, *which, **said: engine.force_release(*which, **said),
    done=ForceOutcome.RELEASED,
    title=_("Take this lock away from its holder?"),
    told=_("%(name)s was taken away from the holder with fence %(fence)d."),
    nothing=_("%(name)s is no longer held with fence %(fence)d: nothing was done."),
    noted=_("Taken away (fence %(fence)d): %(reason)s"),
)


class EndingForm(forms.Form):
    """What both need: which lease, by the fence that was shown, and why."""

    using = forms.CharField(max_length=100, widget=forms.HiddenInput)
    name = forms.CharField(max_length=1000, widget=forms.HiddenInput, strip=False)
    fence = forms.IntegerField(min_value=0, max_value=2**63 - 1, widget=forms.HiddenInput)
    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text=_("Stored in the audit log and told to the holder."),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def end(request: HttpRequest, site: AdminSite, ending: Ending) -> HttpResponse:
    """Show whose lease it is and ask for a reason (GET), or do it (POST)."""
    require(request, VIEW, ending.permission)
    posted = request.method == "POST"
    form = EndingForm(request.POST if posted else None, initial=request.GET.dict())
    shown = EndingForm({**(request.POST if posted else request.GET).dict(), "reason": "-"})
    if not shown.is_valid():
        raise Http404(gettext("Choose a lock on the page of live locks."))
    engine = engine_of(shown.cleaned_data["using"])
    name, fence = shown.cleaned_data["name"], shown.cleaned_data["fence"]
    context: dict[str, Any] = {
        "title": ending.title,
        "form": form,
        "using": engine.alias,
        "name": name,
        "readable": printable(readable(name)),
        "fence": fence,
        "can_ask": request.user.has_perm(ASK.permission),
        "can_release": request.user.has_perm(TAKE.permission),
    }
    try:
        if posted and form.is_valid():
            return _carry_out(request, ending, engine, name, fence, form.cleaned_data["reason"])
        lock = one_lock(engine, name)
        holder = _holder_of(lock, fence)
        if lock is None or holder is None:
            changed = ForceOutcome.CHANGED if lock else ForceOutcome.NOT_HELD
            return _tell(request, ending, engine, name, fence, changed)
        context |= {"lock": lock, "holder": holder, "others": len(lock.holders) - 1}
    except EngineError as error:
        context["unavailable"] = str(error)
    return respond(request, site, ending.page, context)


def _carry_out(
    request: HttpRequest, ending: Ending, engine: Engine, name: str, fence: int, reason: str
) -> HttpResponse:
    actor = request.user.get_username()
    outcome = ending.act(engine, name, fence, actor=actor, reason=reason)
    if outcome is ending.done:
        logger.warning(
            "%s: %s (fence %d) by %s: %s", ending.page, readable(name), fence, actor, reason
        )
        _log(request, ending, name, fence, reason)
    return _tell(request, ending, engine, name, fence, outcome)


def _log(request: HttpRequest, ending: Ending, name: str, fence: int, reason: str) -> None:
    """Add it to the admin's own history too. The engine's event is the record that counts."""
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            LogEntry.objects.create(
                user_id=str(request.user.pk),
                content_type=ContentType.objects.get_for_model(
                    LiveLockModel, for_concrete_model=False
                ),
                object_id=name_digest(name),
                object_repr=printable(readable(name))[:200],
                action_flag=CHANGE,
                change_message=str(ending.noted) % {"fence": fence, "reason": reason},
            )
    except DatabaseError:
        logger.exception("%s of %s is not in the admin's history", ending.page, readable(name))


def _tell(
    request: HttpRequest,
    ending: Ending,
    engine: Engine,
    name: str,
    fence: int,
    outcome: ForceOutcome,
) -> HttpResponse:
    """Say what became of it: on the lock's page while it is held, else on that of all locks."""
    level: int
    text: str | Promise
    if outcome is ending.done:
        level, text = messages.SUCCESS, ending.told
    elif outcome is ForceOutcome.NOT_HELD:
        level, text = messages.INFO, _("Nobody holds %(name)s any more: nothing was done.")
    else:
        level, text = messages.WARNING, ending.nothing
    messages.add_message(
        request, level, str(text) % {"name": printable(readable(name)), "fence": fence}
    )
    query = {"using": engine.alias}
    if outcome is ForceOutcome.ASKED:
        query["name"] = name
    return HttpResponseRedirect(
        f"{reverse('admin:lockapp_livelock_changelist')}?{urlencode(query)}"
    )


def _holder_of(lock: LiveLock | None, fence: int) -> Holder | None:
    return next((each for each in lock.holders if each.fence == fence), None) if lock else None
