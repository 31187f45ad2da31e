"""The list of holds in the admin: who had which lock, and how that ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from lockapp.dashboard import long_lists
from lockapp.models import LockHold
from lockapp.naming import family_of, lock_name, name_digest

pytestmark = pytest.mark.django_db
LIST = "admin:lockapp_lockhold_changelist"
NOON = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
def boss() -> Client:
    """A superuser: nobody may do more."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def stored(name: str, fence: int = 1, **more: Any) -> LockHold:
    about = {"kind": "mutex", "alias": "default", "granted_at": NOON, **more}
    return LockHold.objects.create(
        name=name, name_digest=name_digest(name), family=family_of(name), fence=fence, **about
    )


def fences(client: Client, **query: str) -> list[int]:
    return [row.fence for row in client.get(reverse(LIST), query).context["cl"].result_list]


def test_the_list_tells_who_held_what_for_how_long_and_how_it_ended(boss: Client) -> None:
    """In people's words and units."""
    who = {"host": "web1", "pid": "77", "task": "shop.report", "user": "carol"}
    took = {"waited_ms": 1500, "held_ms": 125_000}
    end = {"ended": "forced", "ended_at": NOON, "actor": "bob", "reason": "stuck"}
    row = stored(lock_name("订单", 7), 1_700_000_000_000_000, **who, **took, **end)
    page = boss.get(reverse(LIST)).content.decode()
    for text in (
        "订单:7", "2026-03-01 12:30:15.123", "1700000000000000", "shop.report, carol, web1:77",
        "1.5 s", "2 min 5 s", "taken away, bob, stuck",
    ):  # fmt: skip
        assert text in page
    one = boss.get(reverse("admin:lockapp_lockhold_change", args=[row.pk])).content.decode()
    assert row.name in one
    assert 'name="_save"' not in one


def test_the_newest_comes_first_and_filters_narrow(boss: Client) -> None:
    """By end (or none), kind, family and engine."""
    stored("order:1", 1, ended="released", ended_at=NOON)
    stored("order:2", 2, granted_at=NOON + timedelta(seconds=1))
    stored("kb:1", 3, kind="read", alias="other", granted_at=NOON - timedelta(seconds=1))
    assert fences(boss) == [2, 1, 3]
    assert fences(boss, ended__exact="released") == [1]
    assert fences(boss, ended__exact="") == [2, 3]
    assert fences(boss, kind__exact="read") == [3]
    assert fences(boss, family="order") == [2, 1]
    assert fences(boss, alias="other") == [3]
    filters = boss.get(reverse(LIST)).context["cl"].filter_specs
    families, engines = ([str(it) for it, _ in each.lookup_choices] for each in filters[2:])
    assert (families, engines) == (["kb", "order"], ["default"])


def test_names_are_found_by_their_beginning(boss: Client) -> None:
    """As they are stored, or as people read them; case counts."""
    for number, name in enumerate([lock_name("订单", 7), "order:7", "order:70", "Order:7"], 1):
        stored(name, number)
    assert sorted(fences(boss, q="order:7")) == [2, 3]
    assert fences(boss, q=" order:70 ") == [3]
    assert fences(boss, q="订单") == fences(boss, q="订单:7") == [1]
    assert fences(boss, q=lock_name("订单")) == [1]
    assert fences(boss, q="rder") == []
    assert sorted(fences(boss, q="order:"))[:2] == [2, 3]
    assert fences(boss, q="订单:") == [1]
    assert fences(boss, q=":") == []
    assert len(fences(boss, q="  ")) == 4


def test_a_long_list_is_counted_and_paged_up_to_a_limit(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so; no query counts the whole table or looks for its distinct values."""
    monkeypatch.setattr(long_lists, "MOST_ROWS", 120)
    for number in range(125):
        stored("order:1", number)
    with CaptureQueriesContext(connection) as sent:
        answer = boss.get(reverse(LIST))
    assert answer.context["cl"].result_count == 120
    assert answer.context["cl"].paginator.num_pages == 2
    assert "Filters and the search lead to others" in answer.content.decode()
    asked = [each["sql"] for each in sent if "lockapp_lockhold" in each["sql"]]
    assert all("LIMIT" in sql for sql in asked), asked
    assert not any("DISTINCT" in sql for sql in asked)
    short = boss.get(reverse(LIST), {"q": "kb"})
    assert "lead to others" not in short.content.decode()


def test_a_filter_offers_so_many_values(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not offered can be asked for all the same."""
    monkeypatch.setattr(long_lists, "MOST_VALUES", 2)
    for number, name in enumerate("cabd"):
        stored(f"{name}:1", number)
    offered = boss.get(reverse(LIST)).context["cl"].filter_specs[2].lookup_choices
    assert [value for value, _ in offered] == ["a", "b"]
    assert fences(boss, family="d") == [3]


def test_holds_need_a_permission_of_their_own() -> None:
    """And nobody adds, changes or deletes one."""
    user = User.objects.create_user("ann", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get(reverse(LIST)).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_lockhold"))
    assert client.get(reverse(LIST)).status_code == 200
    assert client.get(reverse("admin:lockapp_lockhold_add")).status_code == 403
