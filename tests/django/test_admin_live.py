"""The page of live locks and the release by an operator, on a real server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from lockapp.audit.collector import collect
from lockapp.context import holder_details
from lockapp.exceptions import LeaseLost
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.models import LockEvent
from lockapp.naming import lock_name
from tests.servers import RedisServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def engine(redis_locks: Any) -> Any:
    """The engine that the pages ask."""
    return redis_locks["default"]


def visitor(*permissions: str, name: str = "ann") -> Client:
    """Log in a member of staff who may do no more than this."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def viewer() -> Client:
    """May look."""
    return visitor("view_lockevent", name="viewer")


@pytest.fixture
def operator() -> Client:
    """May look and release."""
    return visitor("view_lockevent", "force_release_lock", name="operator")


@pytest.fixture
def held(engine: Any) -> Iterator[Lease]:
    """A lock that somebody holds."""
    with holder_details(task="shop.report", task_id="t-77", user="carol", path="/reports/"):
        lease = Lock(engine, "order:42", wait=0, why="month's end").acquire()
    yield lease
    with contextlib.suppress(LeaseLost):
        lease.release()


def live() -> str:
    return reverse("admin:lockapp_livelock_changelist")


def release() -> str:
    return reverse("admin:lockapp_livelock_release")


def form(lease: Lease, **changed: Any) -> dict[str, Any]:
    fields = {"using": "default", "name": lease.name, "fence": lease.fence, "reason": "stuck"}
    return fields | changed


def told(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


# ------------------------------------------------------------------ the page


def test_the_page_says_who_holds_what(viewer: Client, held: Lease) -> None:
    """Lock, family, task, user, process, fence, time left as a bar."""
    answer = viewer.get(live())
    assert answer.status_code == 200
    page = answer.content.decode()
    for text in ("order:42", "shop.report", "t-77", "carol", "/reports/", str(held.fence)):
        assert text in page
    assert escape("month's end") in page
    assert re.search(r'<progress max="100" value="\d+"\s+aria-label="Time left of order:42"', page)
    assert page.count('scope="col"') >= 6
    assert "1 live lock" in page


def test_an_empty_page_says_so(viewer: Client, engine: Any) -> None:
    """And is no error."""
    assert "No lock is held." in viewer.get(live()).content.decode()


def test_it_stands_in_the_index_and_beside_the_events(viewer: Client, engine: Any) -> None:
    """Where somebody at 3 a.m. looks first."""
    for page in (reverse("admin:index"), reverse("admin:lockapp_lockevent_changelist")):
        assert f'href="{live()}"' in viewer.get(page).content.decode()


def test_locks_of_one_process_say_so(settings: Any, viewer: Client, redis_locks: Any) -> None:
    """The page of an engine in memory can't show what other processes hold."""
    warning = "This engine keeps locks within one process."
    assert warning not in viewer.get(live()).content.decode()
    settings.LOCKAPP = {"default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"}}
    assert warning in viewer.get(live()).content.decode()


def test_pages_are_bounded(viewer: Client, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many locks there are; beyond the end is the last page."""
    monkeypatch.setattr("lockapp.dashboard.views.live_page.__defaults__", (1, 2))
    leases = [Lock(engine, f"order:{number}", wait=0).acquire() for number in range(5)]
    seen = set()
    for number in ("1", "2", "3"):
        page = viewer.get(live(), {"page": number}).context["page"]
        assert (page.total, page.pages) == (5, 3)
        seen |= {lock.name for lock in page.locks}
    assert seen == {lease.name for lease in leases}
    for odd in ("99", "0", "-1", "x", "٣"):
        assert viewer.get(live(), {"page": odd}).status_code == 200
    for lease in leases:
        lease.release()


def test_one_lock_is_found_by_its_name_also_as_people_write_it(viewer: Client, engine: Any) -> None:
    """Stored encoded, typed in Chinese."""
    lease = Lock(engine, lock_name("订单", 7), wait=0).acquire()
    for name in (lease.name, "订单:7"):
        page = viewer.get(live(), {"name": name}).content.decode()
        assert "<h1>订单:7</h1>" in page
        assert "Nobody waits." in page
    assert "Nobody holds" in viewer.get(live(), {"name": "order:7"}).content.decode()
    lease.release()


def test_what_a_holder_says_of_itself_is_only_text(viewer: Client, engine: Any) -> None:
    """A path comes from whoever asks."""
    with holder_details(path="/<script>alert(1)</script>\u202e", user="a\nb"):
        lease = Lock(engine, "x", wait=0).acquire()
    page = viewer.get(live()).content.decode()
    assert "<script>alert" not in page
    assert r"\u202e" in page
    assert r"a\nb" in page
    lease.release()


def test_each_engine_has_its_page(
    settings: Any, viewer: Client, held: Lease, prefix: str, redis_url: str
) -> None:
    """Chosen by its alias; another name is not found."""
    first = settings.LOCKAPP["default"]
    settings.LOCKAPP = {"default": first, "other": first | {"OPTIONS": {"prefix": f"{prefix}b"}}}
    assert "order:42" in viewer.get(live()).content.decode()
    other = viewer.get(live(), {"using": "other"}).content.decode()
    assert "No lock is held." in other
    assert 'aria-current="page">other' in other
    assert viewer.get(live(), {"using": "nothing"}).status_code == 404


@pytest.mark.parametrize("address", [live, release])
def test_an_engine_that_does_not_answer_is_said_with_503(
    settings: Any, operator: Client, fresh_redis: RedisServer, prefix: str, address: Any
) -> None:
    """Never "no lock is held"."""
    from lockapp.handler import locks

    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": fresh_redis.url,
            "OPTIONS": {"prefix": prefix},
        }
    }
    fresh_redis.kill()
    asked = {"using": "default", "name": "order:42", "fence": 7}
    for answer in (operator.get(address(), asked), operator.get(live(), {"name": "x"})):
        assert answer.status_code == 503
        page = answer.content.decode()
        assert "does not answer" in page
        assert "No lock is held" not in page
    answer = operator.post(release(), asked | {"reason": "stuck"})
    assert answer.status_code == 503
    assert "Trying again is safe" in answer.content.decode()
    assert 'value="7"' in answer.content.decode()
    locks.close_all()


def test_it_speaks_chinese(viewer: Client, held: Lease) -> None:
    """To who prefers it."""
    page = viewer.get(live(), headers={"accept-language": "zh-hans"}).content.decode()
    for text in ("当前持有的锁", "持有者", "剩余时间"):
        assert text in page


# ------------------------------------------------------------------ who may


def test_who_may_not_look_sees_nothing(engine: Any) -> None:
    """Staff without the permission, and those not logged in."""
    nobody = visitor("add_user")
    assert nobody.get(live()).status_code == 403
    assert live() not in nobody.get(reverse("admin:index")).content.decode()
    assert Client().get(live()).status_code == 302


def test_who_may_look_may_not_release(viewer: Client, held: Lease) -> None:
    """The link isn't shown, and the address is refused."""
    assert release() not in viewer.get(live()).content.decode()
    assert viewer.get(release(), form(held)).status_code == 403
    assert viewer.post(release(), form(held)).status_code == 403
    assert not held.lost


def test_a_release_needs_the_csrf_token(operator: Client, held: Lease, engine: Any) -> None:
    """A foreign page can't make an operator's browser do it."""
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(release(), form(held)).status_code == 403
    assert engine.show("order:42") is not None


# ------------------------------------------------------------------ the release


def test_looking_at_the_confirmation_changes_nothing(
    operator: Client, held: Lease, engine: Any
) -> None:
    """It shows the holder that would lose the lock, and the fence that was shown."""
    link = f"{release()}?using=default&amp;name=order%3A42&amp;fence={held.fence}"
    assert link in operator.get(live()).content.decode()
    answer = operator.get(release(), form(held))
    page = answer.content.decode()
    assert answer.status_code == 200
    for text in ("order:42", str(held.fence), "shop.report", "carol"):
        assert text in page
    assert engine.show("order:42").holders[0].fence == held.fence


@pytest.mark.keeps_keys  # the tombstone by which the holder learns who took its lock
def test_a_release_takes_the_lock_away_and_is_audited(
    operator: Client, held: Lease, engine: Any
) -> None:
    """Who did it and why stands in the audit log, and in the admin's own history."""
    answer = operator.post(release(), form(held), follow=True)
    assert answer.redirect_chain[0][1] == 302
    assert told(answer) == [f"order:42 was taken away from the holder with fence {held.fence}."]
    assert engine.show("order:42") is None
    collect(engine)
    event = LockEvent.objects.get(kind=LockEvent.Kind.FORCED)
    assert (event.actor, event.reason, event.fence) == ("operator", "stuck", held.fence)
    assert (event.task, event.user) == ("shop.report", "carol")
    entry = LogEntry.objects.get()
    assert entry.object_repr == "order:42"
    assert "stuck" in entry.get_change_message()
    assert entry.get_admin_url() is None or "livelock" in str(entry.get_admin_url())


def test_an_old_page_does_not_free_the_next_holder(
    operator: Client, held: Lease, engine: Any
) -> None:
    """The lock changed hands since it was shown."""
    shown = form(held)
    held.release()
    following = Lock(engine, "order:42", wait=0).acquire()
    for ask in (operator.post, operator.get):
        answer = ask(release(), shown, follow=True)
        assert told(answer) == [
            f"order:42 is no longer held with fence {shown['fence']}: nothing was done."
        ]
    assert engine.show("order:42").holders[0].fence == following.fence
    assert not LogEntry.objects.exists()
    following.check()
    following.release()


@pytest.mark.keeps_keys  # the tombstone by which the holder learns who took its lock
def test_a_second_click_does_nothing(operator: Client, held: Lease, engine: Any) -> None:
    """And says so."""
    operator.post(release(), form(held), follow=True)
    answer = operator.post(release(), form(held), follow=True)
    assert told(answer) == ["Nobody holds order:42 any more: nothing was done."]
    collect(engine)
    assert LockEvent.objects.filter(kind=LockEvent.Kind.FORCED).count() == 1


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501])
def test_a_reason_is_required(operator: Client, held: Lease, engine: Any, reason: str) -> None:
    """The form comes back, the lock stays."""
    answer = operator.post(release(), form(held, reason=reason))
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert engine.show("order:42").holders[0].fence == held.fence


@pytest.mark.parametrize(
    "odd",
    [
        {"fence": ""},
        {"fence": "x"},
        {"fence": "-1"},
        {"name": ""},
        {"using": "nothing"},
        {"fence": 2**70},
    ],
)
def test_a_mangled_form_is_not_found(operator: Client, held: Lease, odd: dict[str, Any]) -> None:
    """Never a guess at what was meant."""
    assert operator.post(release(), form(held, **odd)).status_code == 404
    assert operator.get(release(), form(held, **odd)).status_code == 404
    assert not held.lost


def test_other_methods_are_refused(operator: Client, held: Lease) -> None:
    """A release is a POST."""
    assert operator.put(release()).status_code == 405
    assert operator.delete(release()).status_code == 405
    assert operator.post(live()).status_code == 405


@pytest.mark.keeps_keys  # the tombstone by which the holder learns who took its lock
def test_a_failing_database_does_not_hide_a_release(
    operator: Client, held: Lease, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free, and the page says so."""

    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseError("disk full")

    monkeypatch.setattr("django.contrib.admin.models.LogEntry.save", fail)
    answer = operator.post(release(), form(held), follow=True)
    assert "was taken away" in told(answer)[0]
    assert engine.show("order:42") is None
