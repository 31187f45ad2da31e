"""`LockedViewMixin`: the promise of `@view_lock`, for class-based views."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.exceptions import BadRequest, ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import DetailView

from lockapp.decorators import view_lock
from lockapp.handler import lock, locks
from lockapp.mixins import LockedViewMixin
from lockapp.testing import held_by_other, override_engine
from tests.timing import await_until, scaled

factory = RequestFactory()
afactory = AsyncRequestFactory()


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Locks of each test's own."""
    with override_engine():
        yield


def held() -> list[str]:
    return sorted(state.name for state in locks["default"].snapshot().locks)


class Showing(View):
    """Answers with what is held."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return HttpResponse(" ".join(held()))

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return self.get(request)


class Order(LockedViewMixin, Showing):
    lock_key = ("order", "{pk}")


def test_handlers_run_under_the_lock() -> None:
    """And the others are answered 409, as by the decorator."""
    view = Order.as_view()
    assert view(factory.post("/"), pk=7).content == b"order:7"
    with held_by_other("order", 7):
        answer = view(factory.post("/"), pk=7)
        assert view(factory.post("/"), pk=8).status_code == 200
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert held() == []


def test_every_argument_of_the_decorator_is_an_option() -> None:
    """They reach it as they are."""

    class Charge(LockedViewMixin, Showing):
        lock_key = ("order", lambda request, **kwargs: request.headers["X-Order"])
        lock_options = {
            "methods": ["POST"],
            "why": "charge",
            "wait": 0,
            "on_contention": lambda request, error: HttpResponse(error.name, status=423),
        }

        def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            state = locks["default"].show(request.lockapp_lease.name)  # type: ignore[attr-defined]
            assert state is not None
            return HttpResponse(state.holders[0].description["why"])

    view = Charge.as_view()
    request = factory.post("/", headers={"x-order": "a1"})
    assert view(request).content == b"charge"
    assert view(factory.get("/")).content == b""
    with held_by_other("order", "a1"):
        answer = view(request)
    assert (answer.status_code, answer.content) == (423, b"order:a1")


def test_head_and_options_are_untouched_unless_named() -> None:
    """A browser's preflight is not refused because somebody is at work."""

    class Probed(Order):
        lock_options = {"methods": ["HEAD", "POST"]}

    with held_by_other("order", 7):
        answer = Order.as_view()(factory.options("/"), pk=7)
        assert (answer.status_code, answer["Allow"]) == (200, "GET, POST, HEAD, OPTIONS")
        assert Order.as_view()(factory.head("/"), pk=7).content == b"order:7"
        assert Order.as_view()(factory.get("/"), pk=7).status_code == 409
        assert Probed.as_view()(factory.head("/"), pk=7).status_code == 409
        assert Probed.as_view()(factory.get("/"), pk=7).status_code == 200


def test_a_method_says_what_to_lock() -> None:
    """With the request and its arguments at hand; its text is never taken for a template."""

    class Part(LockedViewMixin, Showing):
        def get_lock_key(self) -> Any:
            return "part", self.kwargs["pk"], self.request.GET["name"]

    view = Part.as_view()
    assert view(factory.get("/?name=a"), pk=7).content == b"part:7:a"
    assert view(factory.get("/?name={user.pk}"), pk=7).content == b"part:7:%7Buser.pk%7D"
    with pytest.raises(BadRequest, match="part 3 is empty"):
        view(factory.get("/?name="), pk=7)


@pytest.mark.django_db
def test_a_method_may_go_by_the_object() -> None:
    """Which is loaded again inside, where nobody changes it meanwhile."""

    class Rename(LockedViewMixin, DetailView):  # type: ignore[type-arg]
        model = Group

        def get_lock_key(self) -> Any:
            return "group", self.get_object()

        def render_to_response(self, context: Any, **kwargs: Any) -> HttpResponse:
            return HttpResponse(" ".join(held()))

    group = Group.objects.create(name="staff")
    with lock("group", group) as lease:
        name = lease.name
    assert Rename.as_view()(factory.get("/"), pk=group.pk).content.decode() == name


def test_bases_to_the_left_run_before_the_lock_and_handlers_inside() -> None:
    """So a login comes first, and a contended visitor is not told so."""

    class Cart(LoginRequiredMixin, LockedViewMixin, Showing):
        lock_key = ("cart", "{user.pk}")
        login_url = "/login/"

    class Wrong(LockedViewMixin, LoginRequiredMixin, Showing):
        lock_key = ("cart", "{user.pk}")

    request: Any = factory.get("/")
    request.user = AnonymousUser()
    assert Cart.as_view()(request).status_code == 302
    with pytest.raises(BadRequest, match="login_required"):
        Wrong.as_view()(request)
    request.user = User(pk=17)
    assert Cart.as_view()(request).content == b"cart:17"


def test_locks_of_several_classes_are_stacked() -> None:
    """By bases, by a decorator of `dispatch`, by one of a method."""

    @method_decorator(view_lock("outer", 1), name="dispatch")
    class Stacked(Order):
        @method_decorator(view_lock("inner", 1))
        def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            return super().post(request, **kwargs)

    assert Stacked.as_view()(factory.post("/"), pk=7).content == b"inner:1 order:7 outer:1"
    assert held() == []


# ------------------------------------------------------------------ mistakes


def test_mistakes_are_found_where_the_class_is_written() -> None:
    """By the decorator's own words."""
    with pytest.raises(ValueError, match="exactly one field"):
        type("Bad", (LockedViewMixin, View), {"lock_key": ("order", "no {pk}")})
    with pytest.raises(TypeError, match="unexpected keyword argument 'waits'"):
        type("Bad", (Order,), {"lock_options": {"waits": 3}})
    with pytest.raises(ValueError, match="wait"):
        type("Bad", (LockedViewMixin, View), {
            "get_lock_key": lambda self: ("a", 1), "lock_options": {"wait": -1},
        })  # fmt: skip


def test_a_text_is_not_taken_apart_into_letters() -> None:
    """A key of one part without its comma: it would be a lock of another name."""

    class Part(LockedViewMixin, Showing):
        def get_lock_key(self) -> Any:
            return "cart"

    with pytest.raises(TypeError, match="'cart' stands without its comma"):
        Part.as_view()(factory.get("/"))
    with pytest.raises(TypeError, match="'order' stands without its comma"):
        type("Bad", (LockedViewMixin, View), {"lock_key": "order"})


def test_a_class_that_says_nothing_to_lock_is_refused_with_its_url() -> None:
    """It would look protected; as a base of others it may stand."""

    class Base(LockedViewMixin, Showing):
        pass

    class Child(Base):
        lock_key = ("order", "{pk}")

    with pytest.raises(ImproperlyConfigured, match="Base does not say what to lock"):
        Base.as_view()
    assert Child.as_view()(factory.get("/"), pk=7).content == b"order:7"


# ------------------------------------------------------------------ async


class AsyncOrder(LockedViewMixin, View):
    lock_key = ("order", "{pk}")
    lock_options = {"wait": 10}
    inside = most = 0

    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        cls = AsyncOrder
        cls.inside += 1
        cls.most = max(cls.most, cls.inside)
        await asyncio.sleep(0.01)
        cls.inside -= 1
        return HttpResponse()


async def test_async_handlers_never_overlap() -> None:
    """Six requests at once; a cancelled one leaves nothing."""
    view = AsyncOrder.as_view()
    answers = await asyncio.gather(*(view(afactory.post("/"), pk=1) for _ in range(6)))
    assert [answer.status_code for answer in answers] == [200] * 6
    assert AsyncOrder.most == 1
    with held_by_other("order", 1):
        task = asyncio.create_task(view(afactory.post("/"), pk=1))
        engine: Any = locks["default"]
        await await_until(lambda: engine.show("order:1").waiter_count == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await await_until(lambda: engine.show("order:1").waiter_count == 0)
    assert held() == []
    await locks.aclose_all()


async def test_an_async_view_may_await_its_key() -> None:
    """A synchronous one may not, and hears of it with its URL."""

    class Part(LockedViewMixin, View):
        async def get_lock_key(self) -> Any:
            await asyncio.sleep(0)
            return "part", self.kwargs["pk"]

        async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse(" ".join(held()))

    class Wrong(Part):
        get = Showing.get  # type: ignore[assignment]

    assert (await Part.as_view()(afactory.get("/"), pk=7)).content == b"part:7"
    with pytest.raises(TypeError, match="asynchronous and the view is not"):
        Wrong.as_view()
    await locks.aclose_all()


# ------------------------------------------------------------------ transactions


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS for the default database."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


class InTransaction(LockedViewMixin, View):
    lock_key = ("order", 1)

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"{connection.in_atomic_block} {held()}")


def handled(view: Any) -> HttpResponseBase:
    answer: HttpResponseBase = BaseHandler().make_view_atomic(view)(factory.post("/"))
    return answer


@pytest.mark.django_db(transaction=True)
def test_the_transaction_is_opened_inside_the_lock(atomic_requests: None) -> None:
    """Also where a subclass has a `dispatch()` of its own. A second lock goes round `as_view()`."""

    class Own(InTransaction):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            assert not connection.in_atomic_block
            return super().dispatch(request, *args, **kwargs)

    @method_decorator(view_lock("outer", 1), name="dispatch")
    class Stacked(InTransaction):
        pass

    for cls in (InTransaction, Own):
        assert handled(cls.as_view()).content == b"True ['order:1']"  # type: ignore[attr-defined]
    both = handled(view_lock("outer", 1)(InTransaction.as_view()))
    assert both.content == b"True ['order:1', 'outer:1']"  # type: ignore[attr-defined]
    with pytest.raises(ImproperlyConfigured, match=r"on as_view\(\)"):
        handled(Stacked.as_view())


@pytest.mark.django_db(transaction=True)
def test_a_view_that_is_exempt_stays_so(atomic_requests: None) -> None:
    """Wherever the mark is set."""

    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Exempt(InTransaction):
        pass

    assert handled(Exempt.as_view()).content == b"False ['order:1']"  # type: ignore[attr-defined]
    marked = transaction.non_atomic_requests(InTransaction.as_view())
    assert handled(marked).content == b"False ['order:1']"  # type: ignore[attr-defined]
    assert handled(InTransaction.as_view()).content == b"True ['order:1']"  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
def test_a_lock_that_would_be_released_before_the_commit_is_refused(atomic_requests: None) -> None:
    """An `as_view()` that does not call the mixin's."""

    class Stray(InTransaction):
        @classmethod
        def as_view(cls, **initkwargs: Any) -> Any:
            return View.as_view.__func__(cls, **initkwargs)  # type: ignore[attr-defined]

    with pytest.raises(ImproperlyConfigured, match="inside a transaction"):
        handled(Stray.as_view())


def test_requests_of_several_threads_don_t_share_what_is_said_of_one() -> None:
    """One class, one instance each: two keys at once, and no two of one."""
    view = Order.as_view()
    start, answers = threading.Barrier(2), []

    class Slow(Order):
        def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
            start.wait(scaled(10))
            return super().post(request, **kwargs)

    view = Slow.as_view()
    threads = [
        threading.Thread(target=lambda pk=pk: answers.append(view(factory.post("/"), pk=pk)))
        for pk in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]
