"""On contention: what a task does when another instance of it holds the lock.

A closed vocabulary, one small class each. A policy says how long to wait for the lock, and what
the task's outcome is when it was not had. Neither ever runs the body.

Not here: a message that meets an earlier delivery of itself. It always comes back, whatever the
policy (`lockapp.celery.running`).
"""

from __future__ import annotations

import difflib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from lockapp.celery.execution import Execution
from lockapp.celery.latest import Latest
from lockapp.celery.message import leave_place
from lockapp.celery.slot import Slot, parked, unpark
from lockapp.celery.turned import Skipped, Turned, skipped
from lockapp.core.duration import to_ms
from lockapp.exceptions import EngineError
from lockapp.lock import Lock
from lockapp.ways import UNSET, Unset, Wait, wait_seconds

logger = logging.getLogger("lockapp.celery")

PolicyName = Literal["skip", "raise", "retry", "wait", "join", "rerun"]


class Policy(ABC):
    """What to do when the lock is held by somebody else."""

    word: ClassVar[PolicyName]
    joins: ClassVar[bool] = False  # whether it waits for the result of who holds the lock
    exclusive: ClassVar[bool] = False  # whether it makes sense with limit=1 only
    longest_pause_s: ClassVar[float] = 0.0  # how long a message of its own accord stays away

    def wait(self, given: Wait | Unset) -> Wait | Unset:
        """Return how many seconds to wait for the lock. Called once, at decoration.

        Raises:
            TypeError, ValueError: the policy can't do what ``wait=`` asks for.
        """
        if not isinstance(given, Unset):
            raise TypeError(
                f"wait= has no meaning with on_contention={self.word!r}, which never waits; "
                "use on_contention='wait'"
            )
        return 0

    def arguments(
        self, execution: Execution, lock: Lock, cache: str
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return what to call the body with, now that the lock is held."""
        return execution.call.args, execution.call.kwargs

    @abstractmethod
    def contended(self, turned: Turned) -> Any:
        """Return the task's result, or raise its failure. The body has not run."""


class Skip(Policy):
    """End at once with an ordinary value that says so.

    Never `Ignore`: a chord counts only the members that end, and would hang for ever.
    """

    word = "skip"

    def contended(self, turned: Turned) -> Skipped:
        """See Policy."""
        return skipped(turned)


class Raise(Policy):
    """Fail at once with NotAcquired."""

    word = "raise"

    def contended(self, turned: Turned) -> Any:
        """See Policy."""
        raise turned.refused()


class RetryLater(Policy):
    """Come back later, again and again, for ``wait`` seconds; then fail with NotAcquired.

    The message keeps its id and its count of retries, so the user's ``max_retries`` is not used up.
    """

    word = "retry"
    longest_pause_s: ClassVar[float] = 30.0

    def __init__(self) -> None:
        self._patience: Wait | Unset = UNSET

    def wait(self, given: Wait | Unset) -> Wait | Unset:
        """See Policy. How long the message keeps coming back; a single try never waits."""
        if not isinstance(given, Unset) and given is not None and to_ms(given, "wait") == 0:
            raise ValueError("wait=0 never comes back; use on_contention='raise' or 'skip'")
        self._patience = given
        return 0

    def contended(self, turned: Turned) -> Any:
        """See Policy."""
        execution = turned.execution
        if not execution.from_a_message:
            raise turned.refused()
        note, now = execution.note(turned.lock.name), time.time()
        patience_s = self._patience_s(turned.lock)
        if note.since and patience_s is not None and now - note.since > patience_s:
            raise turned.refused()
        raise turned.again(note.later(now), self.longest_pause_s)

    def _patience_s(self, lock: Lock) -> float | None:
        if isinstance(self._patience, Unset):
            return lock.spec.max_hold_ms / 1000 or None
        return wait_seconds(self._patience)


class Waiting(Policy):
    """Block the worker process for at most ``wait`` seconds; then WaitTimeout."""

    def wait(self, given: Wait | Unset) -> Wait | Unset:
        """See Policy."""
        if isinstance(given, Unset) or given is None:
            return given
        if to_ms(given, "wait", zero=True) == 0:
            raise ValueError("wait=0 does not wait; use on_contention='raise' or 'skip'")
        return given

    def contended(self, turned: Turned) -> Any:
        """See Policy."""
        raise turned.refused()


class WaitForIt(Waiting):
    """Block the worker process until the lock is free, in order of arrival."""

    word = "wait"


class Join(Waiting):
    """Block the worker process until the running one ends, and end as it does.

    If the running one has no result (it retries, is replaced, or its worker dies), one of those
    who wait runs the body, and the others wait for that.
    """

    word = "join"
    joins = True
    exclusive = True


class Rerun(Policy):
    """Have the body run once more after the running one, with the latest arguments.

    The first copy that is turned away parks: it comes back until the lock is free. Those after it
    leave their arguments and end as skipped. Whatever becomes of the run that stood in the way,
    the parked message is in the broker.
    """

    word = "rerun"
    exclusive = True
    longest_pause_s: ClassVar[float] = 5.0

    def contended(self, turned: Turned) -> Any:
        """See Policy."""
        execution, lock = turned.execution, turned.lock
        if not execution.from_a_message:
            raise turned.refused()
        request: Any = execution.request
        note, slot = execution.note(lock.name), self._slot(execution, lock)
        latest = Latest(lock, execution.task_name, turned.cache)
        if note.parked:
            if not slot.keep(note.parked):
                return skipped(turned)  # another one runs later, as well informed
            latest.touch()
            raise turned.again(note.later(time.time()), self.longest_pause_s)
        # In this order: who runs gives up the place first and then looks for arguments.
        if not (request.retries and slot.taken()):  # a retry brings nothing new
            latest.leave(execution.call)
        if slot.taken():
            return skipped(turned)
        # Sent before the place is taken: a place without a message would have others wait in vain.
        token = slot.new_token()
        later = note.later(time.time(), parked=token)
        end = turned.again(later, self.longest_pause_s, "parked")
        try:
            slot.take(token)
        except EngineError as down:
            logger.warning(
                "%s is parked without a place, which it takes later: %s", lock.name, down
            )
        raise end

    def arguments(
        self, execution: Execution, lock: Lock, cache: str
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """See Policy. Those that were left for the parked message, or its own."""
        own = super().arguments(execution, lock, cache)
        if not execution.from_a_message:
            return own
        request: Any = execution.request
        latest = Latest(lock, execution.task_name, cache)
        token = leave_place(request, "parked")
        if not token:
            # Newer than what is parked, which runs after it.
            if not request.retries and self._slot(execution, lock).taken():
                latest.leave(execution.call)
            return own
        unpark(lock.engine, execution.task_name, lock.name, token)
        found = latest.find()
        if found is None:
            return own
        request.args, request.kwargs = found  # for the body's own retry()
        return found

    def _slot(self, execution: Execution, lock: Lock) -> Slot:
        return parked(lock.engine, execution.task_name, lock.name)


POLICIES: dict[str, type[Policy]] = {
    cls.word: cls for cls in (Skip, Raise, RetryLater, WaitForIt, Join, Rerun)
}
assert list(POLICIES) == list(get_args(PolicyName))


def make_policy(word: str) -> Policy:
    """Return the policy of that name.

    Raises:
        TypeError, ValueError: there is none; the message names those there are.
    """
    if not isinstance(word, str):
        raise TypeError(f"on_contention must be one of {sorted(POLICIES)}, not {word!r}")
    if word not in POLICIES:
        near = difflib.get_close_matches(word, POLICIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"on_contention must be one of {sorted(POLICIES)}, not {word!r}{hint}")
    return POLICIES[word]()
