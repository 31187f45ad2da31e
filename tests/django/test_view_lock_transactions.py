"""`@view_lock` and transactions: the lock is released after the commit, never before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, TestCase
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from lockapp.decorators import view_lock
from lockapp.handler import locks
from tests.timing import pause

factory = RequestFactory()


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    """ATOMIC_REQUESTS for the default database."""
    before = connections.settings["default"]["ATOMIC_REQUESTS"]
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    yield
    connections.settings["default"]["ATOMIC_REQUESTS"] = before


def in_transaction(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse(str(connection.in_atomic_block))


def exempt_from(alias: str) -> Any:
    """The same view with Django's mark (which is set on the function itself)."""

    @transaction.non_atomic_requests(using=alias)
    def view(request: HttpRequest) -> HttpResponse:
        return in_transaction(request)

    return view


def handled(view: Callable[..., Any], **kwargs: Any) -> Any:
    """Call a view as Django's handler does."""
    return BaseHandler().make_view_atomic(view)(factory.post("/"), **kwargs)


# ------------------------------------------------------------------ under ATOMIC_REQUESTS


def create_once(request: HttpRequest, name: str) -> HttpResponse:
    """The classical duplicate: create what does not exist yet."""
    if Group.objects.filter(name__startswith=name).exists():
        return HttpResponse("there", status=200)
    pause(0.02)
    Group.objects.create(name=f"{name} by {threading.current_thread().name}")
    return HttpResponse("made", status=201)


def slow_commit(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let time pass between the end of the view and the COMMIT."""

    @wraps(view)
    def slowed(request: HttpRequest, **kwargs: Any) -> Any:
        response = view(request, **kwargs)
        pause(0.1)
        return response

    return slowed


urlpatterns = [
    path("locked/<str:name>/", view_lock("group", "{name}", wait=30)(slow_commit(create_once))),
    path("in-transaction/", view_lock("group", 1)(in_transaction)),
]


@pytest.mark.django_db(transaction=True)
def test_create_if_none_exists_makes_exactly_one(
    settings: Any, redis_locks: Any, atomic_requests: None
) -> None:
    """Twelve POSTs at once, each in a request transaction whose commit is late."""
    settings.ROOT_URLCONF = __name__
    answers: list[int] = []
    start = threading.Barrier(12)

    def post() -> None:
        start.wait()
        try:
            answers.append(Client().post("/locked/staff/").status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=post) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 11 + [201]
    assert Group.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_lock_is_held_until_after_the_commit(
    redis_locks: Any, atomic_requests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of COMMIT the server still shows the holder."""
    held: list[bool] = []
    commit = connection.commit

    def watched() -> None:
        held.append(locks["default"].show("group:1") is not None)
        commit()

    connection.ensure_connection()
    monkeypatch.setattr(connection, "commit", watched)

    @view_lock("group", 1)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="one")
        return HttpResponse(str(connection.in_atomic_block))

    assert handled(view).content == b"True"
    assert held == [True]
    assert locks["default"].show("group:1") is None


@pytest.mark.django_db(transaction=True)
def test_an_exception_rolls_back_before_the_release(
    redis_locks: Any, atomic_requests: None
) -> None:
    """As ATOMIC_REQUESTS promises."""

    @view_lock("group", 1)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="one")
        raise KeyError("no")

    with pytest.raises(KeyError):
        handled(view)
    assert not Group.objects.exists()
    assert locks["default"].show("group:1") is None


@pytest.mark.django_db(transaction=True)
def test_without_atomic_requests_no_transaction_is_opened(redis_locks: Any) -> None:
    """The setting decides, not the lock."""
    assert handled(view_lock("group", 1)(in_transaction)).content == b"False"


@pytest.mark.django_db(transaction=True)
def test_a_view_that_was_exempt_stays_so(redis_locks: Any, atomic_requests: None) -> None:
    """Whether the mark is set below the lock or above it."""
    below = view_lock("group", 1)(exempt_from("default"))
    above = transaction.non_atomic_requests(view_lock("group", 1)(in_transaction))
    other = view_lock("group", 1)(exempt_from("other"))
    assert handled(below).content == b"False"
    assert handled(above).content == b"False"
    assert handled(other).content == b"True"


@pytest.mark.django_db(transaction=True)
def test_what_is_not_locked_is_in_a_transaction_all_the_same(
    redis_locks: Any, atomic_requests: None
) -> None:
    """`methods` limits the lock only."""
    view = view_lock("group", 1, methods=["GET"])(in_transaction)
    assert handled(view).content == b"True"


@pytest.mark.django_db(transaction=True)
def test_stacked_locks_open_the_transaction_inside_both(
    redis_locks: Any, atomic_requests: None
) -> None:
    """The inner decorator does it."""
    view = view_lock("group", 1)(view_lock("group", 2)(in_transaction))
    assert handled(view).content == b"True"


@pytest.mark.django_db(transaction=True)
def test_dispatch_and_as_view_carry_the_mark(redis_locks: Any, atomic_requests: None) -> None:
    """So class-based views are locked outside their transaction too."""

    class Plain(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return in_transaction(request)

    @method_decorator(view_lock("group", 1), name="dispatch")
    class Dispatch(Plain):
        pass

    assert handled(Dispatch.as_view()).content == b"True"
    assert handled(view_lock("group", 1)(Plain.as_view())).content == b"True"


# ------------------------------------------------------------------ where the mark can't reach


def outer_without_wraps(view: Callable[..., Any]) -> Callable[..., Any]:
    def outer(request: HttpRequest, **kwargs: Any) -> Any:
        return view(request, **kwargs)

    return outer


@pytest.mark.django_db(transaction=True)
def test_an_open_request_transaction_is_an_error_that_names_the_cure(
    redis_locks: Any, atomic_requests: None
) -> None:
    """Instead of a lock that is released before the commit."""
    ran = []

    class Order(View):
        @method_decorator(view_lock("group", 1))
        def post(self, request: HttpRequest) -> HttpResponse:
            ran.append(1)
            return HttpResponse()

    @view_lock("group", 1)
    def view(request: HttpRequest) -> HttpResponse:
        ran.append(1)
        return HttpResponse()

    for unreached in (Order.as_view(), outer_without_wraps(view), transaction.atomic(view)):
        with pytest.raises(ImproperlyConfigured, match="name='dispatch'"):
            handled(unreached)
    assert ran == []
    assert handled(transaction.non_atomic_requests(Order.as_view())).status_code == 200


class InATestCase(TestCase):
    """The transaction that Django's TestCase opens round each test."""

    def test_is_nobodys_transaction(self) -> None:
        """Users test locked views with TestCase."""
        assert connection.in_atomic_block
        view = view_lock("group", 1)(in_transaction)
        assert view(factory.post("/")).status_code == 200
