"""Workers, a client that sends by name, and one run's own corner of the broker."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult
from django.core.cache import cache

from lockapp.core.options import EngineOptions
from lockapp.core.values import LockState
from lockapp.engines.redis import RedisEngine
from lockapp.handler import locks
from tests.celery import brokers
from tests.celery.brokers import Broker
from tests.celery.deliveries import Deliveries
from tests.celery.worker import Worker
from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until

RESULT_LIMIT_S = 30
LEFT_S = 60
"""For how long a test's gates stay open after its end: longer than a body waits for them."""
PREFIX = "celery-suite"

_runs = itertools.count(1)


@pytest.fixture(scope="session")
def results_url(redis_server: RedisServer) -> str:
    """Database 1 of the shared server, for results and what bodies tell; for messages if it may."""
    return f"redis://127.0.0.1:{redis_server.port}/1"


@pytest.fixture(scope="session", params=brokers.chosen())
def broker(request: pytest.FixtureRequest, results_url: str) -> Iterator[Broker]:
    """Where messages go; every test of a worker runs once on each."""
    with brokers.broker(request.param, results_url) as made:
        yield made


@pytest.fixture(scope="session")
def frail_server() -> Iterator[RedisServer]:
    """The server of the engine alias "frail"."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def new_worker(
    redis_server: RedisServer,
    frail_server: RedisServer,
    broker: Broker,
    results_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Worker]:
    """Make a worker for a queue, with more options if need be; the caller starts and stops it."""
    environment = {
        "LOCKAPP_TEST_BROKER": broker.url,
        "LOCKAPP_TEST_QUEUES": broker.prefix,
        "LOCKAPP_TEST_RESULTS": results_url,
        "LOCKAPP_TEST_LOCKS": redis_server.url,
        "LOCKAPP_TEST_PREFIX": PREFIX,
        "LOCKAPP_TEST_FRAIL_LOCKS": frail_server.url,
    }
    folder = tmp_path_factory.mktemp("workers")

    def make(queue: str, more: dict[str, str] | None = None, **options: Any) -> Worker:
        log = folder / f"{options.get('name', queue)}.log"
        broker.queue(queue)  # so that it is removed in the end
        return Worker(queue, log, {**environment, **(more or {})}, **options)

    return make


@pytest.fixture(scope="session")
def worker(new_worker: Callable[..., Worker]) -> Iterator[Worker]:
    """The shared worker: prefork, two children. Its children may be killed, itself not."""
    with new_worker("shared") as started:
        yield started


@pytest.fixture
def other_worker(new_worker: Callable[..., Worker]) -> Iterator[Callable[..., Worker]]:
    """Start a worker for the queue named. Killed at the end of the test, if it has not been."""
    started: list[Worker] = []

    def start(queue: str, *args: Any, **options: Any) -> Worker:
        started.append(new_worker(queue, *args, **options).start())
        return started[-1].wait_ready()

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def client(broker: Broker, results_url: str) -> Iterator[Celery]:
    """An application that knows no task: everything is sent by name."""
    app = Celery(
        "client", broker=broker.url, backend=results_url, set_as_current=False,
        amqp=brokers.amqp_with(broker.prefix),
    )  # fmt: skip
    app.conf.task_default_queue = "shared"
    app.conf.task_queues = [brokers.queue_of(broker.prefix, "shared")]
    yield app
    # Results that a traceback or a cycle keeps alive until the servers are gone would unsubscribe.
    app.backend.remove_pending_result = lambda result: result
    app.close()
    app.backend.client.connection_pool.disconnect()


@dataclass
class Run:
    """One test's messages, gates and what its bodies told."""

    client: Celery
    broker: Broker
    worker: Worker
    server: redis.Redis
    engine: RedisEngine
    locks: redis.Redis
    id: str
    sent: list[AsyncResult[Any]] = field(default_factory=list)
    consumed: set[str] = field(default_factory=set)

    def send(self, task: str, *args: object, queue: str = "shared", **options: Any) -> Any:
        """Send a task by name; the run comes first among its arguments."""
        result = self.client.send_task(task, (self.id, *args), queue=queue, **options)
        self.sent.append(result)
        return result

    def result(self, task_id: str) -> AsyncResult[Any]:
        """The outcome of whatever has this id."""
        return self.client.AsyncResult(task_id)

    def revoke(self, task_id: str, worker: Worker, **options: Any) -> None:
        """Revoke a task; return when the worker has heard of it."""
        told = self.client.control.revoke(
            task_id, destination=[worker.node], reply=True, timeout=scaled(10), **options
        )
        assert told, "the worker did not answer"

    def consume(self, queue: str) -> None:
        """Have the shared worker take from a queue as well, from now until the end of the test."""
        self._tell_worker("add_consumer", queue)
        self.consumed.add(queue)

    def consume_no_more(self) -> None:
        """End what consume() began."""
        while self.consumed:
            self._tell_worker("cancel_consumer", self.consumed.pop())

    def _tell_worker(self, what: str, queue: str) -> None:
        order = getattr(self.client.control, what)
        told = order(
            self.broker.queue(queue),
            destination=[self.worker.node], reply=True, timeout=scaled(10),
        )  # fmt: skip
        assert told, "the worker did not answer"

    def signature(self, task: str, *args: object) -> Any:
        """A signature by name, the run first."""
        return self.client.signature(task, (self.id, *args), queue="shared")

    def told(self, what: str) -> list[dict[str, Any]]:
        """What bodies told so far, of one kind, in order."""
        events = [json.loads(line) for line in self.server.lrange(f"told:{self.id}", 0, -1)]
        return [event for event in events if event["what"] == what]

    def wait_told(self, what: str, count: int = 1, limit_s: float = 10) -> list[dict[str, Any]]:
        """Wait until bodies told it that often."""
        wait_until(lambda: len(self.told(what)) >= count, limit_s=limit_s, what=f"{count} × {what}")
        return self.told(what)

    def open(self, key: object = 0, count: int = 20) -> None:
        """Let the next bodies of this key through."""
        self.server.rpush(f"gate:{self.id}:{key}", *["open"] * count)

    def state(self, family: str = "hold", key: object = 0) -> LockState | None:
        """The lock as the server has it; None when it is free."""
        return self.engine.show(self.name(family, key))

    def name(self, family: str = "hold", key: object = 0) -> str:
        """The lock's name."""
        return f"{family}:{self.id}:{key}"

    def wait_free(self, key: object = 0, limit_s: float = 5) -> None:
        """Wait until the lock is free."""
        wait_until(lambda: self.state(key=key) is None, limit_s=limit_s, what="a free lock")


def get(result: AsyncResult[Any], limit_s: float = RESULT_LIMIT_S) -> Any:
    """Return a task's result, or raise its failure."""
    return result.get(timeout=scaled(limit_s), interval=0.02, disable_sync_subtasks=False)


def drop_reports(engine: Any) -> None:
    """Forget which runs had no lock: a watchdog waits for a server that nobody brings back."""
    backlog, port = engine.sync.watchdog._backlog, engine.sync
    while backlog:
        backlog.done(backlog.next(port.part_of))


def get_all(results: list[AsyncResult[Any]]) -> list[Any]:
    """See get()."""
    return [get(result) for result in results]


@pytest.fixture(scope="session")
def engine(redis_server: RedisServer) -> Iterator[RedisEngine]:
    """The workers' locks, seen from the test."""
    options = EngineOptions.parse({"prefix": PREFIX})
    seen = RedisEngine("default", redis_server.url, options)
    yield seen
    seen.close()


@pytest.fixture
def run(
    worker: Worker,
    client: Celery,
    engine: RedisEngine,
    redis_server: RedisServer,
    broker: Broker,
    results_url: str,
) -> Iterator[Run]:
    """A run of its own. At the end every gate opens, and what was sent must end."""
    server = redis.Redis.from_url(results_url, decode_responses=True)
    number = f"r{os.getpid()}x{next(_runs)}"
    this = Run(client, broker, worker, server, engine, redis_server.client, number)
    yield this
    this.consume_no_more()
    # They stay open for a while: a body may be on its way to its gate, and would block a child.
    for key in {"0", *(str(event.get("key", 0)) for event in this.told("enter"))}:
        this.open(key)
    for left in [*server.scan_iter(f"told:{this.id}"), *server.scan_iter(f"gate:{this.id}:*")]:
        server.expire(left, LEFT_S)
    server.close()


class Secluded(Celery):
    """An application whose tasks no other one gets."""

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})


@pytest.fixture
def app() -> Iterator[Celery]:
    """An application of the test's own. Nothing is connected."""
    made = Secluded("calls", broker="memory://", set_as_current=False)
    yield made
    made.close()


@pytest.fixture
def deliveries(settings: Any) -> Iterator[Deliveries]:
    """An application whose messages the test delivers; locks, messages and results in memory."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.memory.MemoryEngine",
            "LOCATION": f"deliveries{next(_runs)}",
            "OPTIONS": {"single_process": True},
        },
        "down": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": f"redis://127.0.0.1:{free_port()}/0",
        },
    }
    made = Deliveries()
    yield made
    made.close()
    cache.clear()
    locks.close_all()
