"""A view that may go on without the server: what it is told, what signals say, what is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from lockapp import signals
from lockapp.audit.collector import collect
from lockapp.core.breaker import FAILURES
from lockapp.core.values import Outage
from lockapp.decorators import view_lock
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.models import LockEvent
from tests.servers import RedisServer
from tests.timing import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
factory = RequestFactory()


@pytest.fixture
def server(settings: Any, fresh_redis: RedisServer) -> RedisServer:
    """The lock server of the site, which the test takes away and brings back."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    return fresh_redis


@pytest.fixture
def heard(request: pytest.FixtureRequest) -> list[tuple[str, Any]]:
    """What the three signals of an outage said, in order."""
    said: list[tuple[str, Any]] = []

    def listen(name: str, argument: str) -> None:
        def receiver(sender: Any, **about: Any) -> None:
            said.append((name, about[argument]))

        signal = getattr(signals, name)
        signal.connect(receiver, weak=False)
        request.addfinalizer(lambda: signal.disconnect(receiver))

    listen("lock_degraded", "lease")
    listen("engine_unavailable", "outage")
    listen("engine_restored", "outage")
    return said


def leave(server: RedisServer) -> None:
    """Bring the server back, and let the watchdog record and end."""
    server.start()
    engine = locks["default"]
    wait_until(lambda: not engine.sync.watchdog._backlog, limit_s=15, what="the report")
    locks.close_all()
    watchdog = "lockapp-watchdog-default"
    wait_until(lambda: watchdog not in [thread.name for thread in threading.enumerate()])


@pytest.mark.parametrize("mode", ["open", "local"])
def test_a_view_that_may_goes_on_and_everybody_hears_of_it(
    server: RedisServer, heard: list[tuple[str, Any]], mode: Any
) -> None:
    """The body runs; a signal, a row, and a line in the admin tell that it did."""

    @view_lock("order", 1, on_unavailable=mode)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=201)

    assert view(factory.post("/")).status_code == 201
    assert heard == []
    server.kill()
    assert view(factory.post("/")).status_code == 201
    (lease,) = [subject for name, subject in heard if name == "lock_degraded"]
    assert isinstance(lease, Lease)
    assert (lease.degraded, lease.fence) == (mode, 0)
    leave(server)

    def stored() -> list[LockEvent]:
        collect(locks["default"])
        return list(LockEvent.objects.degraded())

    (row,) = wait_until(stored, what="the row")
    assert (row.name, row.kind, row.fence) == ("order:1", "degraded", 0)
    assert row.detail["mode"] == mode
    assert row.reason == "connect"
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    page = boss.get(reverse("admin:lockapp_lockevent_changelist")).content.decode()
    assert {"open": "without a lock", "local": "locked within its process"}[mode] in page
    locks.close_all()


def test_a_view_that_says_nothing_stays_shut(
    server: RedisServer, heard: list[tuple[str, Any]]
) -> None:
    """503; and the outage is told once, and its end."""

    @view_lock("order", 1)
    def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError("ran")

    server.kill()
    for _ in range(FAILURES + 2):
        assert view(factory.post("/")).status_code == 503
    wait_until(lambda: heard, what="the breaker to open")
    assert heard == [("engine_unavailable", Outage("default", "connect", 0.0))]
    server.start()

    def answers() -> bool:
        return locks["default"].show("order:1") is None

    wait_until(lambda: _quietly(answers), limit_s=15, what="an answer")
    (_, (name, outage)) = heard
    assert name == "engine_restored"
    assert outage.seconds > 0
    locks.close_all()


def _quietly(answers: Callable[[], bool]) -> bool:
    from lockapp.exceptions import EngineUnavailable

    try:
        return answers()
    except EngineUnavailable:
        return False


def test_a_word_that_is_none_is_refused_when_it_is_written() -> None:
    """With the words there are."""
    with pytest.raises(ValueError, match="'raise', 'local', 'open'"):
        view_lock("order", 1, on_unavailable="ignore")  # type: ignore[arg-type]
