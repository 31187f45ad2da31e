"""The nightly report: beat sends it at three, somebody impatient ten times; one body runs."""

import time
from decimal import Decimal
from typing import Any

from celery import Task, shared_task
from celery.signals import task_success
from django.db.models import Count, Sum
from django.utils import timezone

from demo_site.shop.models import Order, Report, SkippedCopy
from lockapp.celery import single_instance, was_skipped

REPORTS_AT_ONCE = 10
REPORT_S = 2.0


@shared_task(bind=True, name="shop.nightly_report")
@single_instance(on_contention="skip")
def nightly_report(self: Task) -> int:
    """Add up all orders and return the number of the new report.

    While it runs, every further copy returns at once with a value that says it was skipped.
    """
    started_at = timezone.now()
    totals = Order.objects.aggregate(orders=Count("pk"), revenue=Sum("price"))
    time.sleep(REPORT_S)  # a real shop has more orders to add up
    report = Report.objects.create(
        orders=totals["orders"],
        revenue=totals["revenue"] or Decimal(0),
        task_id=self.request.id,
        started_at=started_at,
    )
    return report.pk


@task_success.connect
def note_skipped_copy(sender: Task, result: object, **_: Any) -> None:
    """Keep what a skipped copy says where people look: on the home page and in the admin."""
    if was_skipped(result):
        holder = result["holder"] or {}
        SkippedCopy.objects.create(
            task=sender.name, task_id=sender.request.id, held_by=holder.get("task_id", "")
        )
