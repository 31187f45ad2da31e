"""The Celery application that the worker processes of the suite run, and its tasks.

A body tells what happens through a list on the server of the results, and goes on when the test
opens its gate: nobody waits for a guess. Task names are short words; tests send them by name only,
as another service would.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, cast

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from lockapp.celery import current_lease, single_instance
from lockapp.exceptions import NotAcquired
from tests.celery.brokers import amqp_with, queue_of

GATE_LIMIT_S = 50
"""A body whose gate nobody opens ends by itself, so that no test run hangs."""

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.celery.worker_settings")
RESULTS = os.environ["LOCKAPP_TEST_RESULTS"]
QUEUES = os.environ.get("LOCKAPP_TEST_QUEUES", "")
OwnAMQP = amqp_with(QUEUES)

app = Celery(
    "tests.celery",
    broker=os.environ["LOCKAPP_TEST_BROKER"],
    backend=RESULTS,
    amqp="tests.celery.app:OwnAMQP",  # by name: children may be spawned and get it pickled
)
app.conf.update(
    imports=[
        "tests.celery.argument_tasks",
        "tests.celery.lost_work_tasks",
        "tests.celery.policy_tasks",
        "tests.celery.pool_tasks",
        "tests.celery.semantics.tasks",
    ],
    task_queues=[queue_of(QUEUES, name) for name in ("celery", "later")],
    broker_connection_retry_on_startup=False,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    task_acks_on_failure_or_timeout=True,
)

_clients: dict[int, redis.Redis] = {}


def _client() -> redis.Redis:
    """One client per process: a child must not speak on its parent's connection."""
    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis.Redis.from_url(RESULTS, socket_timeout=None)
    return _clients[os.getpid()]


def _tell(run: str, what: str, **more: Any) -> None:
    event = {"what": what, "pid": os.getpid(), "at": time.time(), **more}
    _client().rpush(f"told:{run}", json.dumps(event))


def _body(task: Task[..., Any], run: str, key: object = 0, result: object = None) -> Any:
    """Enter, wait for the gate of this run and key, leave."""
    _tell(run, "enter", key=key, id=task.request.id, fence=current_lease().fence)
    try:
        _client().blpop([f"gate:{run}:{key}"], timeout=GATE_LIMIT_S)
    finally:
        _tell(run, "leave", key=key, id=task.request.id)
    return key if result is None else result


@app.task(bind=True, name="hold")
@single_instance(key="hold:{run}:{key}")
def hold(self: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(self, run, key)


@app.task(bind=True, name="hold_dearly")
@single_instance(key="hold:{run}:{key}", ttl=3)
def hold_dearly(self: Task[..., Any], run: str, key: int = 0) -> object:
    """For tests that kill it. The others need no lease that a starved machine could lose."""
    return _body(self, run, key)


@app.task(bind=True, name="by_arguments")
@single_instance
def by_arguments(this: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(this, run, key)


@app.task(bind=True, name="hold_or_raise")
@single_instance(key="hold:{run}:{key}", on_contention="raise")
def hold_or_raise(self: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(self, run, key)


@app.task(bind=True, name="hold_or_wait")
@single_instance(key="hold:{run}:{key}", on_contention="wait", wait=10)
def hold_or_wait(self: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(self, run, key)


@app.task(bind=True, name="hold_or_wait_briefly")
@single_instance(key="hold:{run}:{key}", on_contention="wait", wait=0.3)
def hold_or_wait_briefly(self: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(self, run, key)


@app.task(
    bind=True,
    name="hold_or_retry",
    autoretry_for=(NotAcquired,),
    retry_kwargs={"countdown": 0.1, "max_retries": 100},
)
@single_instance(key="hold:{run}:{key}", on_contention="raise")
def hold_or_retry(self: Task[..., Any], run: str, key: int = 0) -> object:
    return _body(self, run, key)


@app.task(bind=True, name="on_frail_engine")
@single_instance(key="frail:{run}", using="frail")
def on_frail_engine(self: Task[..., Any], run: str) -> object:
    return _body(self, run)


@app.task(bind=True, name="outstay")
@single_instance(key="hold:{run}:{key}", ttl=1, max_hold=1)
def outstay(self: Task[..., Any], run: str, fail: bool = False, key: int = 0) -> object:
    _body(self, run, key)
    if fail:
        raise ValueError("of the body itself")
    return 7


@app.task(bind=True, name="outstay_strictly")
@single_instance(key="hold:{run}:{key}", ttl=1, max_hold=1, on_lost="raise")
def outstay_strictly(self: Task[..., Any], run: str, fail: bool = False, key: int = 0) -> object:
    _body(self, run, key)
    if fail:
        raise ValueError("of the body itself")
    return 7


@app.task(bind=True, name="retry_twice", max_retries=2)
@single_instance(key="hold:{run}:{key}")
def retry_twice(self: Task[..., Any], run: str, key: int = 0) -> int:
    _tell(run, "enter", retries=self.request.retries, key=key)
    if self.request.retries < 2:
        raise self.retry(countdown=0.4)  # Celery stores RETRY after it has sent it
    return self.request.retries


@app.task(
    name="autoretry_twice",
    autoretry_for=(KeyError,),
    retry_kwargs={"countdown": 0.4, "max_retries": 2},
)
@single_instance
def autoretry_twice(run: str) -> None:
    _tell(run, "enter")
    raise KeyError("always")


@app.task(name="end")
@single_instance(key="hold:{run}:{key}")
def end(run: str, how: str, key: int = 0) -> None:
    _tell(run, "enter")
    raise {
        "error": ValueError("of the body itself"),
        "ignore": Ignore(),
        "reject": Reject("no", requeue=False),
    }[how]


@app.task(bind=True, name="deaf")
@single_instance(key="hold:{run}:{key}", ttl=3)
def deaf(self: Task[..., Any], run: str, key: int = 0) -> object:
    """Deaf to the SIGTERM that comes with the hard limit, as a body inside a C library is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _body(self, run, key)


@app.task(name="count")
def count(values: list[object]) -> list[object]:
    """The body of a chord: hands back what it got."""
    return cast("list[object]", values)
