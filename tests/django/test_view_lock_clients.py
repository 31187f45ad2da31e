"""Clients that go away while a locked view waits, works or streams: nothing stays behind.

By the servers' own ways of telling: a disconnect message under ASGI, a closed socket under WSGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import RequestFactory
from django.urls import path

from lockapp.decorators import view_lock
from lockapp.handler import locks
from lockapp.testing import assert_locked, assert_no_litter, assert_not_locked, held_by_other
from tests.timing import await_until, scaled, wait_until

factory = RequestFactory()


class Stage:
    """What the views of the running test do, and what became of them."""

    def __init__(self) -> None:
        self.entered = 0
        self.ended: list[str] = []
        self.go_on = threading.Event()


stage = Stage()


@view_lock("order", 1, wait=30)
async def awaited(request: HttpRequest) -> HttpResponse:
    stage.entered += 1
    try:
        await asyncio.sleep(scaled(30))
    except asyncio.CancelledError:
        stage.ended.append("cancelled")
        raise
    return HttpResponse()


@view_lock("order", 1, wait=30)
def blocking(request: HttpRequest) -> HttpResponse:
    stage.entered += 1
    stage.go_on.wait(scaled(30))
    stage.ended.append("done")
    return HttpResponse("x" * 1_000_000)


@view_lock("order", 1)
async def streaming(request: HttpRequest) -> StreamingHttpResponse:
    async def pages() -> AsyncIterator[bytes]:
        stage.entered += 1
        try:
            yield b"first"
            await asyncio.sleep(scaled(30))
        finally:
            stage.ended.append("closed")

    return StreamingHttpResponse(pages())


urlpatterns = [
    path("awaited/", awaited),
    path("blocking/", blocking),
    path("streaming/", streaming),
]


@pytest.fixture(autouse=True)
def site(settings: Any, redis_locks: Any) -> Iterator[None]:
    """These views, on a real lock server; nothing is held or waiting at the end."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    stage.__init__()  # type: ignore[misc]
    yield
    assert_no_litter()


def waiting() -> int:
    state = locks["default"].show("order:1")
    return state.waiter_count if state else 0


# ------------------------------------------------------------------ ASGI


@contextlib.asynccontextmanager
async def asked(url: str) -> AsyncIterator[ApplicationCommunicator]:
    """A request under way; `gone()` is the server's word that its client has left."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": url, "query_string": b"", "headers": [(b"host", b"testserver")],
    }  # fmt: skip
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": b"{}"})
    try:
        yield client
    finally:
        await client.wait(timeout=scaled(10))
        await locks.aclose_all()


async def gone(client: ApplicationCommunicator) -> None:
    await client.send_input({"type": "http.disconnect"})


async def test_a_client_that_leaves_while_it_is_served_frees_the_lock() -> None:
    """The body is cancelled, and what it held is free for the next one."""
    async with asked("/awaited/") as client:
        await await_until(lambda: stage.entered == 1)
        assert_locked("order", 1)
        await gone(client)
        await await_until(lambda: stage.ended == ["cancelled"])
        await await_until(lambda: locks["default"].show("order:1") is None)


@pytest.mark.parametrize("url", ["/awaited/", "/blocking/"])
async def test_a_client_that_leaves_while_it_waits_is_not_served(url: str) -> None:
    """An async view leaves the queue at once; a thread does so when it is its turn, or time."""
    with held_by_other("order", 1) as theirs:
        async with asked(url) as client:
            await await_until(lambda: waiting() == 1)
            await gone(client)
            if url == "/awaited/":
                await await_until(lambda: waiting() == 0)
                assert stage.entered == 0
            stage.go_on.set()
            theirs.release()
    await await_until(lambda: locks["default"].show("order:1") is None)
    assert stage.entered == len(stage.ended)


async def test_a_thread_whose_client_has_left_works_to_its_end_under_the_lock() -> None:
    """Nobody can stop it: so nobody else is let in before it has ended."""
    async with asked("/blocking/") as client:
        await await_until(lambda: stage.entered == 1)
        await gone(client)
        assert_locked("order", 1)
        stage.go_on.set()
        await await_until(lambda: locks["default"].show("order:1") is None)
    assert stage.ended == ["done"]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_held_nothing() -> None:
    """The stream is outside the lock, and is closed."""
    async with asked("/streaming/") as client:
        assert (await client.receive_output())["status"] == 200
        assert (await client.receive_output())["body"] == b"first"
        assert_not_locked("order", 1)
        await gone(client)
        await await_until(lambda: stage.ended == ["closed"])


# ------------------------------------------------------------------ WSGI


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


class QuietServer(ThreadedWSGIServer):
    daemon_threads = False

    def handle_error(self, *args: object) -> None:
        """Clients that have gone are what this is about."""


@pytest.fixture
def ask() -> Iterator[Callable[[], socket.socket]]:
    """Post to /blocking/ of a web server; returns the client's end. Threads are joined after."""
    server = QuietServer(("127.0.0.1", 0), QuietHandler)
    server.set_app(WSGIHandler())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def post() -> socket.socket:
        client = socket.create_connection(server.server_address[:2])
        client.sendall(b"POST /blocking/ HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        return client

    yield post
    server.shutdown()
    server.server_close()
    thread.join()


def test_clients_of_a_threaded_server_leave_nothing(ask: Callable[[], socket.socket]) -> None:
    """One goes while it is served, one while it waits: the server does not notice, and goes on."""
    served = ask()
    wait_until(lambda: stage.entered == 1)
    waits = ask()
    wait_until(lambda: waiting() == 1)
    waits.close()
    served.close()
    assert_locked("order", 1)
    stage.go_on.set()
    wait_until(lambda: stage.ended == ["done", "done"])
    wait_until(lambda: locks["default"].show("order:1") is None)


# ------------------------------------------------------------------ what comes after the view


def test_a_synchronous_stream_runs_outside_the_lock() -> None:
    """It is made with the lock and streamed without, whether it is read to its end or closed."""
    seen: list[bool] = []

    def held() -> bool:
        return locks["default"].show("order:1") is not None

    def pages() -> Iterator[bytes]:
        seen.append(held())
        yield b"one"
        yield b"two"

    @view_lock("order", 1)
    def view(request: HttpRequest) -> StreamingHttpResponse:
        seen.append(held())
        return StreamingHttpResponse(pages())

    response = view(factory.get("/"))
    assert isinstance(response, StreamingHttpResponse)
    assert b"".join(response) == b"onetwo"  # type: ignore[arg-type]
    assert next(iter(view(factory.get("/")))) == b"one"
    assert seen == [True, False, True, False]


def test_a_template_response_is_rendered_outside_the_lock() -> None:
    """By Django's handler, after the view has returned: what it shows must be loaded inside."""
    seen: list[bool] = []

    def held() -> str:
        seen.append(locks["default"].show("order:1") is not None)
        return "shown"

    @view_lock("order", 1)
    def view(request: HttpRequest) -> TemplateResponse:
        held()
        return TemplateResponse(request, engines["django"].from_string("{{ it }}"), {"it": held})

    response = view(factory.get("/"))
    assert isinstance(response, TemplateResponse)
    assert response.render().content == b"shown"
    assert seen == [True, False]
