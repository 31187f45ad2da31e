"""Each cell of docs/reference/celery-semantics.md on a real worker; the page is the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from lockapp.celery import LockTask
from lockapp.core.options import EngineOptions
from lockapp.engines.redis import RedisEngine
from lockapp.handler import locks
from tests.celery.brokers import Broker, amqp_with, queue_of
from tests.celery.conftest import PREFIX, Run
from tests.celery.semantics.bodies import define
from tests.celery.semantics.page import PAGE, page
from tests.celery.semantics.scene import Scene
from tests.celery.semantics.table import Event, cells
from tests.celery.semantics.words import Fate
from tests.celery.worker import Worker
from tests.servers import RedisServer
from tests.timing import wait_until

FRAIL_OPTIONS = {"connect_timeout": 0.5, "command_timeout": 0.5}


@pytest.fixture(scope="module")
def frail_engine(frail_server: RedisServer) -> Iterator[RedisEngine]:
    """The engine "frail" of the workers, seen from the test."""
    seen = RedisEngine("frail", frail_server.url, EngineOptions())
    yield seen
    seen.close()


@pytest.fixture
def sender(
    client: Celery,
    settings: Any,
    redis_url: str,
    frail_server: RedisServer,
    broker: Broker,
    results_url: str,
) -> Iterator[Celery]:
    """An application that knows the tasks, and the engines of the workers."""
    settings.LOCKAPP = {
        "default": {"LOCATION": redis_url, "OPTIONS": {"prefix": PREFIX}},
        "frail": {"LOCATION": frail_server.url, "OPTIONS": FRAIL_OPTIONS},
    }
    app = Celery(
        "sender", broker=broker.url, backend=results_url, set_as_current=False,
        amqp=amqp_with(broker.prefix),
    )  # fmt: skip
    app.conf.task_queues = [queue_of(broker.prefix, "shared")]
    define(app, base=LockTask)
    yield app
    app.backend.remove_pending_result = lambda result: result
    app.close()
    app.backend.client.connection_pool.disconnect()
    locks.close_all()


@pytest.fixture
def scene(
    scope: str,
    run: Run,
    worker: Worker,
    other_worker: Callable[..., Worker],
    frail_server: RedisServer,
    frail_engine: RedisEngine,
    sender: Celery,
    tmp_path: Path,
) -> Scene:
    """Where a row is played."""
    return Scene(
        scope, run, worker, other_worker, run.engine, frail_server, frail_engine, sender, tmp_path
    )


@pytest.mark.parametrize(("scope", "event"), cells(), ids=lambda it: getattr(it, "words", it))
def test_the_table_says_what_happens(scene: Scene, scope: str, event: Event) -> None:
    """Lock, number of runs, state, result; no two bodies at once; and nothing stays in the way."""
    cell = event.cell(scope)
    assert cell is not None
    result = event.steps(scene)
    if cell.place is not None:
        cell.place.check(scene)
    cell.lock.check(scene)
    cell.result.check(result)
    wait_until(lambda: len(scene.run.told("enter")) >= cell.runs, limit_s=15, what="all runs")
    scene.next_copy_runs()
    assert result.state == cell.state
    assert len(scene.run.told("enter")) == cell.runs + 1
    if cell.place is not None and cell.place.endings:
        assert scene.endings_of_place()[0] in cell.place.endings
    if cell.lock is Fate.UNLIMITED:
        assert scene.endings() == []
        return
    assert not scene.overlapped()
    # A message that met itself may look once more, under the lock, and not run.
    first, *others = scene.endings()
    assert first == (cell.lock.ending or "released")
    assert set(others) <= {"released"}
    assert (len(others) == 0) == (cell.lock is Fate.NEVER)


def test_the_page_is_written_from_the_table() -> None:
    """`python -m tests.celery.semantics --write` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()
