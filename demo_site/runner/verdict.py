"""Runs the races one after another and says what each figure should have been."""

from demo_site.runner import doors, reports, trail
from demo_site.runner.admin_pages import AdminPages
from demo_site.runner.doors import DoorResult
from demo_site.runner.figures import Figure, exactly, more_than
from demo_site.runner.reports import ReportsResult
from demo_site.runner.screen import Screen
from demo_site.runner.site import WEB_PROCESSES, Site
from demo_site.runner.trail import Trail
from demo_site.shop.management.commands.seed_shop import SCARCE_LOCKED, SCARCE_UNLOCKED
from demo_site.shop.models import Product
from demo_site.shop.tasks import REPORTS_AT_ONCE, nightly_report

# Families, as the audit log knows them: the first part of a lock's name.
PRODUCT_LOCKS = "product"
REPORT_LOCK = str(nightly_report.name)


def race_and_judge(
    site: Site, screen: Screen, buyers: int, stock: int, password: str
) -> list[Figure]:
    """Run everything once and return the figures in the order they are to be read."""
    unlocked_print = Product.objects.get(name=SCARCE_UNLOCKED)
    locked_print = Product.objects.get(name=SCARCE_LOCKED)
    before = {family: trail.trail_of(family) for family in (PRODUCT_LOCKS, REPORT_LOCK)}
    with screen.step(f"{buyers} buyers race for {stock} pieces without a lock") as progress:
        unlocked = doors.race(
            site.url, "/orders/unlocked/", unlocked_print, buyers, WEB_PROCESSES, progress
        )
    with screen.step(f"{buyers} buyers race for {stock} pieces with the lock") as progress:
        locked = doors.race(site.url, "/orders/", locked_print, buyers, WEB_PROCESSES, progress)
    with (
        AdminPages(site.url, password) as admin,
        screen.step(f"{REPORTS_AT_ONCE} nightly reports are sent at once") as progress,
    ):
        copies = reports.send_at_once(admin, progress)
    screen.remark(f"A skipped copy returned {copies.example or 'nothing'}")
    with screen.step("Waiting until the lock events are in the audit log"):
        trails = trail.wait_for_releases(
            site, before, {PRODUCT_LOCKS: buyers, REPORT_LOCK: copies.bodies}
        )
        with AdminPages(site.url, password) as admin:
            shown = sum(admin.shows_events(family) for family in trails)
    return [
        *judge_unlocked(unlocked, stock),
        *judge_locked(locked, stock),
        *judge_reports(copies),
        *judge_trail(trails, shown, buyers),
    ]


def judge_unlocked(result: DoorResult, stock: int) -> list[Figure]:
    """Without a lock more is sold than exists; if not, the race shows nothing, and says so."""
    group = f"POST /orders/unlocked/ ({result.buyers} buyers, stock {stock})"
    return [
        more_than(group, "orders (oversold)", stock, result.orders),
        exactly(group, "buyers told that they have ordered", result.orders, result.ordered),
        *_common(group, result),
    ]


def judge_locked(result: DoorResult, stock: int) -> list[Figure]:
    """With the lock exactly what exists is sold, and everybody else is told so."""
    group = f"POST /orders/ ({result.buyers} buyers, stock {stock})"
    return [
        exactly(group, "orders", stock, result.orders),
        exactly(group, "stock left", 0, result.stock),
        exactly(group, "buyers told that it is sold out", result.buyers - stock, result.sold_out),
        *_common(group, result),
    ]


def _common(group: str, result: DoorResult) -> list[Figure]:
    return [
        exactly(group, "other answers than ordered or sold out", 0, sum(result.others.values())),
        exactly(group, "web processes that took part", WEB_PROCESSES, result.web_processes),
    ]


def judge_reports(result: ReportsResult) -> list[Figure]:
    """One body ran, the other copies say that they were skipped."""
    group = f"nightly_report ({result.sent} sent at once)"
    return [
        exactly(group, "bodies that ran", 1, result.bodies),
        exactly(group, "copies that say they were skipped", result.sent - 1, result.skipped),
        exactly(group, "skipped copies listed in the admin", result.sent - 1, result.recorded),
        exactly(group, "lock seen live in the admin meanwhile", 1, result.seen_live),
        exactly(group, "copies that failed", 0, result.failed),
    ]


def judge_trail(trails: dict[str, Trail], shown: int, buyers: int) -> list[Figure]:
    """Every grant is in the audit log with its end, and the admin shows it."""
    group = "Audit log"
    return [
        exactly(group, "product locks acquired", buyers, trails[PRODUCT_LOCKS].acquired),
        exactly(group, "product locks released", buyers, trails[PRODUCT_LOCKS].released),
        exactly(group, "report locks acquired", 1, trails[REPORT_LOCK].acquired),
        exactly(group, "report locks released", 1, trails[REPORT_LOCK].released),
        exactly(group, "families listed in the admin", len(trails), shown),
    ]
