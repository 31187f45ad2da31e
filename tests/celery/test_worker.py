"""@single_instance on a real prefork worker with two children. Everything is sent by name."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chord, group
from celery.exceptions import SoftTimeLimitExceeded

from lockapp.celery import was_skipped
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired, WaitTimeout
from tests.celery.conftest import PREFIX, Run, get, get_all
from tests.celery.worker import Worker
from tests.servers import RedisServer
from tests.timing import wait_until


@pytest.mark.parametrize("task", ["hold", "by_arguments"])
def test_of_ten_duplicates_one_runs_and_nine_say_that_they_were_skipped(
    run: Run, worker: Worker, task: str
) -> None:
    """The skips end while the body still runs, say who holds the lock, are logged and counted."""
    counted = _contended(run, task)
    results = [run.send(task) for _ in range(10)]
    (entered,) = run.wait_told("enter")
    wait_until(lambda: sum(r.ready() for r in results) == 9, limit_s=10, what="nine skips")
    run.open()
    values = get_all(results)
    skips = [value for value in values if was_skipped(value)]
    assert len(skips) == 9
    assert [value for value in values if not was_skipped(value)] == [0]
    assert len(run.told("enter")) == 1
    for skip in skips:
        assert skip["holder"]["task"] == task
        assert skip["holder"]["task_id"] == entered["id"]
        assert skip["holder"]["fence"] == entered["fence"]
    assert _contended(run, task) == counted + 9
    for result, value in zip(results, values, strict=True):
        assert (f"{task}[{result.id}] skipped: " in worker.log()) == was_skipped(value)


def test_different_keys_run_side_by_side(run: Run) -> None:
    """Two children, two keys: both bodies are inside at once."""
    results = [run.send("hold", 1), run.send("hold", 2)]
    entered = run.wait_told("enter", 2)
    assert not run.told("leave")
    assert len({event["pid"] for event in entered}) == 2
    run.open(1)
    run.open(2)
    assert get_all(results) == [1, 2]


def test_one_after_another_both_run(run: Run) -> None:
    """The lock is free when the first result is there, and the fence has grown."""
    run.open()
    assert get(run.send("hold")) == 0
    assert run.state() is None
    assert get(run.send("hold")) == 0
    first, second = run.told("enter")
    assert second["fence"] > first["fence"]


def test_the_holder_is_described_by_task_message_queue_worker_and_child(
    run: Run, worker: Worker
) -> None:
    """What an operator needs at three in the morning."""
    result = run.send("hold")
    (entered,) = run.wait_told("enter")
    state = run.state()
    assert state is not None
    description = state.holders[0].description
    assert {
        "task": "hold",
        "task_id": result.id,
        "retries": "0",
        "queue": run.broker.queue("shared"),
        "worker": worker.node,
        "pid": str(entered["pid"]),
    }.items() <= description.items()
    run.open()
    get(result)


def test_raise_fails_with_not_acquired_that_names_the_holder(run: Run) -> None:
    """The failure passes through the JSON result backend as itself, with its fields."""
    first = run.send("hold")
    run.wait_told("enter")
    with pytest.raises(
        NotAcquired, match=rf"'hold:{run.id}:0' is held by .*task_id {first.id}"
    ) as caught:
        get(run.send("hold_or_raise"))
    assert type(caught.value) is NotAcquired
    assert caught.value.name == f"hold:{run.id}:0"
    assert caught.value.holder.description["task_id"] == first.id
    run.open()
    assert get(first) == 0
    assert len(run.told("enter")) == 1


def test_raise_and_celerys_own_retry_come_back_when_the_lock_is_free(run: Run) -> None:
    """As the guide recommends; the wrapper that retries is outside of the one that locks."""
    first = run.send("hold")
    run.wait_told("enter")
    second = run.send("hold_or_retry")
    wait_until(lambda: second.state == "RETRY", what="a retry")
    run.open()
    assert get(first) == 0
    assert get(second) == 0
    assert len(run.told("enter")) == 2


def test_wait_runs_after_the_holder_has_ended(run: Run) -> None:
    """Blocked in the other child until the lock is handed over."""
    first = run.send("hold")
    run.wait_told("enter")
    second = run.send("hold_or_wait")
    wait_until(lambda: (run.state() or _nobody).waiter_count == 1, what="a waiter")
    run.open(count=1)
    assert get(first) == 0
    run.wait_told("enter", 2)
    run.open(count=1)
    assert get(second) == 0
    assert [event["what"] for event in _both(run)] == ["enter", "leave", "enter", "leave"]


def test_wait_fails_with_wait_timeout_when_it_was_in_vain(run: Run) -> None:
    """A TimeoutError; nothing stays queued."""
    first = run.send("hold")
    run.wait_told("enter")
    with pytest.raises(WaitTimeout, match=r"after waiting 0\.\d s"):
        get(run.send("hold_or_wait_briefly"))
    state = run.state()
    assert state is not None
    assert state.waiter_count == 0
    run.open()
    assert get(first) == 0
    assert len(run.told("enter")) == 1


def test_a_chord_with_duplicates_completes(run: Run) -> None:
    """A skip is an ordinary result, so the chord counts it (`Ignore` would hang it)."""
    members = [run.signature("hold", key) for key in (1, 1)]
    result = chord(members, app=run.client)(run.client.signature("count", queue="shared"))
    run.wait_told("enter")
    wait_until(lambda: sum(r.ready() for r in result.parent.results) == 1, what="one skip")
    run.open(1)
    values = get(result)
    assert sorted(map(was_skipped, values)) == [False, True]
    result.forget()


def test_the_next_link_of_a_chain_can_tell_a_skip(run: Run) -> None:
    """It gets the value itself."""
    first = run.send("hold")
    run.wait_told("enter")
    linked = run.signature("hold") | run.client.signature("count", queue="shared")
    assert was_skipped(get(linked.apply_async()))
    run.open()
    get(first)


def test_a_group_with_duplicates_completes(run: Run) -> None:
    """One value, one skip."""
    result = group([run.signature("hold"), run.signature("hold")], app=run.client)()
    run.wait_told("enter")
    wait_until(lambda: sum(r.ready() for r in result.results) == 1, what="one skip")
    run.open()
    assert sorted(was_skipped(get(member)) for member in result.results) == [False, True]


def test_retry_is_not_refused_by_its_own_lock(run: Run) -> None:
    """Each retry gives the lock back; the countdown is spent without it."""
    result = run.send("retry_twice")
    assert get(result) == 2
    assert [event["retries"] for event in run.told("enter")] == [0, 1, 2]
    assert run.state() is None


def test_autoretry_uses_its_retries_and_then_fails_with_the_error(run: Run) -> None:
    """Celery wraps the body once more; its name and arguments are still found."""
    with pytest.raises(KeyError, match="always"):
        get(run.send("autoretry_twice"))
    assert len(run.told("enter")) == 3
    assert run.engine.show(f"autoretry_twice:run={run.id}") is None


@pytest.mark.parametrize("how", ["error", "ignore", "reject"])
def test_the_lock_is_free_however_the_body_ends(run: Run, how: str) -> None:
    """Celery's own exceptions pass through untouched."""
    result = run.send("end", how)
    run.wait_told("enter")
    run.wait_free()
    if how == "error":
        with pytest.raises(ValueError, match="of the body itself"):
            get(result)
    else:
        assert not result.successful()


def test_the_soft_time_limit_passes_through_and_frees_the_lock(run: Run) -> None:
    """The body gets the exception, the lock goes back."""
    result = run.send("hold", soft_time_limit=1)
    with pytest.raises(SoftTimeLimitExceeded):
        get(result)
    run.wait_free()
    assert len(run.told("leave")) == 1


def test_the_soft_time_limit_also_ends_a_wait_for_the_lock(run: Run) -> None:
    """Nothing stays queued."""
    first = run.send("hold")
    run.wait_told("enter")
    with pytest.raises(SoftTimeLimitExceeded):
        get(run.send("hold_or_wait", soft_time_limit=1))
    wait_until(lambda: (run.state() or _nobody).waiter_count == 0, what="an empty queue")
    run.open()
    assert get(first) == 0
    assert len(run.told("enter")) == 1


@pytest.mark.parametrize(
    ("task", "fail", "expected"),
    [
        ("outstay", False, 7),
        ("outstay", True, ValueError),
        ("outstay_strictly", False, LeaseLost),
        ("outstay_strictly", True, ValueError),
    ],
)
def test_a_lost_lease_changes_the_outcome_only_when_asked_to(
    run: Run, worker: Worker, task: str, fail: bool, expected: Any
) -> None:
    """Held longer than max_hold: free for others, the result kept, the loss logged."""
    before = worker.log().count("was lost")
    result = run.send(task, fail)
    run.wait_told("enter")
    run.wait_free(limit_s=4)
    run.open()
    if isinstance(expected, int):
        assert get(result) == expected
    else:
        with pytest.raises(expected):
            get(result)
    wait_until(lambda: worker.log().count("was lost") > before, what="the warning")


def test_a_lease_that_an_operator_took_keeps_the_result(run: Run, worker: Worker) -> None:
    """The holder's warning names who took it and why."""
    result = run.send("hold")
    (entered,) = run.wait_told("enter")
    run.engine.force_release(run.name(), entered["fence"], actor="alice", reason="stuck")
    run.open()
    assert get(result) == 0
    wait_until(lambda: "alice" in worker.log(), what="the warning")


def test_an_engine_that_is_down_fails_the_task_and_never_skips_it(
    run: Run, frail_server: RedisServer
) -> None:
    """The body does not run; once the engine is back the same child runs it."""
    frail_server.kill()
    try:
        results = [run.send("on_frail_engine") for _ in range(2)]
        for result in results:
            with pytest.raises(EngineUnavailable):
                get(result)
            assert result.state == "FAILURE"
    finally:
        frail_server.start()
    assert not run.told("enter")
    run.open()
    assert get(run.send("on_frail_engine")) == 0


class _Nobody:
    waiter_count = -1


_nobody = _Nobody()


def _contended(run: Run, family: str) -> int:
    """How many requests of a family the engine has counted as contended."""
    keys = list(run.locks.scan_iter(f"{PREFIX}:*counts"))
    return sum(int(run.locks.hget(key, f"contended:{family}") or 0) for key in keys)


def _both(run: Run) -> list[dict[str, Any]]:
    return sorted(run.told("enter") + run.told("leave"), key=lambda event: event["at"])
