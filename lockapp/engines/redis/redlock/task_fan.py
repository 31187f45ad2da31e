"""All nodes asked at once by a task: a task for each, which goes on by itself when it is enough.

The asynchronous twin of :mod:`lockapp.engines.redis.redlock.fan`. A connection is busy until its
whole answer was read, so here it is the *step* that waits for an earlier one of its token, not the
connection.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lockapp.core.values import Undo
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.redlock.votes import (
    UNANSWERED,
    Attempt,
    Enough,
    Outcomes,
    Step,
)
from lockapp.engines.redis.steps import RedisSteps
from lockapp.exceptions import EngineError, EngineUnavailable

Under = asyncio.Task[Any]


class TaskFan:
    """See :class:`~lockapp.engines.redis.redlock.votes.Nodes`. Of one event loop."""

    def __init__(
        self,
        steps: Sequence[RedisSteps],
        names: Sequence[str],
        alias: str,
        heir: Callable[[Undo], None],
    ) -> None:
        """Put them together; ``heir`` gives back what the end of the loop has kept us from."""
        self._heir = heir
        self.alias = alias
        self.count = len(steps)
        self.names = names
        self._steps = steps
        self._under_way: weakref.WeakSet[Under] = weakref.WeakSet()
        self._kept: set[Under] = set()  # or nobody would keep them

    now = staticmethod(boot_clock)

    def of(self, steps: Sequence[RedisSteps]) -> TaskFan:
        """See Nodes. What is under way through either is known to both."""
        twin = TaskFan(steps, self.names, self.alias, self._heir)
        twin._under_way, twin._kept = self._under_way, self._kept
        return twin

    async def ask(
        self,
        step: Step,
        enough: Enough,
        *,
        among: Collection[int] | None = None,
        attempt: Attempt | None = None,
        begins: bool = False,
        lasting: bool = False,
        grace_s: float = 0.0,
    ) -> Outcomes:
        """See Nodes. Cancelled, it leaves what is under way to come to its own end."""
        outcomes: list[Any] = [UNANSWERED] * self.count
        tasks = {
            self._start(at, step, attempt, begins, lasting): at
            for at in (range(self.count) if among is None else among)
        }
        pending: set[Under] = set(tasks)
        satisfied = enough(outcomes)
        limit_s: float | None = grace_s if satisfied else None
        end = None if limit_s is None else boot_clock() + limit_s
        while pending and not (satisfied and not grace_s):
            left_s = None if end is None else max(end - boot_clock(), 0.0)
            done, pending = await asyncio.wait(
                pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                outcomes[tasks[task]] = task.result()
            if not satisfied and enough(outcomes):
                satisfied = True
                end = boot_clock() + grace_s
        return outcomes

    def _start(
        self, at: int, step: Step, attempt: Attempt | None, begins: bool, lasting: bool
    ) -> Under:
        earlier = None if attempt is None else attempt.pending.get(at)
        part = self._part(at, step, earlier, attempt, begins, lasting)
        task = asyncio.get_running_loop().create_task(part, name=f"lockapp-{self.names[at]}")
        # Who drops a loop need not hear of tasks that he did not start.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        self._under_way.add(task)
        if begins and attempt is not None:
            attempt.pending[at] = task
        return task

    async def _part(
        self,
        at: int,
        step: Step,
        earlier: Any,
        attempt: Attempt | None,
        begins: bool,
        lasting: bool,
    ) -> Any:
        """Return the outcome of one node: its answer, or an EngineError."""
        answered = False
        try:
            if earlier is not None and attempt is not None:
                if earlier in self._under_way:
                    await asyncio.wait([earlier])
                else:  # a thread's, or of another loop
                    attempt.lost.add(at)
            ordered = attempt is None or at not in attempt.lost
            outcome = await step(self._steps[at], ordered)
            answered = True
        except EngineUnavailable as error:
            answered = not error.sent
            return error
        except EngineError as error:
            answered = True
            return error
        except asyncio.CancelledError:  # the loop ends
            if lasting and attempt is not None:
                self._heir(Undo(attempt.spec.name, attempt.token, tombstone=True))
            raise
        finally:
            if begins and attempt is not None:
                if not answered:
                    attempt.lost.add(at)
                if attempt.pending.get(at) is asyncio.current_task():
                    del attempt.pending[at]
        return outcome
