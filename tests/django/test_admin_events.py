"""The list of lock events in the admin: to be read, never written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from lockapp.models import LockEvent
from lockapp.naming import family_of, lock_name, name_digest

pytestmark = pytest.mark.django_db
LIST = "admin:lockapp_lockevent_changelist"


@pytest.fixture
def boss() -> Client:
    """A superuser: nobody may do more."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def stored(name: str, kind: str = "acquired", **more: Any) -> LockEvent:
    return LockEvent.objects.create(
        **{
            "identity": name_digest(f"{name} {kind} {more}"),
            "alias": "default",
            "name": name,
            "name_digest": name_digest(name),
            "family": family_of(name),
            "kind": kind,
            "fence": 1_700_000_000_000_000,
            "at": datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC),
            **more,
        }
    )


def names(answer: Any) -> set[str]:
    return {row.readable_name for row in answer.context["cl"].result_list}


def test_the_list_says_what_happened_to_which_lock(boss: Client) -> None:
    """Readable names, times to the millisecond, who it was and what else is known."""
    who = {"host": "web1", "pid": "77", "task": "shop.report", "user": "carol"}
    stored(lock_name("订单", 7), detail={"waited_ms": 1500, "ttl_ms": 30000}, **who)
    stored("order:1", "forced", actor="bob", reason="stuck", detail={"held_ms": 125_000})
    stored("order:3", "revoked", actor="zoë", reason="deploy", detail={"held_ms": 9_000})
    stored("", "gap", fence=None, detail={"missing": 3, "why": "jump"})
    stored("", "gap", fence=None, detail={"missing": None, "why": "server"})
    stored("", "gap", fence=None, detail={"missing": None, "why": "ended"})
    stored("kb:1", "downgraded", detail={"held_ms": 7_000, "weight": "1"})
    page = boss.get(reverse(LIST)).content.decode()
    for text in (
        "订单:7", "2026-03-01 12:30:15.123", "1700000000000000", "shop.report, carol, web1:77",
        "waited 1.5 s", "held 2 min 5 s", "by bob", "“stuck”",
        ">asked to let go<", "held 9.0 s, by zoë, “deploy”", "3 events are missing",
        "events may be missing", ">downgraded<", "held 7.0 s",
    ):  # fmt: skip
        assert text in page


def test_it_is_searched_by_what_people_read(boss: Client) -> None:
    """And by task, user and host."""
    stored(lock_name("订单", 7), task="shop.report")
    stored("order:7", user="carol", host="web1")
    for text, found in {
        "订单": {"订单:7"}, "order": {"order:7"}, "order:7": {"order:7"}, "carol": {"order:7"},
        "shop.rep": {"订单:7"}, "nothing": set(), "7": {"订单:7", "order:7"},
    }.items():  # fmt: skip
        assert names(boss.get(reverse(LIST), {"q": text})) == found


def test_it_is_filtered_by_event_and_family(boss: Client) -> None:
    """The bounded columns."""
    stored("order:1", "expired")
    stored("report:1", "released")
    assert names(boss.get(reverse(LIST), {"kind__exact": "expired"})) == {"order:1"}
    assert names(boss.get(reverse(LIST), {"family": "report"})) == {"report:1"}


def test_nobody_adds_changes_or_deletes(boss: Client) -> None:
    """Not even a superuser."""
    row = stored("order:1")
    change = reverse("admin:lockapp_lockevent_change", args=[row.pk])
    assert boss.get(change).status_code == 200
    assert boss.post(change, {"reason": "x"}).status_code == 403
    assert boss.post(reverse("admin:lockapp_lockevent_add")).status_code == 403
    delete = reverse("admin:lockapp_lockevent_delete", args=[row.pk])
    assert boss.post(delete, {"post": "yes"}).status_code == 403
    action = {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    boss.post(reverse(LIST), action)
    assert LockEvent.objects.get().reason == ""


def test_a_row_leads_to_the_lock_as_it_is_now(boss: Client) -> None:
    """And to the other events of that lock."""
    row = stored(lock_name("订单", 7), detail={"description": {"host": "web1"}})
    page = boss.get(reverse("admin:lockapp_lockevent_change", args=[row.pk])).content.decode()
    live = reverse("admin:lockapp_livelock_changelist")
    assert f"{live}?using=default&amp;name=%25E8%25AE%25A2%25E5%258D%2595%3A7" in page


def test_text_in_a_row_is_only_text(boss: Client) -> None:
    """Names, paths and reasons come from elsewhere."""
    stored("x", "forced", path="<b>p</b>", reason="<script>1</script>\x1b[2J", actor="a\u202eb")
    page = boss.get(reverse(LIST)).content.decode()
    assert "<b>p</b>" not in page
    assert "<script>1" not in page
    assert r"\x1b[2J" in page


def test_a_site_without_time_zones_has_the_list_too(boss: Client, settings: Any) -> None:
    """Times are local and know no zone there."""
    settings.USE_TZ = False
    stored("order:1", at=datetime(2026, 3, 1, 20, 30, 15, 123456))
    assert "2026-03-01 20:30:15.123" in boss.get(reverse(LIST)).content.decode()


def test_many_rows_cost_few_queries(boss: Client, django_assert_max_num_queries: Any) -> None:
    """No query a row."""
    for number in range(30):
        stored(f"order:{number}")
    with django_assert_max_num_queries(12):
        boss.get(reverse(LIST))
