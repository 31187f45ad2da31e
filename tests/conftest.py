"""Fixtures only: servers, addresses, prefixes, and the watch for what tests leave behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.proxy import TcpProxy
from tests.servers import RedisServer
from tests.timing import scaled, wait_until
from tests.zookeeper_servers import ZooKeeperServer

pytest_plugins = ["pytester", "tests.services"]

_numbers = itertools.count(1)


# ------------------------------------------------------------------ servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server per test process, shared by its tests: break a `fresh_redis` instead."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(service: Callable[[str], str]) -> Iterator[ZooKeeperServer]:
    """One server per test process, shared by its tests, where ZooKeeper is installed."""
    service("java")
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """The shared server's address."""
    return redis_server.url


@pytest.fixture
def fresh_redis() -> Iterator[RedisServer]:
    """A server of the test's own, to pause, restart, fill up or kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    """A faulty network in front of the shared server."""
    with TcpProxy(redis_server.port) as between:
        yield between


# ------------------------------------------------------------------ one test's own corner


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def keys_left(redis_server: RedisServer, prefix: str) -> Callable[[], list[str]]:
    """List what lies under this test's prefix on the shared server."""
    return lambda: sorted(redis_server.client.scan_iter(f"{prefix}:*", count=1000))


@pytest.fixture
def no_litter(
    request: pytest.FixtureRequest,
    prefix: str,
    redis_server: RedisServer,
    keys_left: Callable[[], list[str]],
) -> Iterator[None]:
    """Assert at the end that the test left no key behind, beside the few that are meant to stay.

    The counters, the event stream and the fence of a shard outlive their locks by design; a lock, a
    queue, a waiter or a grant does not. The landing of a flight goes by itself, after seconds.
    `redis_locks` brings this along.
    """
    yield
    if request.node.get_closest_marker("keeps_keys"):
        return
    lasting = {"fence", "events", "number", "counts", "meta"}
    litter = [key for key in keys_left() if key.rsplit(":", 1)[-1] not in lasting]
    landings = [key for key in litter if f"{prefix}:{{0}}:flight:" in key]
    assert all(0 < redis_server.client.pttl(key) <= 10_000 for key in landings)
    litter = [key for key in litter if key not in landings]
    assert not litter, f"keys left behind: {litter}"


@pytest.fixture
def redis_locks(settings: Any, redis_url: str, prefix: str, no_litter: None) -> Iterator[Any]:
    """Put the alias "default" on the shared server under this test's prefix; yields `locks`."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": redis_url,
            "OPTIONS": {"prefix": prefix},
        }
    }
    from lockapp.handler import locks

    yield locks
    locks.close_all()


# ------------------------------------------------------------------ leaks


def _close_engines() -> None:
    """Close what a test opened through the handler, so that engines don't count as leaks."""
    handler = sys.modules.get("lockapp.handler")
    locks = getattr(handler, "locks", None)
    if locks is not None:
        with contextlib.suppress(AttributeError):
            locks.close_all()


def _is_pool_thread(thread: threading.Thread) -> bool:
    """Whether it belongs to asgiref's process-wide executor, which lives on by design."""
    from asgiref.sync import SyncToAsync

    return thread in SyncToAsync.single_thread_executor._threads


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an idle watchdog end soon, so that its thread is seen to end."""
    from lockapp import watchdog

    monkeypatch.setattr(watchdog, "LINGER_S", 0.1)


@pytest.fixture(autouse=True)
def no_leaked_threads(request: pytest.FixtureRequest, short_linger: None) -> Iterator[None]:
    """Fail a test that leaves a thread running (`keeps_threads` excuses it)."""
    before = set(threading.enumerate())
    yield
    _close_engines()
    if request.node.get_closest_marker("keeps_threads"):
        return

    def left() -> list[threading.Thread]:
        now = set(threading.enumerate()) - before
        return [thread for thread in now if thread.is_alive() and not _is_pool_thread(thread)]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), limit_s=scaled(2))
    assert not left(), f"threads left behind: {left()}"
