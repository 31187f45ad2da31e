"""The lock under each of Celery's pools: processes, threads, greenlets, and none at all.

One worker is shared by the tests of a pool. With `solo` it runs one task at a time, so copies go to
the suite's prefork worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from lockapp.celery import was_skipped
from tests.celery.conftest import Run, get
from tests.celery.worker import Worker
from tests.timing import pause, wait_until

BRIEF_TTL_S = 1  # of the task "pool.briefly"
SEVERAL = ["prefork", "threads", "gevent"]
POOLS = [*SEVERAL, "solo"]

START_LIMIT_S = 25
"""On RabbitMQ a solo worker, with locks or without, sometimes sees a message only after 10 s."""
HEAR_LIMIT_S = 15
"""A word to a holder is a hint, which may be lost while it is not listening yet. It hears all at
its next renewal, after a third of 30 s."""


@pytest.fixture(scope="module")
def pools(new_worker: Callable[..., Worker]) -> Iterator[Callable[[str], Worker]]:
    """Return the worker of a pool, started when it is first asked for."""
    started: dict[str, Worker] = {}

    def worker_of(pool: str) -> Worker:
        if pool not in started:
            children = 1 if pool == "solo" else 3
            started[pool] = new_worker(pool, pool=pool, children=children).start()
        return started[pool].wait_ready()

    yield worker_of
    for each in started.values():
        each.kill()


@pytest.fixture
def own(pool: str, pools: Callable[[str], Worker]) -> Worker:
    """The worker of the pool that the test is about."""
    return pools(pool)


@pytest.fixture
def elsewhere(pool: str) -> str:
    """A queue from which a task runs beside one of the pool: the pool's own, unless it is solo."""
    return "shared" if pool == "solo" else pool


@pytest.mark.parametrize("pool", POOLS)
def test_a_copy_is_skipped_while_one_runs_and_the_next_one_runs(
    run: Run, own: Worker, pool: str, elsewhere: str
) -> None:
    """The copy runs in the same process, but for solo."""
    first = run.send("hold", queue=pool)
    (entered,) = run.wait_told("enter", limit_s=START_LIMIT_S)
    skip = get(run.send("hold", queue=elsewhere))
    assert was_skipped(skip)
    assert skip["holder"]["task_id"] == first.id
    assert skip["holder"]["fence"] == entered["fence"]
    run.open(count=1)
    assert get(first) == 0
    assert run.state() is None
    run.open()
    assert get(run.send("hold", queue=pool)) == 0
    assert len(run.told("enter")) == 2


@pytest.mark.parametrize("pool", SEVERAL)
def test_different_keys_run_side_by_side(run: Run, own: Worker, pool: str) -> None:
    """All of them are inside at once, each under a lease of its own."""
    results = [run.send("hold", key, queue=pool) for key in (1, 2, 3)]
    entered = run.wait_told("enter", 3)
    assert not run.told("leave")
    assert len({event["fence"] for event in entered}) == 3
    for key in (1, 2, 3):
        run.open(key)
    assert [get(result) for result in results] == [1, 2, 3]


@pytest.mark.parametrize("pool", POOLS)
def test_a_lease_is_renewed_while_the_body_blocks(run: Run, own: Worker, pool: str) -> None:
    """For more than two of its lives; it is the same one."""
    result = run.send("pool.briefly", queue=pool)
    (entered,) = run.wait_told("enter", limit_s=START_LIMIT_S)
    pause(2.2 * BRIEF_TTL_S)
    state = run.state()
    assert state is not None
    assert state.holders[0].fence == entered["fence"]
    run.open()
    assert get(result) == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_copy_waits_and_runs_after_the_holder(
    run: Run, own: Worker, pool: str, elsewhere: str
) -> None:
    """Waiting blocks its own thread, greenlet or process, and no other."""
    first = run.send("hold", queue=elsewhere)
    run.wait_told("enter", limit_s=START_LIMIT_S)
    second = run.send("hold_or_wait", queue=pool)
    wait_until(lambda: _waiters(run) == 1, limit_s=START_LIMIT_S, what="a waiter")
    run.open(count=1)
    assert get(first) == 0
    run.wait_told("enter", 2, limit_s=START_LIMIT_S)
    run.open(count=1)
    assert get(second) == 0
    assert run.told("enter")[1]["at"] >= run.told("leave")[0]["at"]


@pytest.mark.parametrize("pool", POOLS)
def test_the_lock_is_free_when_the_body_raises(run: Run, own: Worker, pool: str) -> None:
    """At once."""
    with pytest.raises(ValueError, match="of the body itself"):
        get(run.send("end", "error", queue=pool))
    assert run.state() is None


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_can_be_asked_to_let_go_and_hears_that_its_lease_was_taken(
    run: Run, own: Worker, pool: str
) -> None:
    """At its next renewal at the latest, and mostly at once."""
    result = run.send("pool.listen", queue=pool)
    (entered,) = run.wait_told("enter", limit_s=START_LIMIT_S)
    run.engine.revoke(run.name(), entered["fence"], actor="alice", reason="deploy")
    (asked,) = run.wait_told("asked", limit_s=HEAR_LIMIT_S)
    assert asked["name"] == run.name()
    run.engine.force_release(run.name(), entered["fence"], actor="alice", reason="stuck")
    assert get(result, limit_s=HEAR_LIMIT_S) == "stopped: forced"


class TestGreenlets:
    """What can be ended in a gevent worker: a greenlet, by an exception that is no Exception."""

    @pytest.fixture
    def pool(self) -> str:
        return "gevent"

    def test_a_killed_greenlet_gives_its_lock_back(self, run: Run, own: Worker, pool: str) -> None:
        """By `revoke(terminate=True)`, which raises GreenletExit in the body."""
        result = run.send("hold", queue=pool)
        run.wait_told("enter", limit_s=START_LIMIT_S)
        run.revoke(result.id, own, terminate=True)
        with pytest.raises(TaskRevokedError):
            get(result)
        run.wait_free(limit_s=3)
        run.open()
        assert get(run.send("hold", queue=pool)) == 0

    def test_a_greenlet_that_is_killed_while_it_waits_leaves_the_queue(
        self, run: Run, own: Worker, pool: str
    ) -> None:
        """The holder is not disturbed."""
        first = run.send("hold", queue=pool)
        run.wait_told("enter", limit_s=START_LIMIT_S)
        second = run.send("hold_or_wait", queue=pool)
        wait_until(lambda: _waiters(run) == 1, limit_s=START_LIMIT_S, what="a waiter")
        run.revoke(second.id, own, terminate=True)
        wait_until(lambda: _waiters(run) == 0, limit_s=3, what="an empty queue")
        run.open()
        assert get(first) == 0
        assert len(run.told("enter")) == 1

    def test_the_time_limit_gives_the_lock_back(self, run: Run, own: Worker, pool: str) -> None:
        """A gevent worker ends the greenlet; soft limits it does not know."""
        result = run.send("hold", queue=pool, time_limit=1)
        run.wait_told("enter", limit_s=START_LIMIT_S)
        with pytest.raises(TimeLimitExceeded):
            get(result)
        run.wait_free(limit_s=3)


def _waiters(run: Run) -> int:
    state = run.state()
    return -1 if state is None else state.waiter_count
