"""Direct calls, apply() and eager mode take the lock too. In this process, on a real server."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task, _state
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded

from lockapp import signals
from lockapp.celery import current_lease, single_instance, was_skipped
from lockapp.celery.turned import TurnedAway
from lockapp.exceptions import AlreadyHeld, EngineUnavailable, NotAcquired, NotHeld, WaitTimeout
from lockapp.handler import lock, locks
from tests.servers import RedisServer, free_port
from tests.timing import wait_until

pytestmark = [pytest.mark.usefixtures("redis_locks")]


@pytest.fixture
def current(app: Celery) -> Iterator[None]:
    """Make the test's application the current one."""
    before = _state._tls.current_app
    app.set_current()
    yield
    _state._set_current_app(before)


@pytest.fixture
def elsewhere(redis_locks: Any) -> Iterator[Callable[..., Any]]:
    """Hold a lock as another thread would: the owner is not the thread of the test."""
    import threading

    ended = threading.Event()
    threads = []

    def hold(*parts: object) -> None:
        entered = threading.Event()

        def holder() -> None:
            with lock(*parts, why="elsewhere"):
                entered.set()
                ended.wait(20)

        threads.append(threading.Thread(target=holder))
        threads[-1].start()
        assert entered.wait(5)

    yield hold
    ended.set()
    for thread in threads:
        thread.join()


def _eager(task: Any) -> Any:
    task.app.conf.task_always_eager = True
    return task


WAYS: dict[str, Callable[[Any], Any]] = {
    "direct": lambda task: task(7),
    "run": lambda task: task.run(7),
    "apply": lambda task: task.apply((7,)).get(),
    "eager": lambda task: _eager(task).delay(7).get(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bound", [True, False])
def test_every_way_to_call_a_task_takes_the_lock(
    app: Celery, current: None, redis_locks: Any, way: str, bound: bool
) -> None:
    """The same lock by the same name, whether the task is bound or not."""
    names = []

    def body(order_id: int) -> int:
        names.append(current_lease().name)
        return order_id

    def bound_body(task: Task[..., Any], order_id: int) -> int:
        assert task.name == "capture"
        return body(order_id)

    decorated: Any = single_instance(bound_body if bound else body)
    task = app.task(bind=bound, name="capture")(decorated)
    assert WAYS[way](task) == 7
    assert names == ["capture:order_id=7"]
    assert redis_locks["default"].show("capture:order_id=7") is None


def test_a_method_of_a_task_class_is_locked_under_its_name(app: Celery) -> None:
    """`run` of a class-based task, also inherited under another name."""
    names = []

    class Capture(Task):
        name = "capture"

        @single_instance
        def run(self, order_id: int) -> int:
            names.append(current_lease().name)
            return order_id

    class Refund(Capture):
        name = "refund"

    assert app.register_task(Capture())(7) == 7
    assert app.register_task(Refund()).apply((7,)).get() == 7
    assert names == ["capture:order_id=7", "refund:order_id=7"]


@pytest.mark.parametrize("way", ["direct", "apply", "eager"])
def test_skip_returns_a_recognisable_value_and_logs(
    app: Celery, elsewhere: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The body does not run."""

    @app.task(name="capture")
    @single_instance(key="order:{order_id}")
    def capture(order_id: int) -> int:
        raise AssertionError("ran")

    elsewhere("order", 7)
    with caplog.at_level(logging.INFO, logger="lockapp"):
        value = WAYS[way](capture)
    assert was_skipped(value)
    assert value["name"] == "order:7"
    assert value["holder"] is not None
    assert value["holder"]["why"] == "elsewhere"
    (record,) = [
        r for r in caplog.records if r.name.startswith("lockapp") and "skipped" in r.getMessage()
    ]
    assert record.levelno == logging.INFO
    assert "capture" in record.getMessage()
    assert record.__dict__["lockapp_name"] == "order:7"


@pytest.mark.parametrize(("policy", "error"), [("raise", NotAcquired), ("wait", WaitTimeout)])
def test_raise_and_wait_fail_without_running_the_body(
    app: Celery, elsewhere: Any, policy: Any, error: type[NotAcquired]
) -> None:
    """And the failure survives a pickle with its fields."""
    options: Any = {"wait": 0.05} if policy == "wait" else {}

    @app.task(name="capture")
    @single_instance(key="order:{order_id}", on_contention=policy, **options)
    def capture(order_id: int) -> int:
        raise AssertionError("ran")

    elsewhere("order", 7)
    with pytest.raises(error) as caught:
        capture(7)
    assert type(caught.value) is error
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.name == "order:7"
    assert again.holder.description["why"] == "elsewhere"


def test_not_acquired_from_inside_the_body_is_the_bodys_own(app: Celery, elsewhere: Any) -> None:
    """It is not taken for the task's own contention: no skip."""

    @app.task(name="capture")
    @single_instance
    def capture(order_id: int) -> None:
        lock("stock", order_id).acquire(wait=0)

    elsewhere("stock", 7)
    with pytest.raises(NotAcquired, match="stock:7"):
        capture(7)


def test_the_same_key_deeper_in_the_same_call_is_an_error_at_once(app: Celery) -> None:
    """Waiting would be waiting for oneself; skipping would hide it."""

    @app.task(bind=True, name="capture")
    @single_instance(key="order:{order_id}")
    def capture(self: Task[..., Any], order_id: int, again: bool = True) -> object:
        return self(order_id, again=False) if again else "inner"

    with pytest.raises(AlreadyHeld):
        capture(7)
    with lock("order", 7), pytest.raises(AlreadyHeld):
        capture(7)


def test_another_tasks_body_may_call_run_without_lending_its_name(
    app: Celery, current: None
) -> None:
    """`task.run()` makes no request of its own: the one found first is the caller's."""
    names = []

    @app.task(name="inner")
    @single_instance
    def inner(order_id: int) -> None:
        names.append(current_lease().name)

    @app.task(name="outer")
    @single_instance
    def outer(order_id: int) -> None:
        inner.run(order_id)
        names.append(current_lease().name)

    outer.apply((7,)).get()
    assert names == ["inner:order_id=7", "outer:order_id=7"]


def test_an_engine_that_is_down_is_never_a_skip(settings: Any, app: Celery) -> None:
    """Not with skip, not in eager mode; the body does not run."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": f"redis://127.0.0.1:{free_port()}/0",
        }
    }

    @app.task(name="capture")
    @single_instance
    def capture(order_id: int) -> int:
        raise AssertionError("ran")

    with pytest.raises(EngineUnavailable):
        capture(7)
    result = capture.apply((7,))
    assert result.state == "FAILURE"
    assert isinstance(result.result, EngineUnavailable)


def test_a_task_that_may_runs_although_the_engine_is_down(
    settings: Any, app: Celery, fresh_redis: RedisServer
) -> None:
    """Its lease says so; a word that is none is refused when it is written."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    fresh_redis.kill()

    @app.task(name="refresh")
    @single_instance(on_unavailable="open")
    def refresh() -> str:
        return current_lease().degraded

    assert refresh() == "open"
    assert refresh.apply().get() == "open"
    with pytest.raises(ValueError, match="on_unavailable"):
        single_instance(on_unavailable="skip")  # type: ignore[call-overload]
    fresh_redis.start()  # the runs are recorded now, and the watchdog ends
    engine = locks["default"]
    wait_until(lambda: not engine.sync.watchdog._backlog, limit_s=15, what="the reports")
    locks.close_all()


@pytest.mark.parametrize("error", [ValueError("x"), Retry("x"), Reject("x"), KeyboardInterrupt()])
def test_whatever_the_body_raises_passes_through_and_frees_the_lock(
    app: Celery, redis_locks: Any, error: BaseException
) -> None:
    """The very object."""

    @app.task(name="capture")
    @single_instance(key="order:{order_id}")
    def capture(order_id: int) -> int:
        raise error

    with pytest.raises(type(error)) as caught:
        capture(7)
    assert caught.value is error
    assert redis_locks["default"].show("order:7") is None


def test_a_coroutine_that_nobody_would_run_is_an_error(app: Celery) -> None:
    """A sync function that only makes one, found out when it returns."""

    async def later() -> None: ...

    @app.task(name="capture")
    @single_instance
    def capture(order_id: int) -> object:
        return later()

    with pytest.raises(TypeError, match="returned a coroutine"):
        capture(7)


@pytest.mark.parametrize(
    ("given", "limit", "expected_s"), [({}, 5, 3600), ({"max_hold": 9}, 5, 9), ({}, None, 3600)]
)
def test_max_hold_without_a_worker_is_the_engines_or_ones_own(
    app: Celery, given: dict[str, Any], limit: int | None, expected_s: float
) -> None:
    """Nobody enforces the task's hard limit on a direct call or in eager mode."""

    @app.task(name="capture", time_limit=limit)
    @single_instance(**given)
    def capture(order_id: int) -> float:
        return current_lease().spec.max_hold_ms / 1000

    assert capture(7) == expected_s
    assert capture.apply((7,)).get() == expected_s


def test_there_is_no_lease_outside_of_a_body() -> None:
    """Said so, instead of None."""
    with pytest.raises(NotHeld, match="no @single_instance task runs here"):
        current_lease()


@pytest.mark.parametrize("value", [None, 7, "skipped", ["lockapp"], {}, {"lockapp": "other"}])
def test_other_values_are_no_skips(value: object) -> None:
    """Nor does asking fail."""
    assert not was_skipped(value)


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_task_may_want_to_hear_of_a_request_or_a_loss(app: Celery, redis_locks: Any) -> None:
    """By a function; each run's own lease is handed to it."""
    heard: list[tuple[str, str]] = []
    engine = redis_locks["default"]

    @app.task
    @single_instance(
        key="order:{order_id}",
        on_lost=lambda lease: heard.append(("lost", lease.name)),
        on_revoke=lambda lease: heard.append(("asked", lease.name)),
    )
    def capture(order_id: int) -> int:
        lease = current_lease()
        engine.revoke(lease.name, lease.fence, actor="op", reason="deploy")
        lease.renew()
        engine.force_release(lease.name, lease.fence, actor="op", reason="stuck")
        return order_id

    assert [capture(1), capture(2)] == [1, 2]
    assert heard == [(what, f"order:{order}") for order in (1, 2) for what in ("asked", "lost")]


def test_a_word_that_is_not_known_is_refused_at_decoration() -> None:
    """Naming the ones that are."""
    with pytest.raises(ValueError, match="on_lost must be 'raise', None or a function"):
        single_instance(on_lost="terminate")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("policy", "outcome"), [("skip", "skipped"), ("raise", "refused"), ("retry", "refused")]
)
def test_a_run_that_is_turned_away_is_told(
    app: Celery, current: None, redis_locks: Any, elsewhere: Any, policy: str, outcome: str
) -> None:
    """By a signal, for counting per task. Without a message there is nothing to send again."""

    @app.task(name="shipping")
    @single_instance(key="order:{order_id}", on_contention=policy)  # type: ignore[call-overload]
    def task(order_id: int) -> int:
        return order_id

    heard = []

    def receiver(run: TurnedAway, **about: Any) -> None:
        heard.append(run)

    signals.task_turned_away.connect(receiver)
    elsewhere("order", 7)
    try:
        task(7)
    except NotAcquired:
        assert outcome == "refused"
    finally:
        signals.task_turned_away.disconnect(receiver)
    assert heard == [TurnedAway("order:7", "shipping", None, outcome)]


@pytest.mark.keeps_keys  # a tombstone
@pytest.mark.parametrize("where", ["lock_acquired", "lock_released"])
def test_a_soft_time_limit_that_strikes_in_a_receiver_ends_the_task(
    app: Celery, current: None, redis_locks: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an `Exception`, and says nothing about the receiver."""
    # A log record that is kept keeps the error, its frames and so the lease.
    monkeypatch.setattr(logging.getLogger("django.dispatch"), "disabled", True)

    @app.task(name="shipping")
    @single_instance(key="order:{order_id}")
    def task(order_id: int) -> int:
        return order_id

    def receiver(**about: Any) -> None:
        raise SoftTimeLimitExceeded

    signal = getattr(signals, where)
    signal.connect(receiver)
    try:
        with pytest.raises(SoftTimeLimitExceeded):
            task(7)
    finally:
        signal.disconnect(receiver)
    wait_until(lambda: redis_locks["default"].show("order:7") is None, what="a free lock")


@pytest.mark.keeps_keys  # a tombstone
def test_a_soft_time_limit_that_strikes_in_a_callback_ends_the_task(
    app: Celery, current: None, redis_locks: Any
) -> None:
    """A callback's other errors are logged."""
    lease = lock("order", 7).acquire()

    def callback(lease: Any) -> None:
        raise SoftTimeLimitExceeded

    lease.on_lost(callback)
    redis_locks["default"].force_release("order:7", lease.fence, actor="alice", reason="stuck")
    with pytest.raises(SoftTimeLimitExceeded):
        lease.release()
