"""What @single_instance costs a task: an empty one through a real worker, bare and locked.

The worker is prefork with two children, and warm. All messages of a round lie in a queue before
the worker hears of it, so that the publisher is never what is measured; the time is the worker's
own, from the moments it stored with the results. Every task has a key of its own: none is skipped.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery, states
from celery.backends.base import KeyValueStoreBackend

from tests.bench.contend import WARM_UP
from tests.bench.contestants import commands_sent
from tests.bench.pair import median_ratio
from tests.bench.report import Chart, Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.celery.worker import Worker
from tests.servers import RedisServer
from tests.timing import wait_until

SIZES = {"full": (11, 2000), "quick": (3, 500), "tiny": (1, 20)}  # rounds, tasks of each
TITLES = {
    "bare": "bare",
    "single": "@single_instance",
    "plain": "redis-py: SET NX, compare-and-delete",
}
AIM_PER_CENT = 15
LIMIT_S = 60  # of a round
NAME = "bench"  # the worker's


class Bench:
    """A worker, and the rounds that are put before it.

    Context manager: starts the worker and ends it.

    Args:
        broker: for messages and results.
        locks: where the locks live.
        children: how many processes run tasks.
    """

    def __init__(self, broker: RedisServer, locks: RedisServer, *, children: int = 2) -> None:
        self._store = broker.client
        # No result backend: to subscribe to each result would only give the server more to do.
        self._client = Celery("bench", broker=broker.url, set_as_current=False)
        self._environment = {"LOCKAPP_BENCH_BROKER": broker.url, "LOCKAPP_BENCH_LOCKS": locks.url}
        self._children = children
        self._numbers = count()
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._client.close)
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
            worker = Worker(
                NAME, log, self._environment, children=self._children, app="tests.bench.tasks"
            )
            stack.enter_context(worker)
            self._ends = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.close()

    def round(self, task: str, size: int) -> float:
        """Return how many tasks a second the worker ran, out of ``size`` that lay ready."""
        queue = f"{task}-{next(self._numbers)}"
        keys, store = [], self._store
        with self._client.producer_or_acquire() as producer:
            for _ in range(size):
                number = next(self._numbers)
                sent = self._client.send_task(task, (number,), queue=queue, producer=producer)
                keys.append(f"{KeyValueStoreBackend.task_keyprefix}{sent.id}")
        self._tell("add_consumer", queue)
        wait_until(
            lambda: store.exists(*keys) == size, limit_s=LIMIT_S, every_s=0.1, what="the results"
        )
        self._tell("cancel_consumer", queue)
        done = sorted(_done_at(result) for result in store.mget(keys))
        store.delete(*keys)
        first = int(size * WARM_UP)
        return (size - 1 - first) / (done[-1] - done[first])

    def _tell(self, what: str, queue: str) -> None:
        replies = self._client.control.broadcast(
            what,
            arguments={"queue": queue},
            destination=[f"{NAME}@localhost"],
            reply=True,
            timeout=LIMIT_S,
            limit=1,
        )
        if not replies or "ok" not in next(iter(replies[0].values())):
            raise RuntimeError(f"the worker did not obey {what}: {replies}")


def _done_at(result: str) -> float:
    """Return the moment at which the worker stored a result.

    Raises:
        RuntimeError: the body did not run, or failed; nothing is measured by such a task.
    """
    told = json.loads(result)
    if told["status"] != states.SUCCESS or told["result"] is not None:
        raise RuntimeError(f"a task of the bench did not run: {told}")
    return datetime.fromisoformat(told["date_done"]).timestamp()


def run(around: Surroundings, size: str) -> list[Section]:
    """Rounds in turns, so that drift hits all alike."""
    rounds, tasks = SIZES[size]
    rates: dict[str, list[float]] = {task: [] for task in TITLES}
    commands = 0.0
    around.say("starting a worker")
    with Bench(around.another_server(), around.server) as bench:
        for task in TITLES:
            bench.round(task, max(tasks // 10, 10))
        for number in range(rounds):
            for task, found in rates.items():
                around.say(f"empty tasks, round {number + 1} of {rounds}: {TITLES[task]}")
                around.client.config_resetstat()
                found.append(bench.round(task, tasks))
                if task == "single":
                    commands += commands_sent("lockapp", around.client) / tasks / rounds
    return [_section(rates, tasks, commands)]


def _section(rates: dict[str, list[float]], tasks: int, commands: float) -> Section:
    ratios = {task: median_ratio(found, rates["bare"]) for task, found in rates.items()}
    medians = {task: statistics.median(found) for task, found in rates.items()}
    return Section(
        f"{tasks:,} empty tasks, one prefork worker with 2 children",
        ("", "tasks a second", "to bare", "costs"),
        tuple(
            (
                TITLES[task],
                f"{medians[task]:,.0f}",
                f"{ratio:.3f}",
                "–" if task == "bare" else f"{1 - ratio:.1%}",
            )
            for task, ratio in ratios.items()
        ),
        (
            Target(
                "of tasks a second that @single_instance costs",
                100 * (1 - ratios["single"]),
                AIM_PER_CENT,
                " %",
            ),
        ),
        (
            Chart(
                "task",
                "Empty tasks a second",
                tuple(TITLES.values()),
                {"tasks a second": tuple(medians.values())},
            ),
        ),
        (f"Commands to the locks' server, for a task with @single_instance: {rounded(commands)}.",),
    )
