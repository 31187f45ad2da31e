"""The ways in which a lock around a task can lose the task's work. None of them does here.

On a real worker, with messages sent by name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from django.core.management import call_command

from lockapp import tasks
from lockapp.celery import was_skipped
from lockapp.exceptions import NotAcquired
from tests.celery.brokers import purge, redeliver
from tests.celery.conftest import PREFIX, Run, get
from tests.celery.worker import CeleryProcess, Worker
from tests.timing import wait_until


class TestARetryIsNotSwallowed:
    """`retry()` is one more message of the same task, and its own run must not refuse it."""

    @pytest.mark.parametrize("policy", ["skip", "raise"])
    def test_each_retry_runs_and_the_lock_is_free_afterwards(self, run: Run, policy: str) -> None:
        """Three runs, and the result of the last."""
        assert get(run.send(f"lost.retry_or_{policy}")) == 2
        assert [event["retries"] for event in run.told("enter")] == [0, 1, 2]
        assert run.state() is None

    def test_between_two_tries_somebody_else_may_run(self, run: Run) -> None:
        """The lock is free during the countdown. The retry has its turn after that."""
        result = run.send("lost.retry_or_skip", 0, "later")
        wait_until(lambda: result.state == "RETRY", what="the first try")
        run.open(count=1)
        assert get(run.send("hold")) == 0
        assert result.state == "RETRY"
        run.consume("later")
        assert get(result) == 2
        assert [event.get("retries") for event in run.told("enter")] == [0, None, 1, 2]

    def test_a_retry_that_meets_somebody_else_ends_as_any_copy(self, run: Run) -> None:
        """With "raise" it fails, and does not vanish."""
        result = run.send("lost.retry_or_raise", 0, "later")
        wait_until(lambda: result.state == "RETRY", what="the first try")
        other = run.send("hold")
        run.wait_told("enter", 2)
        run.consume("later")
        with pytest.raises(NotAcquired):
            get(result)
        run.open()
        assert get(other) == 0


class TestAChordDoesNotHang:
    """A header member that ends without a result leaves a chord pending for ever."""

    def _chord(self, run: Run, task: str) -> Any:
        members = [run.signature(task, key) for key in (1, 1, 2)]
        return chord(members, app=run.client)(run.client.signature("count", queue="shared"))

    def test_its_body_runs_with_the_skip_in_place_of_the_result(self, run: Run) -> None:
        """Two duplicates and a third member."""
        result = self._chord(run, "hold")
        wait_until(lambda: any(it.ready() for it in result.parent.results), what="the skip")
        run.open(1)
        run.open(2)
        values = get(result)
        assert sorted(map(was_skipped, values)) == [False, False, True]
        assert sorted(value for value in values if not was_skipped(value)) == [1, 2]
        result.forget()

    def test_it_fails_where_a_duplicate_fails(self, run: Run) -> None:
        """As soon as the others have ended, with the reason."""
        result = self._chord(run, "hold_or_raise")
        wait_until(lambda: any(it.ready() for it in result.parent.results), what="the failure")
        run.open(1)
        run.open(2)
        wait_until(lambda: result.state == "FAILURE", limit_s=15, what="the failure of the chord")
        assert isinstance(result.result, ChordError)
        assert "NotAcquired" in str(result.result)
        result.forget()


class TestARedeliveryIsNotRejected:
    """The message of a run that died comes back, and its dead self's lock may still be there."""

    def test_the_work_is_done_after_the_death_of_the_child(self, run: Run) -> None:
        """By whoever asks first."""
        result = run.send("lost.work")
        (entered,) = run.wait_told("enter")
        os.kill(entered["pid"], signal.SIGKILL)
        run.wait_told("enter", 2)
        run.open()
        assert get(result) == "done"
        assert len(run.told("effect")) == 1

    def test_the_work_is_done_after_the_death_of_the_worker(
        self, run: Run, worker: Worker, other_worker: Callable[..., Worker]
    ) -> None:
        """The lease outlives the worker, and the copy meets it: it is not skipped."""
        doomed = other_worker("later", name="doomed")
        result = run.send("lost.work", queue="later")
        run.wait_told("enter")
        doomed.kill()
        redeliver(run.broker)
        run.consume("later")
        wait_until(lambda: f"[{result.id}] comes back" in worker.log(), limit_s=15, what="the copy")
        run.open()
        assert get(result) == "done"
        assert len(run.told("effect")) == 1


class TestAnEndInTheQueueLeavesNothing:
    """What is revoked, expires or is purged never runs, and none of its hooks is called."""

    def test_revoked(self, run: Run, worker: Worker) -> None:
        """The next call runs, also before the revoked one would have had its turn."""
        result = run.send("hold", countdown=1)
        run.revoke(result.id, worker)
        run.open()
        assert get(run.send("hold")) == 0
        with pytest.raises(TaskRevokedError):
            get(result)
        assert get(run.send("hold")) == 0
        assert len(run.told("enter")) == 2

    def test_expired(self, run: Run) -> None:
        """The same."""
        result = run.send("hold", countdown=1, expires=0.5)
        with pytest.raises(TaskRevokedError):
            get(result)
        run.open()
        assert get(run.send("hold")) == 0
        assert len(run.told("enter")) == 1

    def test_purged(self, run: Run) -> None:
        """The same."""
        run.send("hold", queue="unread")
        assert purge(run.broker, "unread") == 1
        run.open()
        assert get(run.send("hold")) == 0
        assert len(run.told("enter")) == 1


class TestAFollowUpIsNotDropped:
    """The source changes after the run has read it, and somebody says so."""

    def _copied(self, run: Run) -> str:
        value: Any = run.server.get(f"gate:{run.id}:copy")
        return str(value)

    def test_with_skip_the_copy_is_stale_and_the_skip_is_there_to_see(self, run: Run) -> None:
        """As documented: its result says it."""
        run.server.set(f"gate:{run.id}:source", "old")
        first = run.send("lost.copy_or_skip")
        run.wait_told("enter")
        run.server.set(f"gate:{run.id}:source", "new")
        assert was_skipped(get(run.send("lost.copy_or_skip")))
        run.open()
        assert get(first) == "old"
        assert self._copied(run) == "old"

    def test_with_rerun_the_copy_is_fresh_after_one_more_run(self, run: Run) -> None:
        """Exactly one, for ten calls."""
        run.server.set(f"gate:{run.id}:source", "old")
        first = run.send("lost.copy_or_rerun")
        run.wait_told("enter")
        run.server.set(f"gate:{run.id}:source", "new")
        calls = [run.send("lost.copy_or_rerun") for _ in range(10)]
        wait_until(lambda: sum(it.ready() for it in calls) == 9, limit_s=20, what="nine skips")
        run.open()
        assert get(first) == "old"
        values = [get(call) for call in calls]
        assert [value for value in values if not was_skipped(value)] == ["new"]
        assert self._copied(run) == "new"
        assert len(run.told("enter")) == 2


def test_a_receiver_that_fails_before_the_run_changes_nothing(run: Run, worker: Worker) -> None:
    """Celery logs it and runs the body all the same: under the lock, as ever."""
    fence = get(run.send("lost.behind_a_broken_signal"))
    assert "a receiver that fails" in worker.log()
    assert fence > 0
    assert run.state() is None
    first = run.send("hold")
    run.wait_told("enter", 2)
    assert was_skipped(get(run.send("lost.behind_a_broken_signal")))
    run.open()
    assert get(first) == 0


def test_whoever_starts_looks_or_cleans_leaves_a_running_task_alone(
    run: Run, other_worker: Callable[..., Worker], settings: Any, redis_url: str, tmp_path: Path
) -> None:
    """A second worker, beat, and the commands and tasks that reclaim what is over."""
    running = run.send("hold")
    (entered,) = run.wait_told("enter")
    worker = other_worker("second")
    arguments = ["beat", "--schedule", str(tmp_path / "schedule"), "--pidfile=", "-l", "INFO"]
    with CeleryProcess(
        arguments, tmp_path / "beat.log", worker.environment, ready=r"beat: Starting"
    ):
        settings.LOCKAPP = {"default": {"LOCATION": redis_url, "OPTIONS": {"prefix": PREFIX}}}
        for command in ("sweep", "list"):
            call_command("lockapp", command, stdout=StringIO())
        assert tasks.sweep() == {"default": 0}
    worker.stop()
    state = run.state()
    assert state is not None
    assert state.holders[0].fence == entered["fence"]
    assert was_skipped(get(run.send("hold")))
    run.open()
    assert get(running) == 0
