"""One order and one charge, with a shop and a payment provider that are real web servers.

On each database: identical requests at once, in two processes; with and without Redis; and a shop
that is killed after the provider has charged and before its own commit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

from lockapp.models import IdempotencyRecord
from tests.addresses import ADDRESSES, address_of
from tests.django import fence_places
from tests.django.fence_places import Place
from tests.django.payment_shop import ORDERS
from tests.servers import free_port
from tests.services import require
from tests.timing import scaled, wait_until

LIMIT_S = scaled(30)
TTL_S = scaled(1.0)  # how long a killed process still holds its lock

_numbers = itertools.count(1)


class Served:
    """A child process that is a web server on a port that it says."""

    port: int

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", f"tests.django.{module}", *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_port(self) -> int:
        """Wait until it listens, before any thread asks it; return where."""
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())
        return self.port

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[Any, Any]:
        """Return the response and its body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        with contextlib.closing(client):
            client.request(method, path, body, {"Content-Type": "application/json", **named})
            response = client.getresponse()
            return response, json.loads(response.read() or b"null")

    def end(self) -> None:
        """Kill it."""
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


class Scene:
    """A database, a provider, and shops."""

    def __init__(self, place: Place, redis_url: str, stack: contextlib.ExitStack) -> None:
        self.place = place
        self.stack = stack
        self.provider = Served("payment_provider")
        stack.callback(self.provider.end)
        self.where = {
            "redis": redis_url,
            "down": f"redis://127.0.0.1:{free_port()}",
            "prefix": f"payments-{os.getpid()}-{place.kind}",
            "ttl": TTL_S,
            "provider": self.provider.await_port(),
        }
        self.shops = [self.open(), self.open()]
        for shop in self.shops:  # which start side by side
            shop.await_port()

    def open(self) -> Served:
        """Start another shop."""
        kind, name = self.place.kind, self.place.name
        database = {"LOCKAPP_TEST_SQLITE": name}
        if kind != "sqlite":
            database = {ADDRESSES[kind][0]: f"{address_of(kind).rpartition('/')[0]}/{name}"}
        shop = Served(
            "payment_shop", json.dumps(self.where), LOCKAPP_TEST_DATABASE=kind,
            DJANGO_SETTINGS_MODULE="tests.settings", **database,
        )  # fmt: skip
        self.stack.callback(shop.end)
        return shop

    @contextlib.contextmanager
    def shut_gate(self) -> Iterator[None]:
        """Let the provider answer no charge inside."""
        self.provider.ask("POST", "/gate/shut")
        try:
            yield
        finally:
            self.provider.ask("POST", "/gate/open")

    def await_waiting(self, count: int) -> None:
        """Return when so many wait for the record in the database; SQLite does not tell."""
        if self.place.kind != "sqlite":
            with self.place.opened() as connection:
                wait_until(
                    lambda: self.place.waiting(connection) == count,
                    limit_s=20,
                    what="those who wait",
                )

    def charges(self) -> list[str]:
        """All that the provider has charged."""
        _, listed = self.provider.ask("GET", "/charges")
        assert isinstance(listed, list)
        return listed

    def orders(self, client: str) -> list[str]:
        """The orders of a client."""
        with self.place.opened() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {ORDERS} WHERE client = %s", [client])
            return [row[0] for row in cursor.fetchall()]


@pytest.fixture(scope="module", params=fence_places.KINDS)
def scene(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    redis_url: str,
    django_db_blocker: Any,
) -> Iterator[Scene]:
    """The same servers for all tests of a database."""
    kind = request.param
    if kind != "sqlite":
        require(kind)
    with contextlib.ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        place = stack.enter_context(fence_places.made(kind, tmp_path_factory.mktemp("db")))
        with place.opened() as connection:
            with connection.schema_editor() as editor:
                editor.create_model(IdempotencyRecord)
            with connection.cursor() as cursor:
                cursor.execute(
                    f"CREATE TABLE {ORDERS} (id varchar(50) PRIMARY KEY, client varchar(50))"
                )
        yield Scene(place, redis_url, stack)


@pytest.fixture
def client() -> str:
    """A client that nobody has heard of."""
    return f"client-{next(_numbers)}"


class Crowd:
    """Identical requests at once, each in a thread of its own."""

    def __init__(self, scene: Scene, way: str, client: str, size: int, **headers: str) -> None:
        self.answers: list[tuple[int, Any, Any]] = []
        self._threads = [
            threading.Thread(
                target=self._post,
                args=(scene.shops[number % 2], way),
                kwargs={"Client": client, **headers},
            )
            for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def _post(self, shop: Served, way: str, **headers: str) -> None:
        response, body = shop.ask("POST", f"/{way}/", Idempotency_Key="k", **headers)
        self.answers.append((response.status, response.headers, body))

    def end(self) -> list[tuple[int, Any, Any]]:
        """Wait for all answers; return them."""
        for thread in self._threads:
            thread.join()
        assert len(self.answers) == len(self._threads)
        return self.answers


@pytest.mark.parametrize(("way", "size"), [("at-once", 2), ("at-once", 10), ("briefly", 10)])
def test_who_does_not_wait_is_told_that_it_is_in_progress(
    scene: Scene, client: str, way: str, size: int
) -> None:
    """While the first is still at work; one order, one charge."""
    before = len(scene.charges())
    with scene.shut_gate():
        crowd = Crowd(scene, way, client, size)
        wait_until(lambda: len(crowd.answers) == size - 1, limit_s=20, what="the others' answers")
        for status, headers, body in crowd.answers:
            assert (status, body["type"], body["title"]) == (
                409, "urn:lockapp:contended", "In progress",
            )  # fmt: skip
            assert int(headers["Retry-After"]) >= 1
        assert scene.orders(client) == []
    status, _, body = crowd.end()[-1]
    assert status == 201
    assert scene.orders(client) == [body["order"]]
    assert len(scene.charges()) == before + 1
    response, again = scene.shops[0].ask("POST", f"/{way}/", Idempotency_Key="k", Client=client)
    assert (response.status, again) == (201, body)


@pytest.mark.parametrize(
    ("way", "size"), [("waiting", 10), ("without-redis", 2), ("without-redis", 10)]
)
def test_who_waits_is_answered_with_the_same_order(
    scene: Scene, client: str, way: str, size: int
) -> None:
    """For the lock or, without Redis, for the record in the database."""
    before = len(scene.charges())
    with scene.shut_gate():
        crowd = Crowd(scene, way, client, size)
        wait_until(lambda: len(scene.charges()) > before, limit_s=20, what="the charge")
        if way == "without-redis":
            scene.await_waiting(size - 1)
    answers = crowd.end()
    assert Counter(status for status, _, _ in answers) == {201: size}
    assert Counter(headers["Idempotent-Replayed"] for _, headers, _ in answers) == {
        None: 1, "true": size - 1,
    }  # fmt: skip
    assert scene.orders(client) == [answers[0][2]["order"]]
    assert len({body["order"] for _, _, body in answers}) == 1
    assert len(scene.charges()) == before + 1


@pytest.mark.parametrize("way", ["waiting", "without-redis"])
def test_if_the_first_fails_one_of_those_who_wait_does_it(
    scene: Scene, client: str, way: str
) -> None:
    """It was rolled back, and the others are answered with what the next one did."""
    before = len(scene.charges())
    with scene.shut_gate():
        crowd = Crowd(scene, way, client, 5, X_Fail="1")
        wait_until(lambda: len(scene.charges()) > before, limit_s=20, what="the charge")
        if way == "without-redis":
            scene.await_waiting(4)
    answers = crowd.end()
    assert Counter(status for status, _, _ in answers) == {500: 1, 201: 4}
    (order,) = scene.orders(client)
    assert {body["order"] for status, _, body in answers if status == 201} == {order}
    assert len(scene.charges()) == before + 1


def test_who_is_killed_after_the_charge_has_charged_once(scene: Scene, client: str) -> None:
    """The client tries again, until it has asked five times."""

    def ask(shop: Served, **headers: str) -> tuple[Any, Any]:
        return shop.ask("POST", "/waiting/", Idempotency_Key="k", Client=client, **headers)

    before = scene.charges()
    shop = scene.open()
    shop.await_port()
    with pytest.raises((HTTPException, ConnectionError)):
        ask(shop, X_Die="1")
    assert shop.popen.wait(LIMIT_S) == -signal.SIGKILL
    (charge,) = set(scene.charges()) - set(before)
    assert scene.orders(client) == []
    answers = [ask(scene.shops[number % 2]) for number in range(4)]
    (order,) = scene.orders(client)
    assert [body for _, body in answers] == [{"order": order, "charge": charge}] * 4
    assert [response.headers["Idempotent-Replayed"] for response, _ in answers] == [
        None, "true", "true", "true",
    ]  # fmt: skip
    assert len(scene.charges()) == len(before) + 1
