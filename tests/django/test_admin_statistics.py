"""The page of statistics: percentiles, losses, and the ttl that they speak for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from lockapp.audit import statistics as figures
from lockapp.audit.statistics import Advice, Spread, advise, statistics
from lockapp.dashboard.chart import LEFT, RIGHT, WIDTH, chart_of
from lockapp.models import LockHold
from lockapp.naming import name_digest

pytestmark = pytest.mark.django_db
PAGE = "admin:lockapp_lockhold_statistics"


def store(family: str, held_ms: list[int], ended: str = "released", **more: Any) -> None:
    """Store holds of one family, a second apart, the newest first."""
    now = timezone.now()
    LockHold.objects.bulk_create(
        LockHold(
            kind="mutex",
            alias="default",
            name=f"{family}:{number}",
            name_digest=name_digest(f"{family}:{number}"),
            family=family,
            fence=number,
            granted_at=now - timedelta(seconds=number),
            held_ms=ms,
            ended=ended,
            **{"waited_ms": 0, "ttl_ms": 30_000, **more},
        )
        for number, ms in enumerate(held_ms)
    )


def week() -> list[figures.FamilyStatistics]:
    return statistics(timezone.now() - timedelta(days=7))


@pytest.fixture
def viewer() -> Client:
    """Somebody who may look at holds, and nothing else."""
    user = User.objects.create_user("vera", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_lockhold"))
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    ("ms", "spread"),
    [
        ([], None),
        ([7], Spread(0.007, 0.007, 0.007)),
        (list(range(1, 101)), Spread(0.050, 0.095, 0.099)),
        ([3000, 1000, 2000], Spread(2.0, 3.0, 3.0)),
    ],
)
def test_percentiles_are_values_that_occurred(ms: list[int], spread: Spread | None) -> None:
    """By nearest rank, also of few."""
    assert Spread.of(ms) == spread


@pytest.mark.parametrize(
    ("p99", "advice"),
    [
        (0.2, Advice(5.0, "least", 30.0)),
        (7.1, Advice(11.0, "", 30.0)),
        (40.0, Advice(60.0, "", 30.0)),
        (3600.0, Advice(60.0, "most", 30.0)),
    ],
)
def test_the_ttl_covers_nearly_all_holds_within_bounds(p99: float, advice: Advice) -> None:
    """Whole seconds, rounded up."""
    assert advise(Spread(0.1, 0.1, p99), 30.0) == advice
    assert advise(None, 30.0) is None


def test_each_family_is_told_from_the_others() -> None:
    """Waits, losses, the ttl in use."""
    store("order", [10, 20, 30, 40])
    store("report", [60_000], ended="expired", waited_ms=1500, ttl_ms=20_000)
    order, report = week()
    assert (order.family, order.holds, order.lost, order.waited) == ("order", 4, 0, 0.0)
    assert order.hold == Spread(0.020, 0.040, 0.040)
    assert order.advice == Advice(5.0, "least", 30.0)
    assert (report.family, report.lost, report.waited) == ("report", 1, 1.0)
    assert report.wait == Spread(1.5, 1.5, 1.5)
    assert report.advice == Advice(60.0, "most", 20.0)


def test_what_is_held_still_counts_and_what_is_old_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor what lies beyond the sample."""
    monkeypatch.setattr(figures, "SAMPLE", 3)
    store("order", [1000, 1000, 1000, 9000])
    LockHold.objects.filter(fence=0).update(held_ms=None, ended="")
    (order,) = week()
    assert (order.holds, order.capped) == (3, True)
    assert order.hold == Spread(1.0, 1.0, 1.0)
    LockHold.objects.update(granted_at=timezone.now() - timedelta(days=8))
    assert week() == []


def test_the_page_shows_a_chart_and_the_table_behind_it(viewer: Client) -> None:
    """Without a script, and with names that can't become markup."""
    store("order", [20, 40, 5000])
    store("<script>x</script>", [100])
    answer = viewer.get(reverse(PAGE), {"days": "30"})
    page = answer.content.decode()
    for text in ("40 ms", "5.0 s", "Advised ttl", "now 30 s", "<svg", 'role="img"'):
        assert text in page
    assert "<script>x" not in page
    assert 'href="?days=30" aria-current="page"' in page
    assert (
        reverse(PAGE) in viewer.get(reverse("admin:lockapp_lockhold_changelist")).content.decode()
    )


def test_an_empty_page_says_why(viewer: Client) -> None:
    """An odd period is the usual one."""
    for days in ("7", "x", "-1", "٧"):
        answer = viewer.get(reverse(PAGE), {"days": days})
        assert answer.status_code == 200
        assert "does its collector run?" in answer.content.decode()


def test_who_may_not_see_holds_sees_no_statistics() -> None:
    """Nor can anybody change something by the page."""
    client = Client()
    client.force_login(User.objects.create_user("eve", is_staff=True))
    assert client.get(reverse(PAGE)).status_code == 403
    client.force_login(User.objects.create_superuser("boss"))
    assert client.post(reverse(PAGE)).status_code == 405


def test_the_page_costs_two_queries_a_family_however_many_holds(viewer: Client) -> None:
    """One finds the next family, one its newest holds."""
    costs = []
    for holds in (2, 50):
        for number in range(4):
            store(f"family{holds}{number}", [10] * holds)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert len(week()) == (4 if holds == 2 else 8)
        costs.append(len(captured))
    assert costs == [2 * 4 + 1, 2 * 8 + 1]


def test_bars_stand_on_a_logarithmic_scale() -> None:
    """From the fastest median to the slowest p99, and never outside the drawing."""
    store("fast", [1])
    store("slow", [90_000, 3_000_000])
    chart = chart_of(week())
    assert chart is not None
    for bar in chart.bars:
        assert LEFT <= bar.x <= bar.p95 <= bar.x + bar.width + 0.1 <= WIDTH - RIGHT + 2.1
    assert [tick.seconds for tick in chart.ticks] == [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600]
    assert chart_of([]) is None
