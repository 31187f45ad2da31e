"""Exactly once, with real processes: killed at any point, several at once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from lockapp.audit.collector import collect
from lockapp.core.options import EngineOptions
from lockapp.engines.redis import RedisEngine
from lockapp.lock import Lock
from lockapp.models import LockEvent, LockHold
from tests.django.children import child_environment
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def engine(redis_server: RedisServer, prefix: str) -> Iterator[RedisEngine]:
    """An engine on the shared server."""
    engine = RedisEngine("default", redis_server.url, EngineOptions.parse({"prefix": prefix}))
    yield engine
    engine.close()


@pytest.fixture
def start(redis_url: str, prefix: str) -> Iterator[Start]:
    """Start collecting processes; those left at the end are killed."""
    children: list[subprocess.Popen[str]] = []
    environment = child_environment()

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.django.collector_child", redis_url, prefix]
        child = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield begin
    for child in children:
        end(child)


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def use(engine: RedisEngine, times: int) -> None:
    """Make two events each time."""
    for _ in range(times):
        Lock(engine, "order:1", wait=0).acquire().release()


def assert_complete(events: int) -> None:
    """Every number exactly once, in order, and no gap; every lease one hold, from grant to end."""
    rows = list(LockEvent.objects.order_by("id").values_list("number", "kind"))
    assert [number for number, _ in rows] == list(range(1, events + 1))
    assert Counter(kind for _, kind in rows) == {"acquired": events / 2, "released": events / 2}
    holds = list(LockHold.objects.values_list("fence", "kind", "ended"))
    assert len({fence for fence, _, _ in holds}) == len(holds) == events / 2
    assert {(kind, ended) for _, kind, ended in holds} == {("mutex", "released")}


@pytest.mark.parametrize("where", ["before", "inside", "written", "after"])
def test_a_collector_killed_there_neither_loses_nor_doubles(
    engine: RedisEngine, start: Start, where: str
) -> None:
    """Before the transaction, inside it, and between the commit and the trim."""
    use(engine, 10)
    child = start(where)
    assert child.wait(timeout=scaled(20)) == -9
    assert LockEvent.objects.count() == (7 if where == "after" else 0)
    assert LockHold.objects.count() == (4 if where == "after" else 0)
    use(engine, 10)
    collect(engine)
    assert_complete(40)


def test_collectors_killed_at_random_neither_lose_nor_double(
    engine: RedisEngine, start: Start
) -> None:
    """Two at once all the time, one of them killed and replaced again and again."""
    done = threading.Event()
    used = 0

    def work() -> None:
        nonlocal used
        while not done.is_set():
            use(engine, 5)
            used += 5
            time.sleep(0.01)  # a load, not a wait

    producer = threading.Thread(target=work)
    producer.start()
    try:
        chance = random.Random(7)
        running = [start(), start()]
        for _ in range(4):
            victim = running.pop(0)
            time.sleep(chance.uniform(0, 0.2))  # any moment will do
            end(victim)
            running.append(start())
    finally:
        done.set()
        producer.join()
    for child in running:
        end(child)
    collect(engine)
    assert_complete(used * 2)


def test_several_collectors_at_once_store_everything_once(
    engine: RedisEngine, start: Start
) -> None:
    """They take turns by the cursor's row."""
    use(engine, 100)
    running = [start() for _ in range(3)]
    use(engine, 100)
    wait_until(lambda: LockEvent.objects.count() >= 400, limit_s=30, every_s=0.05)
    for child in running:
        assert child.poll() is None
        end(child)
    assert collect(engine).stored == 0
    assert_complete(400)


def test_threads_that_collect_at_once_store_everything_once(engine: RedisEngine) -> None:
    """A web process that does it beside beat."""
    use(engine, 100)
    stored: list[int] = []
    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        try:
            stored.append(collect(engine, batch=9).stored)
        finally:
            connection.close()

    threads: list[Any] = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(stored) == 200
    assert_complete(200)
