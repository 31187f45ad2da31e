"""Ten nightly reports sent at once: how many bodies ran, and what the other copies said."""

import time
from dataclasses import dataclass

from celery.exceptions import CeleryError
from celery.result import AsyncResult

from demo_site.runner.admin_pages import AdminPages
from demo_site.runner.screen import Update
from demo_site.shop.models import Report, SkippedCopy
from demo_site.shop.tasks import REPORTS_AT_ONCE, nightly_report
from lockapp.celery import Skipped, was_skipped

TIMEOUT_S = 60.0
RECORD_LIMIT_S = 10.0
POLL_S = 0.05


@dataclass(frozen=True)
class ReportsResult:
    """What became of the copies."""

    sent: int
    bodies: int  # rows in the database: a body that ran wrote one
    skipped: int  # results that say so
    recorded: int  # rows about skipped copies, as the admin lists them
    failed: int
    seen_live: int  # 1 if the admin showed the lock while the body ran
    example: str  # what one of the skipped copies returned


def send_at_once(admin: AdminPages, progress: Update) -> ReportsResult:
    """Send the copies in one go, look at the live locks meanwhile, and wait for each result."""
    reports, records = Report.objects.count(), SkippedCopy.objects.count()
    copies = [nightly_report.delay() for _ in range(REPORTS_AT_ONCE)]
    seen_live = _seen_before_the_end(admin, copies)
    skipped: list[Skipped] = []
    failed = 0
    for number, copy in enumerate(copies, start=1):
        try:
            result = copy.get(timeout=TIMEOUT_S)
        except CeleryError:
            failed += 1
        else:
            if was_skipped(result):
                skipped.append(result)
        progress(f"{number} of {len(copies)} ended")
    return ReportsResult(
        sent=len(copies),
        bodies=Report.objects.count() - reports,
        skipped=len(skipped),
        recorded=_count_until(records + len(skipped)) - records,
        failed=failed,
        seen_live=seen_live,
        example=str(skipped[0]) if skipped else "",
    )


def _seen_before_the_end(admin: AdminPages, copies: list[AsyncResult]) -> int:
    while not all(copy.ready() for copy in copies):
        if admin.shows_live(nightly_report.name):
            return 1
        time.sleep(POLL_S)
    return 0


def _count_until(expected: int) -> int:
    """Count the recorded copies; Celery hands out a result a moment before it tells of it."""
    end = time.monotonic() + RECORD_LIMIT_S
    while (count := SkippedCopy.objects.count()) < expected and time.monotonic() < end:
        time.sleep(POLL_S)
    return count
