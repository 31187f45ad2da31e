"""What becomes of the lock when the process that runs the body dies, and when others start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from lockapp.celery import was_skipped
from tests.celery.conftest import Run, get
from tests.celery.test_policies import followers_wait
from tests.celery.worker import Worker
from tests.server_process import Watcher
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

TTL_S = 3  # of the tasks "hold_dearly" and "deaf"
SOON_S = 3  # after a death; the leases of the tasks in mortals.py live for ten times as long
MORTALS = "tests.celery.mortals"


def _free_within_ttl(run: Run) -> None:
    """The lock is free within the ttl and a second, and the next copy runs."""
    run.wait_free(limit_s=TTL_S + 1)
    run.open()
    assert get(run.send("hold")) == 0


def test_workers_end_with_the_test_process() -> None:
    """No orphan is left when pytest itself is killed; closing the pipe is what its end does."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60; true"], start_new_session=True) as group:
        watcher = Watcher(group.pid, group=True).process
        assert watcher.stdin is not None
        watcher.stdin.close()
        assert watcher.wait(scaled(5)) == 0
        assert group.wait(scaled(5)) == -signal.SIGKILL


def test_a_killed_worker_leaves_its_lock_for_at_most_the_ttl(
    run: Run, other_worker: Callable[[str], Worker]
) -> None:
    """SIGKILL to the whole worker: nobody cleans up, the lease runs out."""
    doomed = other_worker("doomed")
    run.send("hold_dearly", queue="doomed")
    run.wait_told("enter")
    doomed.kill()
    _free_within_ttl(run)


def test_a_killed_child_leaves_its_lock_for_at_most_the_ttl(run: Run) -> None:
    """SIGKILL to the child, as the kernel does when memory is short."""
    result = run.send("hold_dearly")
    (entered,) = run.wait_told("enter")
    os.kill(entered["pid"], signal.SIGKILL)
    _free_within_ttl(run)
    with pytest.raises(WorkerLostError):
        get(result)


@pytest.mark.parametrize("task", ["hold_dearly", "deaf"])
def test_the_hard_time_limit_leaves_the_lock_for_at_most_the_ttl(run: Run, task: str) -> None:
    """The limit comes with the message. A child that hears SIGTERM gives the lock back itself."""
    result = run.send(task, time_limit=1)
    run.wait_told("enter")
    with pytest.raises(TimeLimitExceeded):
        get(result)
    _free_within_ttl(run)
    # The result is there before the child's end, but the lock is not free before it.
    assert len(run.told("leave")) == (2 if task == "hold_dearly" else 1)


def test_a_second_worker_that_starts_and_stops_disturbs_nobody(
    run: Run, other_worker: Callable[[str], Worker]
) -> None:
    """No cleaning at start or end: a running task keeps its lock."""
    result = run.send("hold")
    (entered,) = run.wait_told("enter")
    second = other_worker("second")
    assert was_skipped(get(run.send("hold", queue="second")))
    second.stop()
    state = run.state()
    assert state is not None
    assert state.holders[0].fence == entered["fence"]
    run.open()
    assert get(result) == 0
    assert len(run.told("enter")) == 1


def test_a_warm_shutdown_lets_the_body_finish_under_its_lock(
    run: Run, other_worker: Callable[[str], Worker]
) -> None:
    """The lease is renewed while the worker waits for the body."""
    leaving = other_worker("leaving")
    result = run.send("hold", queue="leaving")
    run.wait_told("enter")
    leaving.terminate()
    wait_until(lambda: "Warm shutdown" in leaving.log(), what="the shutdown")
    assert was_skipped(get(run.send("hold")))
    run.open()
    assert get(result) == 0
    run.wait_free()


@pytest.fixture(scope="module")
def mortal(new_worker: Callable[..., Worker]) -> Iterator[Worker]:
    """A worker of the tasks with long leases.

    With many children: Celery may count the place of a dead one as taken for ten seconds.
    """
    with new_worker("mortal", app=MORTALS, children=8) as started:
        yield started


def _gone(pid: int) -> bool:
    """Whether a process is dead, also if its parent, as Celery for seconds, has not noticed."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return state[:1] in ("", "Z")


def _ended(worker: Worker) -> bool:
    """Whether its main process has ended; Worker.stop() asks for its outcome later."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, worker.pid, how) is not None


def _wait_in_line(run: Run) -> Any:
    """Send a copy that waits for the lock, and let it have come to do so, or be in already."""
    fresh = run.send("live_or_wait", queue="mortal")

    def waits() -> bool:
        state = run.state()
        return (state is not None and len(state.waiters) > 0) or len(run.told("enter")) > 1

    wait_until(waits, limit_s=20, what="the next run")
    return fresh


def _wait_entered_after(run: Run, dead: int) -> None:
    """Wait for the death of the first, and then, not for long, until the next run has started."""
    wait_until(lambda: _gone(dead), limit_s=20, every_s=0.02, what="the child's death")
    run.wait_told("enter", 2, limit_s=SOON_S)


def _kill(run: Run, child: int, message: str) -> None:
    os.kill(child, signal.SIGKILL)


def _crash(run: Run, child: int, message: str) -> None:
    os.kill(child, signal.SIGSEGV)


def _revoke(run: Run, child: int, message: str) -> None:
    run.client.control.revoke(message, terminate=True)


def _revoke_hard(run: Run, child: int, message: str) -> None:
    run.client.control.revoke(message, terminate=True, signal="SIGKILL")


def _time_out(run: Run, child: int, message: str) -> None:
    """The hard limit came with the message."""


DEATHS = pytest.mark.parametrize(
    ("die", "deaf"),
    [
        (_kill, False),
        (_crash, False),
        (_revoke, False),
        (_revoke_hard, True),
        (_time_out, False),
        (_time_out, True),
    ],
)
Death = Callable[[Run, int, str], None]


@pytest.mark.parametrize("acks", ["", "_late", "_requeued"])
@DEATHS
def test_after_a_childs_death_the_next_run_starts_at_once(
    run: Run, mortal: Worker, die: Death, deaf: bool, acks: str
) -> None:
    """However it died and whenever its message is acknowledged; the ttl plays no part."""
    limit = {"time_limit": 1} if die is _time_out else {}
    result = run.send(f"live{acks}", 0, deaf, queue="mortal", **limit)
    (entered,) = run.wait_told("enter")
    fresh = _wait_in_line(run)
    die(run, entered["pid"], result.id)
    _wait_entered_after(run, entered["pid"])
    run.open()
    assert get(fresh) == 0


@pytest.mark.parametrize("die", [_kill, _crash])
def test_a_message_that_comes_back_after_a_death_runs_once_more(
    run: Run, mortal: Worker, die: Death
) -> None:
    """With acks_late and reject_on_worker_lost. Celery takes some seconds to notice a death."""
    result = run.send("live_requeued", queue="mortal")
    (entered,) = run.wait_told("enter")
    die(run, entered["pid"], result.id)
    assert run.wait_told("enter", 2, limit_s=15)[1]["id"] == result.id
    run.open()
    assert get(result) == 0


def test_the_audit_says_which_task_died_in_which_process(run: Run, mortal: Worker) -> None:
    """And the worker's log."""
    result = run.send("live", queue="mortal")
    (entered,) = run.wait_told("enter")
    os.kill(entered["pid"], signal.SIGKILL)
    run.wait_free(limit_s=SOON_S)
    events = [e for e in run.engine.read_events(count=100_000) if e.name == run.name()]
    assert [event.kind for event in events] == ["acquired", "abandoned"]
    assert events[1].fence == entered["fence"]
    note = json.dumps(events[1].detail)
    who = f"live[{result.id}] in process {entered['pid']}"
    assert f"worker {mortal.node}" in note
    assert f"died: {who}" in note
    logged = f"{who} died; its lock {run.name()} was abandoned"
    wait_until(lambda: logged in mortal.log(), what="the log")


def test_who_joins_a_run_that_dies_takes_over_at_once(run: Run, mortal: Worker) -> None:
    """It is woken, and does not find out when it next looks."""
    run.send("live_or_join", queue="mortal")
    (entered,) = run.wait_told("enter")
    follower = run.send("live_or_join", queue="mortal")
    followers_wait(run, 1)
    os.kill(entered["pid"], signal.SIGKILL)
    run.wait_told("enter", 2, limit_s=SOON_S)
    run.open()
    assert get(follower) == 0


def test_what_a_dead_child_started_does_not_keep_its_lock(run: Run, mortal: Worker) -> None:
    """Neither a forked process nor a program holds the end of its line."""
    run.send("live_with_children", queue="mortal")
    (entered,) = run.wait_told("enter")
    (children,) = run.told("children")
    try:
        _wait_in_line(run)
        os.kill(entered["pid"], signal.SIGKILL)
        _wait_entered_after(run, entered["pid"])
        assert not any(map(_gone, children["pids"]))
    finally:
        for pid in children["pids"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_replaced_another_is_missed_too(
    run: Run, other_worker: Callable[..., Worker], method: str
) -> None:
    """Here one that had run enough, in the other tests one that had died."""
    more = {"LOCKAPP_TEST_START_METHOD": method, "LOCKAPP_TEST_TASKS_PER_CHILD": "1"}
    other_worker(method, more, children=1, app=MORTALS)
    run.open(key=1)
    get(run.send("live", 1, queue=method))
    run.send("live", queue=method)
    first, second = run.wait_told("enter", 2, limit_s=30)
    assert first["pid"] != second["pid"]
    os.kill(second["pid"], signal.SIGKILL)
    run.wait_free(limit_s=SOON_S)


def test_a_parent_that_is_stopped_delays_nobody(
    run: Run, other_worker: Callable[..., Worker]
) -> None:
    """Its children tell it all the same; they go on, and keep what they hold."""
    worker = other_worker("stopped", children=1, app=MORTALS)
    steps = 300
    result = run.send("many_steps", steps, queue="stopped")
    (entered,) = run.wait_told("enter")
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        run.open(count=1)
        run.wait_told("stepped", limit_s=30)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    get(result)
    assert "can't tell its worker" not in worker.log()
    held = run.send("live", queue="stopped")
    assert run.wait_told("enter", 2)[1]["pid"] == entered["pid"]
    run.open()
    assert get(held) == 0
    assert "was abandoned" not in worker.log()


def test_an_engine_without_answer_is_asked_again(
    run: Run, mortal: Worker, frail_server: RedisServer
) -> None:
    """Until it answers, for at most the ttl."""
    run.send("live_on_frail_engine", queue="mortal")
    (entered,) = run.wait_told("enter")
    frail_server.pause()
    try:
        os.kill(entered["pid"], signal.SIGKILL)
        noticed = f"pid:{entered['pid']} exited"
        wait_until(lambda: noticed in mortal.log(), limit_s=20, what="the log")
        # Meanwhile the worker makes a new child, and goes on.
        run.open(key=1)
        assert get(run.send("live", 1, queue="mortal"), limit_s=SOON_S) == 1
    finally:
        frail_server.resume()
    run.send("live_on_frail_engine", queue="mortal")
    run.wait_told("enter", 3, limit_s=SOON_S)


def test_the_end_of_a_worker_is_not_delayed_and_leaves_nothing(
    run: Run, other_worker: Callable[..., Worker], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A warm shutdown: the body ends under its lock, and the listener with the worker."""
    folder = tmp_path_factory.mktemp("t")
    worker = other_worker("warm", {"TMPDIR": str(folder)}, app=MORTALS)
    result = run.send("live", queue="warm")
    run.wait_told("enter")
    assert list(folder.glob("lockapp-*/lifeline"))
    worker.terminate()
    wait_until(lambda: "Warm shutdown" in worker.log(), what="the shutdown")
    assert run.state() is not None
    run.open()
    assert get(result) == 0
    wait_until(lambda: _ended(worker), limit_s=30, what="the worker's end")
    assert list(folder.iterdir()) == []
    assert "was abandoned" not in worker.log()


@pytest.mark.parametrize(
    ("how", "answer"),
    [(signal.SIGTERM, "Warm shutdown"), (signal.SIGQUIT, "Hitting Ctrl+C again")],
)
def test_a_child_that_dies_while_its_worker_ends_is_missed_too(
    run: Run, other_worker: Callable[..., Worker], how: signal.Signals, answer: str
) -> None:
    """Although the worker ends right after it."""
    worker = other_worker(how.name, app=MORTALS)
    run.send("live", 0, True, queue=how.name)
    (entered,) = run.wait_told("enter")
    os.kill(worker.pid, how)
    wait_until(lambda: answer in worker.log(), what="the shutdown")
    os.kill(entered["pid"], signal.SIGKILL)
    run.wait_free(limit_s=SOON_S)
    wait_until(lambda: _ended(worker), limit_s=30, what="the worker's end")


def test_a_pool_without_children_has_no_listener(
    run: Run, other_worker: Callable[..., Worker], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is made and nothing is told."""
    folder = tmp_path_factory.mktemp("t")
    worker = other_worker("alone", {"TMPDIR": str(folder)}, pool="solo", app=MORTALS)
    run.open()
    assert get(run.send("live", queue="alone")) == 0
    assert list(folder.iterdir()) == []
    assert "lifeline" not in worker.log()
