"""The page on which an operator asks a holder to let go, and what is shown of that; real server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from lockapp.audit.collector import collect
from lockapp.exceptions import LeaseLost
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.models import LockEvent
from lockapp.primitives import Semaphore
from tests.servers import RedisServer

pytestmark = pytest.mark.django_db
LIVE, ASK, RELEASE = (
    f"admin:lockapp_livelock_{page}" for page in ("changelist", "revoke", "release")
)


@pytest.fixture
def engine(redis_locks: Any) -> Any:
    """The engine that the pages ask."""
    return redis_locks["default"]


@pytest.fixture
def held(engine: Any) -> Iterator[Lease]:
    """A lock that somebody holds."""
    lease = Lock(engine, "order:42", wait=0, why="month's end").acquire()
    yield lease
    with contextlib.suppress(LeaseLost):
        lease.release()


def visitor(*permissions: str) -> Client:
    """Log in a member of staff who may do no more than this."""
    user = User.objects.create_user("+".join(permissions) or "nobody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def asker() -> Client:
    """May look and ask, and not take away."""
    return visitor("view_lockevent", "revoke_lock")


@pytest.fixture
def boss() -> Client:
    """A superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def form(lease: Lease, **changed: Any) -> dict[str, Any]:
    fields = {"using": "default", "name": lease.name, "fence": lease.fence, "reason": "deploy"}
    return fields | changed


def told(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def words(answer: Any) -> str:
    """What a page says, without its markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


# ------------------------------------------------------------------ who may


def test_asking_has_a_permission_of_its_own(asker: Client, held: Lease) -> None:
    """Who may ask may not take away, and the other way round; links are shown to who may."""
    taker = visitor("view_lockevent", "force_release_lock")
    for client, may, may_not in ((asker, ASK, RELEASE), (taker, RELEASE, ASK)):
        page = client.get(reverse(LIVE)).content.decode()
        assert reverse(may) in page
        assert reverse(may_not) not in page
        assert client.get(reverse(may), form(held)).status_code == 200
        assert client.get(reverse(may_not), form(held)).status_code == 403
        assert client.post(reverse(may_not), form(held)).status_code == 403
    assert visitor("revoke_lock").post(reverse(ASK), form(held)).status_code == 403
    held.renew()
    assert not held.revoke_requested


def test_asking_needs_the_csrf_token_and_a_post(asker: Client, held: Lease) -> None:
    """Looking at the page asks nobody."""
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = asker.cookies
    assert strict.post(reverse(ASK), form(held)).status_code == 403
    assert asker.get(reverse(ASK), form(held)).status_code == 200
    assert asker.put(reverse(ASK)).status_code == 405
    held.renew()
    assert not held.revoke_requested


# ------------------------------------------------------------------ asking


def test_the_holder_is_asked_and_keeps_the_lock(asker: Client, held: Lease, engine: Any) -> None:
    """The message says so, on the lock's page, which says who asked, why, and that it knows."""
    answer = asker.post(reverse(ASK), form(held), follow=True)
    (message,) = told(answer)
    assert message.startswith(f"The holder of order:42 with fence {held.fence} was asked to let go")
    assert answer.redirect_chain == [
        (f"{reverse(LIVE)}?using=default&name=order%3A42", 302),
    ]
    held.renew()  # at the latest
    assert held.revoke_requested
    page = words(asker.get(reverse(LIVE), {"name": "order:42"}))
    assert re.search(r"asked to let go \d+ m?s ago by view_lockevent\+revoke_lock “deploy”", page)
    assert "renewed since: its process knows" in page
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == f"Asked to let go (fence {held.fence}): deploy"


def test_it_is_an_event_with_actor_and_reason(boss: Client, held: Lease, engine: Any) -> None:
    """In the log, in words, with whose lease it was."""
    boss.post(reverse(ASK), form(held, reason="deploy <b>now</b>"))
    collect(engine)
    event = LockEvent.objects.get(kind=LockEvent.Kind.REVOKED)
    assert (event.actor, event.reason, event.fence) == ("boss", "deploy <b>now</b>", held.fence)
    answer = boss.get(reverse("admin:lockapp_lockevent_changelist"))
    assert ">asked to let go<" in answer.content.decode()
    assert re.search(r"held [\d.]+ m?s, by boss, “deploy &lt;b&gt;now&lt;/b&gt;”", words(answer))
    change = reverse("admin:lockapp_lockevent_change", args=[event.pk])
    answer = boss.get(change)
    assert re.search(r"Operator .*By: boss Reason: deploy &lt;b&gt;now", words(answer))


def test_a_holder_that_is_not_heard_of_since_is_shown_so(boss: Client, engine: Any) -> None:
    """Nobody renews this lease."""
    held = Lock(engine, "order:42", wait=0, renew=False).acquire()
    boss.post(reverse(ASK), form(held))
    for page in (LIVE, RELEASE, ASK):
        assert "not heard of since" in words(boss.get(reverse(page), form(held)))
    held.release()


def test_an_old_page_asks_nobody(asker: Client, held: Lease, engine: Any) -> None:
    """The lock changed hands since it was shown."""
    shown = form(held)
    held.release()
    following = Lock(engine, "order:42", wait=0).acquire()
    for ask in (asker.post, asker.get):
        answer = ask(reverse(ASK), shown, follow=True)
        assert told(answer) == [
            f"order:42 is no longer held with fence {shown['fence']}: nobody was asked."
        ]
    following.renew()
    assert not following.revoke_requested
    assert not LogEntry.objects.exists()
    following.release()
    answer = asker.post(reverse(ASK), shown, follow=True)
    assert told(answer) == ["Nobody holds order:42 any more: nothing was done."]


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501])
def test_a_reason_is_required(asker: Client, held: Lease, reason: str) -> None:
    """The form comes back, nobody is asked."""
    answer = asker.post(reverse(ASK), form(held, reason=reason))
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    held.renew()
    assert not held.revoke_requested


def test_asking_comes_before_taking_away(boss: Client, held: Lease) -> None:
    """The page of the release offers it until it was done, and then says how long ago."""
    link = f"{reverse(ASK)}?using=default&amp;name=order%3A42&amp;fence={held.fence}"
    page = boss.get(reverse(RELEASE), form(held)).content.decode()
    assert link in page
    assert "It has not been asked to let go." in page
    boss.post(reverse(ASK), form(held))
    answer = boss.get(reverse(RELEASE), form(held))
    assert link not in answer.content.decode()
    assert re.search(r"asked to let go \d+ m?s ago by boss", words(answer))
    assert "It has been asked before." in words(boss.get(reverse(ASK), form(held)))


def test_one_of_several_holders_is_asked(boss: Client, engine: Any) -> None:
    """By its fence; the others hear nothing, on the page and in their processes."""
    semaphore = Semaphore(engine, "gpu", 3)
    with ThreadPoolExecutor(1) as other:
        leases = [semaphore.acquire(), other.submit(semaphore.acquire).result()]
        page = words(boss.get(reverse(ASK), form(leases[1])))
        assert "One other holder keeps its lease." in page
        answer = boss.post(reverse(ASK), form(leases[1]), follow=True)
        for lease in leases:
            lease.renew()
        assert [lease.revoke_requested for lease in leases] == [False, True]
        assert answer.content.decode().count('class="lockapp-asked"') == 1
        after = words(answer).rpartition("asked to let go")[2]
        assert str(leases[1].fence) in after
        assert str(leases[0].fence) not in after
        for lease in leases:
            lease.release()


def test_an_engine_that_does_not_answer_is_said_with_503(
    settings: Any, asker: Client, fresh_redis: RedisServer, prefix: str
) -> None:
    """It is not known whether the holder was asked; what was typed stays."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": fresh_redis.url,
            "OPTIONS": {"prefix": prefix},
        }
    }
    fresh_redis.kill()
    asked = {"using": "default", "name": "order:42", "fence": 7, "reason": "deploy"}
    answer = asker.post(reverse(ASK), asked)
    assert answer.status_code == 503
    assert "It is not known whether the holder was asked." in words(answer)
    assert 'value="7"' in answer.content.decode()
    assert ">\ndeploy</textarea>" in answer.content.decode()
    locks.close_all()


def test_it_speaks_chinese(boss: Client, held: Lease) -> None:
    """Every word of the way."""
    chinese = {"accept-language": "zh-hans"}
    page = words(boss.get(reverse(ASK), form(held), headers=chinese))
    for text in ("请求持有者释放此锁？", "原因"):
        assert text in page
    answer = boss.post(reverse(ASK), form(held), headers=chinese, follow=True)
    assert "已请求" in told(answer)[0]
    assert re.search(r"boss 于 \d+ \S+ 前请求释放", words(answer))
