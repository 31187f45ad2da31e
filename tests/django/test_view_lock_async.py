"""`@view_lock` on async views: the same promise, or a refusal; no body runs without the lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View

from lockapp.decorators import view_lock
from lockapp.exceptions import NotAcquired
from lockapp.handler import lock, locks
from tests.timing import await_until

factory = AsyncRequestFactory()


@pytest.fixture(autouse=True)
async def loop_locks(redis_locks: Any) -> AsyncIterator[None]:
    """Locks on a real server, closed with the loop."""
    yield
    await redis_locks.aclose_all()


class Body:
    """A view's body that notices when it is in two requests at once."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.runs = 0

    async def run(self) -> HttpResponse:
        self.inside += 1
        self.runs += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return HttpResponse()


def function_view(body: Body) -> Any:
    @view_lock("order", "{pk}", wait=10)
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        return await body.run()

    return view


def callable_object(body: Body) -> Any:
    class Order:
        async def __call__(self, request: HttpRequest, pk: int) -> HttpResponse:
            return await body.run()

    return view_lock("order", "{pk}", wait=10)(Order())


def partial_view(body: Body) -> Any:
    async def view(extra: int, request: HttpRequest, pk: int) -> HttpResponse:
        return await body.run()

    return view_lock("order", "{pk}", wait=10)(partial(view, 1))


def marked_wrapper(body: Body) -> Any:
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        return await body.run()

    def outer(request: HttpRequest, pk: int) -> Any:
        return view(request, pk)

    return view_lock("order", "{pk}", wait=10)(markcoroutinefunction(outer))


def one_method(body: Body) -> Any:
    class Order(View):
        @method_decorator(view_lock("order", "{pk}", wait=10))
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return await body.run()

    return Order.as_view()


def dispatch(body: Body) -> Any:
    @method_decorator(view_lock("order", "{pk}", wait=10), name="dispatch")
    class Order(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return await body.run()

    return Order.as_view()


def whole_class(body: Body) -> Any:
    class Order(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return await body.run()

    return view_lock("order", "{pk}", wait=10)(Order.as_view())


@pytest.mark.parametrize(
    "shape",
    [
        function_view, callable_object, partial_view, marked_wrapper, one_method, dispatch,
        whole_class,
    ],
)  # fmt: skip
async def test_no_two_bodies_overlap(shape: Callable[[Body], Any]) -> None:
    """Six requests at once, in each shape that an async view may have."""
    body = Body()
    view = shape(body)
    assert iscoroutinefunction(view)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(view(factory.post("/"), pk=1)) for _ in range(6)]
    assert [task.result().status_code for task in tasks] == [200] * 6
    assert (body.runs, body.most) == (6, 1)
    assert await locks["default"].ashow("order:1") is None


async def test_a_synchronous_decorator_between_is_an_error_and_nothing_runs() -> None:
    """It would return a coroutine that runs when the lock has been released."""
    body = Body()

    def between(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def wrapper(request: HttpRequest) -> Any:
            return view(request)

        return wrapper

    @view_lock("order", 1)
    @between
    async def view(request: HttpRequest) -> HttpResponse:
        return await body.run()

    with pytest.raises(TypeError, match="below a synchronous decorator"):
        await asyncio.to_thread(view, RequestFactory().post("/"))
    assert body.runs == 0


async def test_contended_is_409_and_the_body_does_not_run() -> None:
    """As on sync views; a hook may be a coroutine function here."""
    body = Body()

    async def busy(request: HttpRequest, error: NotAcquired) -> HttpResponse | None:
        await asyncio.sleep(0)
        return HttpResponse("busy", status=423) if request.path == "/hook" else None

    @view_lock("order", 1, on_contention=busy)
    async def view(request: HttpRequest) -> HttpResponse:
        return await body.run()

    async def hold(held: asyncio.Event, end: asyncio.Event) -> None:
        async with lock("order", 1):
            held.set()
            await end.wait()

    held, end = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(held, end))
        await held.wait()
        usual = await view(factory.post("/"))
        hooked = await view(factory.post("/hook"))
        end.set()
    assert (usual.status_code, usual["Retry-After"]) == (409, "1")
    assert hooked.status_code == 423
    assert body.runs == 0


async def test_a_dead_server_is_503(settings: Any) -> None:
    """And not 409."""
    settings.LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}

    @view_lock("order", 1)
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("unreachable")

    assert (await view(factory.post("/"))).status_code == 503


async def test_the_user_is_loaded_without_blocking_the_loop() -> None:
    """By `auser()`; `request.user` would query the database here."""

    def load() -> User:
        raise AssertionError("blocked the loop")

    async def auser() -> User:
        return User(pk=17)

    async def plan(request: HttpRequest) -> str:
        return "basic"

    @view_lock("cart", "{user.pk}", "{request.user.pk}", plan)
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.lockapp_lease.name)  # type: ignore[attr-defined]

    request = factory.post("/")
    request.user = SimpleLazyObject(load)
    request.auser = auser  # type: ignore[method-assign]
    assert (await view(request)).content == b"cart:17:17:basic"


async def test_cancelled_requests_leave_nothing() -> None:
    """A client that disconnects while it waits, or while it is served."""

    @view_lock("order", 1, wait=30)
    async def view(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(30)
        return HttpResponse()

    tasks = [asyncio.create_task(view(factory.post("/"))) for _ in range(3)]

    async def waiting() -> bool:
        state = await locks["default"].ashow("order:1")
        return state is not None and state.waiter_count == 2

    async def free() -> bool:
        return await locks["default"].ashow("order:1") is None

    await await_until(waiting)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await await_until(free)


async def test_atomic_requests_is_refused_as_django_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the view is exempt; on whatever way the view is reached."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    locked = view_lock("order", 1)(view)
    with pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        BaseHandler().make_view_atomic(locked)
    with pytest.raises(ImproperlyConfigured, match="non_atomic_requests below"):
        await locked(factory.post("/"))
    exempt = view_lock("order", 1)(transaction.non_atomic_requests(view))
    assert BaseHandler().make_view_atomic(exempt) is exempt
    assert (await exempt(factory.post("/"))).status_code == 200


async def test_a_streaming_response_is_made_with_the_lock_and_streamed_without() -> None:
    """The body of the view is what the lock covers; a slow client must not hold it."""
    seen: list[bool] = []

    async def held() -> bool:
        return await locks["default"].ashow("order:1") is not None

    async def pages() -> AsyncIterator[bytes]:
        seen.append(await held())
        yield b"one"
        async with lock("order", 1, wait=0):  # free for others, and for us again
            yield b"two"

    @view_lock("order", 1)
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        seen.append(await held())
        return StreamingHttpResponse(pages())

    response = await view(factory.get("/"))
    assert [part async for part in response] == [b"one", b"two"]
    assert seen == [True, False]
