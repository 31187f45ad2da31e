"""What becomes of a copy that is turned away: retry, join, rerun, remember, limit. Real worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from celery import chord
from celery.exceptions import WorkerLostError

from lockapp.celery import was_skipped
from lockapp.exceptions import NotAcquired
from tests.celery.conftest import Run, get, get_all
from tests.celery.worker import Worker
from tests.timing import scaled, wait_until


class TestJoin:
    def test_all_duplicates_return_the_result_of_the_one_that_ran(
        self, run: Run, other_worker: Callable[[str], Worker]
    ) -> None:
        """Its own id, from every copy; also of another worker."""
        other_worker("joining")
        queues = ["shared", "shared", "joining", "joining"]
        results = [run.send("join", queue=queue) for queue in queues]
        (entered,) = run.wait_told("enter")
        followers_wait(run, 3)
        run.open()
        assert get_all(results) == [[entered["id"], 0]] * 4
        assert len(run.told("enter")) == 1
        run.wait_free()

    def test_they_fail_as_it_fails(self, run: Run) -> None:
        """The exception itself."""
        results = [run.send("join", 0, "error") for _ in range(2)]
        run.wait_told("enter")
        followers_wait(run, 1)
        run.open(count=1)
        for result in results:
            with pytest.raises(KeyError, match="no such order"):
                get(result)
        assert len(run.told("enter")) == 1

    def test_one_that_retries_has_no_result_and_the_next_one_runs(self, run: Run) -> None:
        """The follower runs, and the retry joins it or runs after it; nobody gets a Retry."""
        results = [run.send("join", 0, "retry") for _ in range(2)]
        run.wait_told("enter")
        followers_wait(run, 1)
        run.open(count=1)  # the first one retries
        run.open()
        values = get_all(results)
        assert {retries for _, retries in values} <= {0, 1}
        assert all(task_id in {result.id for result in results} for task_id, _ in values)

    def test_one_whose_child_is_killed_has_no_result_and_the_next_one_runs(self, run: Run) -> None:
        """Within what the lock needs to be free."""
        first = run.send("join")
        (entered,) = run.wait_told("enter")
        second = run.send("join")
        followers_wait(run, 1)
        os.kill(entered["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            get(first)
        run.open()
        assert get(second, limit_s=40) == [second.id, 0]


class TestRerun:
    def test_ten_calls_during_a_run_give_one_extra_run_with_the_latest_arguments(
        self, run: Run
    ) -> None:
        """Nine of them end at once and say that they were skipped."""
        first = run.send("rerun")
        run.wait_told("enter")
        copies = [run.send("rerun", 0, version) for version in range(1, 11)]
        wait_until(lambda: sum(it.ready() for it in copies) == 9, limit_s=20, what="nine skips")
        run.open()
        assert get(first) == 0
        values = get_all(copies)
        assert [value for value in values if not was_skipped(value)] == [10]
        assert [event["version"] for event in run.told("ran")] == [0, 10]
        run.wait_free()

    def test_also_when_the_run_fails(self, run: Run) -> None:
        """The extra run does not depend on it."""
        first = run.send("rerun", 0, 0, "error")
        run.wait_told("enter")
        second = run.send("rerun", 0, 1)
        wait_until(lambda: second.state == "RETRY", what="a parked copy")
        run.open()
        with pytest.raises(KeyError):
            get(first)
        assert get(second) == 1

    def test_also_when_the_worker_of_the_run_dies(
        self, run: Run, other_worker: Callable[[str], Worker]
    ) -> None:
        """The parked message is in the broker, and the lease runs out."""
        doomed = other_worker("doomed-rerun")
        run.send("rerun_dearly", queue="doomed-rerun")
        run.wait_told("enter")
        second = run.send("rerun_dearly", 0, 1)
        wait_until(lambda: second.state == "RETRY", what="a parked copy")
        third = run.send("rerun_dearly", 0, 2)
        assert was_skipped(get(third))
        doomed.kill()
        run.open()
        assert get(second) == 0
        assert [event["version"] for event in run.told("ran")] == [0, 2]

    def test_a_call_during_the_extra_run_gives_another_one(self, run: Run) -> None:
        """What it brings is not lost because one was parked before."""
        results = [run.send("rerun")]
        for version in (1, 2):
            run.wait_told("enter", version)
            results.append(run.send("rerun", 0, version))
            wait_until(lambda: results[-1].state == "RETRY", what="a parked copy")
            run.open(count=1)
        run.open()
        assert get_all(results) == [0, 1, 2]
        assert [event["version"] for event in run.told("ran")] == [0, 1, 2]


class TestRetry:
    def test_it_comes_back_and_leaves_the_users_retries_alone(
        self, run: Run, worker: Worker
    ) -> None:
        """The task may retry once itself, and does so after several times of ours."""
        first = run.send("hold")
        run.wait_told("enter")
        second = run.send("come_back")
        wait_until(lambda: second.state == "RETRY", what="a copy that comes back")
        came = log_lines(worker, f"come_back[{second.id}] comes back")
        wait_until(lambda: len(came()) >= 2, limit_s=10, what="a second time")
        run.open()
        assert get(first) == 0
        assert get(second) == 1
        assert len(run.told("enter")) == 3

    def test_it_fails_when_wait_is_over(self, run: Run) -> None:
        """Bounded, and loud."""
        first = run.send("hold")
        run.wait_told("enter")
        with pytest.raises(NotAcquired):
            get(run.send("come_back_briefly"))
        run.open()
        assert get(first) == 0

    def test_a_chain_and_a_chord_go_on_behind_it(self, run: Run) -> None:
        """What follows is sent once, when the copy has run."""
        first = run.send("hold")
        run.wait_told("enter")
        members = [run.signature("come_back_briefly", 1), run.signature("come_back_briefly", 1)]
        behind = chord(members)(run.client.signature("count", queue="shared"))
        run.wait_told("enter", 2)
        run.open(1)
        assert get(behind) == [1, 1]
        run.open()
        assert get(first) == 0


class TestRemember:
    def test_a_result_stands_for_its_time(self, run: Run) -> None:
        """Later copies end with it at once; after its time the body runs again."""
        run.open()
        first = run.send("remember")
        assert get(first) == first.id
        assert get(run.send("remember")) == first.id
        assert len(run.told("enter")) == 1
        third: list[str] = []

        def again() -> bool:
            result = run.send("remember")
            third[:] = [get(result), result.id]
            return third[0] == third[1]

        wait_until(again, limit_s=10, every_s=0.2, what="a run of its own")
        assert len(run.told("enter")) == 2

    def test_a_failure_is_not_remembered(self, run: Run) -> None:
        """The next copy runs."""
        run.open()
        with pytest.raises(KeyError):
            get(run.send("remember", 0, "error"))
        second = run.send("remember")
        assert get(second) == second.id

    def test_a_copy_meanwhile_is_turned_away_as_ever(self, run: Run) -> None:
        """Remembering does not wait."""
        first = run.send("remember")
        run.wait_told("enter")
        assert was_skipped(get(run.send("remember")))
        run.open()
        assert get(first) == first.id


class TestLimit:
    def test_two_run_and_the_third_is_skipped(self, run: Run) -> None:
        """From two workers' children at once."""
        results = [run.send("two_at_once") for _ in range(2)]
        run.wait_told("enter", 2)
        run.open()
        assert get_all(results) == [0, 0]
        state = run.engine.show(run.name("two"))
        assert state is None

    def test_the_third_is_skipped(self, run: Run, other_worker: Callable[[str], Worker]) -> None:
        """Both permits are taken in the shared worker."""
        other_worker("third")
        results = [run.send("two_at_once") for _ in range(2)]
        run.wait_told("enter", 2)
        assert was_skipped(get(run.send("two_at_once", queue="third")))
        run.open()
        assert get_all(results) == [0, 0]


class TestOwnEarlierDelivery:
    def test_a_second_delivery_of_a_running_message_waits_and_runs_nothing_twice(
        self, run: Run, worker: Worker
    ) -> None:
        """The same id published twice: one body at a time, and the copy ends quietly."""
        follow = run.client.signature("count", queue="shared")
        received = log_lines(worker, "Task count[")

        def followed() -> list[str]:
            return [line for line in received() if line.endswith("received")]

        first = run.send("hold", link=follow)
        run.wait_told("enter")
        run.send("hold", task_id=first.id, link=follow)
        came = log_lines(worker, f"hold[{first.id}] comes back")
        wait_until(lambda: len(came()) >= 1, limit_s=10, what="the copy to come back")
        assert first.state in ("PENDING", "STARTED")
        run.open(count=1)
        assert get(first) == 0
        done = log_lines(worker, f"hold[{first.id}] has succeeded before")
        wait_until(lambda: len(done()) == 1, limit_s=20, what="the copy to end")
        assert len(run.told("enter")) == 1
        wait_until(lambda: followed() != [], limit_s=10, what="what follows")
        assert len(followed()) == 1
        assert first.state == "SUCCESS"

    def test_a_result_that_is_stored_late_is_waited_for(self, run: Run, worker: Worker) -> None:
        """The lock is free a moment before it; a copy that looks then does not run."""
        first = run.send("slow_to_store")
        run.wait_told("enter")
        run.send("slow_to_store", task_id=first.id)
        came = log_lines(worker, f"slow_to_store[{first.id}] comes back")
        wait_until(lambda: len(came()) >= 1, limit_s=10, what="the copy to come back")
        done = log_lines(worker, f"slow_to_store[{first.id}] has succeeded before")
        run.open()
        assert get(first) == 0
        wait_until(lambda: len(done()) == 1, limit_s=20, what="the copy to end")
        assert len(run.told("enter")) == 1

    def test_with_room_for_two_the_same_message_still_runs_once_at_a_time(
        self, run: Run, worker: Worker
    ) -> None:
        """A second permit is no reason to run a copy of oneself."""
        first = run.send("two_at_once")
        run.wait_told("enter")
        run.send("two_at_once", task_id=first.id)
        came = log_lines(worker, f"two_at_once[{first.id}] comes back")
        wait_until(lambda: len(came()) >= 1, limit_s=10, what="the copy to come back")
        assert len(run.told("enter")) == 1
        run.open(count=1)
        assert get(first) == 0

    def test_a_message_that_comes_back_after_its_child_was_killed_is_done_once_more(
        self, run: Run
    ) -> None:
        """Not skipped and acknowledged because its dead self still holds the lock."""
        result = run.send("late")
        (entered,) = run.wait_told("enter")
        os.kill(entered["pid"], signal.SIGKILL)
        run.wait_told("enter", 2, limit_s=15)
        run.open()
        assert get(result) == 0

    def test_it_is_done_once_more_after_the_death_of_the_whole_worker(
        self, run: Run, other_worker: Callable[[str], Worker]
    ) -> None:
        """The broker delivers it anew when the next worker of its queue restores it."""
        doomed = other_worker("doomed-late")
        result = run.send("late", queue="doomed-late")
        run.wait_told("enter")
        doomed.kill()
        run.send("late", task_id=result.id)  # as the broker would after its visibility timeout
        run.wait_told("enter", 2, limit_s=15)
        run.open()
        assert get(result) == 0


def test_a_message_locks_what_it_locked_at_its_first_delivery(run: Run) -> None:
    """A retry with other arguments is the same message."""
    result = run.send("moving_key")
    run.wait_told("enter")
    assert run.state(key=0) is not None
    assert run.state(key=1) is None
    run.open(1)
    assert get(result) == 1


def followers_wait(run: Run, count: int) -> None:
    """Let so many copies have come to wait for the landing of the one that runs."""

    def blocked() -> bool:
        clients = run.locks.client_list()
        return sum("b" in it["flags"] and it["cmd"] == "xread" for it in clients) >= count

    wait_until(blocked, limit_s=scaled(10), what=f"{count} followers")


def log_lines(worker: Worker, text: str) -> Callable[[], list[str]]:
    """Return a function that finds the worker's lines with a text since now."""
    seen = len(worker.log())
    return lambda: [line for line in worker.log()[seen:].splitlines() if text in line]
