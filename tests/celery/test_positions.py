"""Where a locked body may stand in Celery, and what policies do where there is no message.

In this process, on a real server. What real workers do with messages is tested elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.utils import uuid

from lockapp.celery import current_lease, single_instance, was_skipped
from lockapp.exceptions import NotAcquired
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

pytestmark = [pytest.mark.usefixtures("redis_locks")]


def _eager(task: Any, *args: Any) -> Any:
    task.app.conf.task_always_eager = True
    return task.delay(*args).get()


WAYS: dict[str, Callable[..., Any]] = {
    "direct": lambda task, *args: task(*args),
    "apply": lambda task, *args: task.apply(args).get(),
    "eager": _eager,
}
ways = pytest.mark.parametrize("way", WAYS)


class Scene:
    """A task whose body waits at a gate, and threads that run it."""

    def __init__(self, app: Celery, pool: ThreadPoolExecutor) -> None:
        """Nothing runs yet."""
        self.app, self._pool = app, pool
        self.gate, self.runs = threading.Event(), 0
        self.running = threading.Semaphore(0)

    def task(self, **options: Any) -> Any:
        """A task on "order:{order_id}"; it returns how many runs there were, or fails."""

        def capture(order_id: int, fails: bool = False) -> int:
            self.runs += 1
            count = self.runs
            self.running.release()
            assert self.gate.wait(scaled(20))
            if fails:
                raise KeyError("no such order")
            return count

        decorated = single_instance(key="order:{order_id}", **options)(capture)
        return self.app.task(name="capture")(decorated)

    def start(self, way: str, task: Any, *args: Any) -> Future[Any]:
        """Run the task in a thread. In eager mode one at a time: Celery changes global state."""
        return self._pool.submit(WAYS[way], task, *args)

    def wait_running(self) -> None:
        """Wait until one more body runs."""
        assert self.running.acquire(timeout=scaled(10))


@pytest.fixture
def scene(app: Celery) -> Iterator[Scene]:
    """The gate opens at the end, and the threads end."""
    with ThreadPoolExecutor(3) as pool:
        made = Scene(app, pool)
        yield made
        made.gate.set()


# ------------------------------------------------------------------ policies without a message


@ways
@pytest.mark.parametrize("policy", ["retry", "rerun"])
def test_without_a_message_nothing_can_come_back(scene: Scene, way: str, policy: str) -> None:
    """So the call fails, and its body does not run; also when it comes after the other one."""
    task = scene.task(on_contention=policy)
    first = scene.start("direct", task, 7)
    scene.wait_running()
    with pytest.raises(NotAcquired):
        WAYS[way](task, 7)
    scene.gate.set()
    assert first.result() == 1
    assert WAYS[way](task, 7) == 2


@ways
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_joins_the_one_that_runs(
    scene: Scene, redis_server: RedisServer, way: str, fails: bool
) -> None:
    """It ends with its result, or its error."""
    task = scene.task(on_contention="join")
    calls = [scene.start("direct", task, 7, fails)]
    scene.wait_running()
    calls.append(scene.start(way, task, 7, fails))

    def follows() -> bool:
        clients = redis_server.client.client_list()
        return any("b" in it["flags"] and it["cmd"] == "xread" for it in clients)

    wait_until(follows, limit_s=10, what="a follower")
    scene.gate.set()
    for call in calls:
        if fails:
            with pytest.raises(KeyError, match="no such order"):
                call.result()
        else:
            assert call.result() == 1
    assert scene.runs == 1


@ways
def test_a_call_ends_with_what_is_remembered(scene: Scene, way: str) -> None:
    """Of another order nothing is."""
    scene.gate.set()
    task = scene.task(remember=60)
    assert [WAYS[way](task, order) for order in (7, 7, 8, 7)] == [1, 1, 2, 1]


@ways
def test_calls_are_counted_against_the_limit(scene: Scene, way: str) -> None:
    """Two run, the third is skipped."""
    task = scene.task(limit=2)
    calls = [scene.start("direct", task, 7) for _ in range(2)]
    scene.wait_running()
    scene.wait_running()
    assert was_skipped(WAYS[way](task, 7))
    scene.gate.set()
    assert sorted(call.result() for call in calls) == [1, 2]


# ------------------------------------------------------------------ retries in eager mode


@pytest.mark.parametrize("way", ["apply", "eager"])
@pytest.mark.parametrize("own", [True, False])
def test_a_retry_in_eager_mode_does_not_meet_the_lock_of_the_run_it_comes_from(
    app: Celery, way: str, own: bool
) -> None:
    """Celery runs it within the same call: the body's own `retry()`, or `autoretry_for`."""
    fences = []

    def capture(self: Task[..., Any], order_id: int) -> int:
        fences.append(current_lease().fence)
        if self.request.retries < 2:
            raise self.retry(countdown=0) if own else KeyError("always")
        return self.request.retries

    options = {} if own else {"autoretry_for": (KeyError,), "retry_backoff": False}
    task = app.task(bind=True, name="capture", max_retries=2, default_retry_delay=0, **options)(
        single_instance(capture)
    )
    assert WAYS[way](task, 7) == 2
    assert fences == sorted(set(fences))
    assert len(fences) == 3


# ------------------------------------------------------------------ messages


def as_a_worker(task: Any, *args: Any, **request: Any) -> Any:
    """Run the task as a worker's child does, for a message with these headers."""
    trace = build_tracer(task.name, task, app=task.app)
    return trace(request.get("id", uuid()), args, {}, {"delivery_info": {}, **request}).retval


@pytest.mark.parametrize(
    ("options", "own", "setting", "of_the_message", "expected_s"),
    [
        ({}, None, None, None, 3600),  # the engine's
        ({}, None, 7200, None, 7205),
        ({}, 60, 7200, None, 65),
        ({}, 60, 7200, [30, None], 35),
        ({}, 60, 7200, [None, None], 65),
        ({"max_hold": 9}, 60, 7200, [30, None], 9),
    ],
)
def test_a_lock_outlasts_the_hard_limit_that_a_worker_enforces(
    app: Celery,
    options: dict[str, Any],
    own: int | None,
    setting: int | None,
    of_the_message: list[int | None] | None,
    expected_s: float,
) -> None:
    """The message's, the task's or everybody's, in this order; a `max_hold` of its own wins."""
    app.conf.task_time_limit = setting

    @app.task(name="capture", time_limit=own)
    @single_instance(**options)
    def capture(order_id: int) -> float:
        return current_lease().spec.max_hold_ms / 1000

    assert as_a_worker(capture, 7, timelimit=of_the_message) == expected_s


@pytest.mark.parametrize(
    ("backend", "ignores", "runs"),
    [
        ("cache+memory://", False, 1),
        ("cache+memory://", True, 2),
        (None, False, 2),
    ],
)
def test_a_second_delivery_runs_again_where_nobody_knows_that_the_first_one_succeeded(
    app: Celery, caplog: pytest.LogCaptureFixture, backend: str | None, ignores: bool, runs: int
) -> None:
    """It takes a result backend, and results that are kept. Having none is no error to log."""
    ran, message = [], uuid()
    app.conf.result_backend = backend

    @app.task(name="capture", ignore_result=ignores)
    @single_instance
    def capture(order_id: int) -> None:
        ran.append(order_id)

    for again in (False, True):
        delivery = {"redelivered": again}
        as_a_worker(capture, 7, id=message, ignore_result=ignores, delivery_info=delivery)
    assert len(ran) == runs
    assert [it for it in caplog.records if it.levelno >= logging.WARNING] == []


# ------------------------------------------------------------------ arguments


def test_a_task_that_does_not_check_its_arguments_fails_when_it_runs(app: Celery) -> None:
    """`typing=False`: the message is sent, and makes no key."""

    @app.task(name="capture", typing=False)
    @single_instance(key="order:{order_id}")
    def capture(order_id: int) -> None: ...

    app.conf.task_always_eager = True
    result = capture.apply_async(())
    assert result.state == "FAILURE"
    assert isinstance(result.result, TypeError)
    assert "order_id" in str(result.result)


def test_one_decorator_serves_many_tasks(app: Celery) -> None:
    """Each with its own name; what a project wants everywhere is said once."""
    patient = single_instance(on_contention="raise", ttl=20)
    names = []

    def reindex(shop: str) -> float:
        names.append(current_lease().name)
        return current_lease().spec.ttl_ms / 1000

    def resize(picture: int) -> float:
        return reindex(str(picture))

    tasks = [app.task(name=body.__name__)(patient(body)) for body in (reindex, resize)]
    assert [tasks[0]("books"), tasks[1](4)] == [20, 20]
    assert names == ["reindex:shop=books", "resize:picture=4"]
