"""The page of statistics: how long locks are waited for and held. It changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from lockapp.audit.statistics import FACTOR, FAMILIES, LEAST_S, MOST_S, SAMPLE, statistics
from lockapp.dashboard.chart import chart_of
from lockapp.dashboard.views import require
from lockapp.models import LockHold

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

VIEW = "lockapp.view_lockhold"
PERIODS = {
    "1": gettext_lazy("one day"),
    "7": gettext_lazy("seven days"),
    "30": gettext_lazy("thirty days"),
}
"""Days that may be looked back."""
USUAL = "7"


@require_safe
def figures(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """Show what the stored holds of some days say, family by family."""
    require(request, VIEW)
    days = request.GET.get("days", USUAL)
    if days not in PERIODS:
        days = USUAL
    rows = statistics(timezone.now() - timedelta(days=int(days)))
    request.current_app = site.name
    return TemplateResponse(
        request,
        "admin/lockapp/lockhold/statistics.html",
        {
            **site.each_context(request),
            "opts": LockHold._meta,
            "title": gettext("Lock statistics"),
            "periods": PERIODS.items(),
            "days": days,
            "rows": rows,
            "full": len(rows) == FAMILIES,
            "families": FAMILIES,
            "sample": SAMPLE,
            "factor": FACTOR,
            "least_s": LEAST_S,
            "most_s": MOST_S,
            "chart": chart_of(rows),
        },
    )
