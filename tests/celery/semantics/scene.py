"""Where a row of the table is played: one run's lock, its workers, and what the engine recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery import Celery

from lockapp.core.values import LockState
from lockapp.engines.redis import RedisEngine
from lockapp.exceptions import EngineUnavailable
from lockapp.naming import lock_name
from tests.celery.conftest import Run, get
from tests.celery.semantics import VALUE
from tests.celery.worker import Worker
from tests.servers import RedisServer
from tests.timing import wait_until


@dataclass
class Scene:
    """One test's stage. The lock is that of `hold:{run}:0` on the engine that the task uses."""

    scope: str
    run: Run
    worker: Worker
    other_worker: Callable[..., Worker]
    engine: RedisEngine
    frail_server: RedisServer
    frail_engine: RedisEngine
    sender: Celery
    folder: Any
    task: str = ""

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.run.name()

    def send(self, how: str = "value", variant: str = "", **options: Any) -> Any:
        """Send the scope's task, or a variant of it: by name, or where it matters by its class."""
        if variant == "_frail":
            self.engine = self.frail_engine
        task = self.scope + variant
        self.task = self.task or task
        if self.scope == "running":
            return self.run.send(task, how, **options)
        options = {"queue": "shared", **options}
        return self.run.result(
            self.sender.tasks[task].apply_async((self.run.id, how), **options).id
        )

    def signature(self, how: str = "value") -> Any:
        """What a canvas is made of."""
        if self.scope == "running":
            return self.run.signature(self.scope, how)
        return self.sender.tasks[self.scope].si(self.run.id, how).set(queue="shared")

    def start(self, how: str = "hold", variant: str = "", **options: Any) -> Any:
        """Send it and wait until its body runs under the lock."""
        before = len(self.run.told("enter"))
        result = self.send(how, variant, **options)
        self.run.wait_told("enter", before + 1)
        return result

    def state(self) -> LockState | None:
        """The lock as the server has it."""
        return self.engine.show(self.name)

    def place(self) -> LockState | None:
        """The place that a message of the task holds in the queue."""
        return self.engine.show(self._place_name)

    @property
    def _place_name(self) -> str:
        return lock_name("queued", self.task, self.name)

    def holding_fence(self) -> int:
        """The fence of who holds it; 0 if it is free."""
        state = self.state()
        return state.holders[0].fence if state else 0

    def is_waited_for(self) -> bool:
        """Whether somebody waits for the lock, or for the result of who holds it."""
        state = self.state()
        clients = self.run.locks.client_list()
        follows = any(it["cmd"] == "xread" and "b" in it["flags"] for it in clients)
        return follows or (state is not None and state.waiter_count > 0)

    def first_fence(self) -> int:
        """The fence of the first body that ran."""
        return int(self.run.told("enter")[0]["fence"])

    def first_pid(self) -> int:
        """The process that it ran in."""
        return int(self.run.told("enter")[0]["pid"])

    def wait_logged(self, pattern: str, worker: Worker | None = None) -> re.Match[str]:
        """Wait until a worker's log has a match; `{name}` stands for the lock's name."""
        log = (worker or self.worker).log
        return wait_until(lambda: re.search(pattern, log()), limit_s=15, every_s=0.02, what=pattern)

    def endings(self) -> list[str]:
        """How each lease ended that this lock ever had, in order."""
        return self._endings(self.name)

    def endings_of_place(self) -> list[str]:
        """The same, of the place in the queue."""
        return self._endings(self._place_name)

    def _endings(self, name: str) -> list[str]:
        events = self.engine.read_events(0, "0-0", 100_000)
        kinds = [event.kind for event in events if event.name == name]
        return [kind for kind in kinds if kind != "acquired"]

    def overlapped(self) -> bool:
        """Whether a body entered before another one left. One that was killed never leaves."""
        leaves = self.run.told("leave")
        spans = []
        for entered in self.run.told("enter"):
            same = [
                it["at"]
                for it in leaves
                if (it["id"], it["pid"]) == (entered["id"], entered["pid"])
            ]
            spans += [(entered["at"], at) for at in same if at >= entered["at"]][:1]
        return any(after[0] < before[1] for before, after in pairwise(sorted(spans)))

    def next_copy_runs(self) -> None:
        """Nothing of the event is left in the way of the next one, once the first one has ended.

        A second delivery of it may look once more, for a moment and under the lock; and a worker
        that has met an outage does not ask the engine at once again.
        """
        variant = "_frail" if self.engine is self.frail_engine else ""
        if self.scope != "running":  # the place is one for each task
            variant = self.task.removeprefix(self.scope)

        def ran() -> bool:
            try:
                return bool(get(self.send(variant=variant)) == VALUE)
            except EngineUnavailable:
                assert variant == "_frail"
                return False

        wait_until(ran, limit_s=15, every_s=0.1, what="the next copy to run")
