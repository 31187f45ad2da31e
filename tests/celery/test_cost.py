"""What @single_instance costs beside the task itself: counted, not timed, on a warm worker.

How many tasks a second it costs is measured by ``tests/bench/task.py``.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from lockapp.engines.redis.scripts import build
from tests.bench.task import Bench
from tests.servers import RedisServer

TASKS = 100
BY_THE_CLOCK = 20
"""Commands that do not come with a task: the watchdog's, those of a new connection."""
END = "record-ends"


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    """For messages and results of this module only: what is counted is its worker's."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def locks_server() -> Iterator[RedisServer]:
    """For locks of this module only."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def bench(broker: RedisServer, locks_server: RedisServer) -> Iterator[Bench]:
    """A worker whose only child has run each kind of task."""
    with Bench(broker, locks_server, children=1) as started:
        for task in ("single", "bare"):
            started.round(task, 10)
        yield started


@contextmanager
def recorded(server: RedisServer) -> Iterator[list[str]]:
    """Every command that clients send meanwhile; whole once the block is left."""
    lines: list[str] = []
    with redis.Redis.from_url(server.url, socket_timeout=None).monitor() as monitor:

        def listen() -> None:
            for entry in monitor.listen():
                if END in entry["command"]:
                    return
                if entry["client_type"] != "lua":
                    lines.append(entry["command"])

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield lines
        finally:
            server.client.echo(END)
            thread.join()


def test_a_task_costs_its_engine_two_round_trips(bench: Bench, locks_server: RedisServer) -> None:
    """One to take the lock, one to give it back, and nothing else that comes with a task."""
    steps = {build(step).sha: step for step in ("acquire", "release")}
    with recorded(locks_server) as lines:
        bench.round("single", TASKS)
    sent: dict[str, list[str]] = {}
    others = []
    for line in lines:
        found = re.search(r"single:number=\d+", line)
        if found:
            sent.setdefault(found[0], []).append(steps.get(line.split()[1], line))
        else:
            others.append(line)
    assert len(sent) == TASKS
    assert Counter(map(tuple, sent.values())) == {("acquire", "release"): TASKS}
    assert len(others) <= BY_THE_CLOCK, others


def test_a_task_costs_its_broker_and_result_backend_nothing(
    bench: Bench, broker: RedisServer
) -> None:
    """They get as many commands for it as for a bare one."""
    sent = []
    for task in ("bare", "single"):
        with recorded(broker) as lines:
            bench.round(task, TASKS)
        sent.append(len(lines))
    assert sent[0] > TASKS
    assert sent[1] - sent[0] <= TASKS // 2, sent
