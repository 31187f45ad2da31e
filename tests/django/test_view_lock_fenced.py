"""`@view_lock(…, fenced=True)`: the view's transaction is one that no late holder can commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.handlers.base import BaseHandler
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from django.utils import timezone

from lockapp.decorators import view_lock
from lockapp.exceptions import FenceBusy, LeaseLost, StaleFence
from lockapp.handler import locks
from lockapp.models import Fence
from lockapp.naming import name_digest

pytestmark = pytest.mark.django_db(transaction=True)
factory = RequestFactory()
LATER = 2**62


def handled(view: Any, method: str = "post", **kwargs: Any) -> Any:
    """Call a view as Django's handler does."""
    return BaseHandler().make_view_atomic(view)(getattr(factory, method)("/"), **kwargs)


@view_lock("group", "{name}", fenced=True, methods=["POST"])
def create(request: HttpRequest, name: str) -> HttpResponse:
    """Write, and tell what it was written under."""
    Group.objects.create(name=name)
    lease = getattr(request, "lockapp_lease", None)
    stored = Fence.objects.filter(digest=name_digest(f"group:{name}")).first()
    fences = [lease and lease.fence, stored and stored.fence]
    return JsonResponse({"atomic": connection.in_atomic_block, "fences": fences})


@pytest.fixture(params=[False, True], ids=["", "ATOMIC_REQUESTS"])
def atomic_requests(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without ATOMIC_REQUESTS."""
    before = connections.settings["default"]["ATOMIC_REQUESTS"]
    connections.settings["default"]["ATOMIC_REQUESTS"] = request.param
    yield
    connections.settings["default"]["ATOMIC_REQUESTS"] = before


def claimed_later(name: str) -> None:
    """Somebody with a later lease has been here."""
    Fence.objects.create(
        digest=name_digest(name), name=name, engine="default RedisEngine", epoch=1, fence=LATER,
        owner="", claimed_at=timezone.now(),
    )  # fmt: skip


def test_the_view_writes_under_its_fence(redis_locks: Any, atomic_requests: None) -> None:
    """One transaction, claimed with the lease that the view has."""
    answer = handled(create, name="one").content
    assert b'"atomic": true' in answer
    fence = Fence.objects.get().fence
    assert f'"fences": [{fence}, {fence}]'.encode() in answer
    assert Group.objects.count() == 1
    assert locks["default"].show("group:one") is None


def test_what_is_not_locked_is_not_fenced(redis_locks: Any) -> None:
    """`methods` limits both."""
    assert b'"fences": [null, null]' in handled(create, "put", name="one").content
    assert not Fence.objects.exists()


def test_who_is_late_is_answered_as_contended(
    redis_locks: Any, atomic_requests: None, caplog: Any
) -> None:
    """Nothing was done, and the view has not run; operators are told, since it should be rare."""
    claimed_later("group:one")
    answer = handled(create, name="one")
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert not Group.objects.exists()
    assert "the database refuses" in caplog.text
    assert locks["default"].show("group:one") is None


def test_the_hook_is_given_what_happened(redis_locks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy fence is a kind of contention; a stale one is its cause."""
    heard: list[BaseException | None] = []

    def answer(request: HttpRequest, error: Exception) -> HttpResponse:
        heard.append(error if isinstance(error, FenceBusy) else error.__cause__)
        return HttpResponse(status=418)

    @view_lock("group", "{name}", fenced=True, on_contention=answer)
    def view(request: HttpRequest, name: str) -> HttpResponse:
        raise AssertionError("the view must not run")

    claimed_later("group:one")
    assert handled(view, name="one").status_code == 418
    monkeypatch.setattr("lockapp.fencing.claim", _busy)
    assert handled(view, name="two").status_code == 418
    assert [type(error) for error in heard] == [StaleFence, FenceBusy]


def _busy(*_: Any) -> None:
    raise FenceBusy(
        "busy", name="group:two", holder=None, waited=1.0, retry_after=0.0, using="default"
    )


def test_a_lease_that_is_over_at_the_end_rolls_back(
    redis_locks: Any, atomic_requests: None
) -> None:
    """And the request fails: what the view answered is not so."""

    @view_lock("group", 1, fenced=True)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="lost")
        request.lockapp_lease.lose("forced")  # type: ignore[attr-defined]
        return HttpResponse()

    with pytest.raises(LeaseLost):
        handled(view)
    assert not Group.objects.exists()
    assert not Fence.objects.exists()


def test_what_the_view_raises_stays_its_own(redis_locks: Any) -> None:
    """Also what looks like ours."""

    @view_lock("group", 1, fenced=True)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="rolled back")
        raise StaleFence("of another lock")

    with pytest.raises(StaleFence, match="of another lock"):
        handled(view)
    assert not Group.objects.exists()


def test_a_server_that_is_down_is_no_reason_to_write_unfenced(settings: Any) -> None:
    """Whatever the engine's own choice is; saying so at the view is an error."""
    options = {"on_unavailable": "open"}
    settings.LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": options}}
    assert handled(create, name="one").status_code == 503
    assert not Group.objects.exists()
    for word in ("open", "local"):
        with pytest.raises(ValueError, match="exclude each other"):
            view_lock("group", 1, fenced=True, on_unavailable=word)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of"):
        view_lock("group", 1, fenced=True, on_unavailable="none")  # type: ignore[arg-type]


def test_where_there_is_no_transaction_to_open_it_is_refused(redis_locks: Any) -> None:
    """Async views, and all but the innermost of stacked locks."""

    async def awaited(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(TypeError, match="sync_to_async"):
        view_lock("group", 1, fenced=True)(awaited)
    inner = view_lock("group", "{name}")(lambda request, name: HttpResponse())
    with pytest.raises(ValueError, match="put fenced=True there"):
        view_lock("group", 2, fenced=True)(inner)
    assert b'"atomic": true' in handled(view_lock("all", 1)(create), name="one").content
    with transaction.atomic(), pytest.raises(Exception, match="reached inside a transaction"):
        create(factory.post("/"), name="two")
