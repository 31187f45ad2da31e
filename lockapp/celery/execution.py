"""Execution: which task runs here, for which message, and with which limits.

Found anew at each run and kept nowhere: a wrapper is shared by threads, apps and processes.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from celery import Task, current_app, states
from celery._state import get_current_task
from celery.backends.base import DisabledBackend

from lockapp.celery.identity import Call, Key
from lockapp.celery.message import HEADER, Note, keep
from lockapp.core.interruption import is_interruption
from lockapp.core.values import HolderState
from lockapp.exceptions import NotHeld
from lockapp.lease import Lease

logger = logging.getLogger("lockapp.celery")

LEASE: ContextVar[Lease] = ContextVar("lockapp_celery_lease")

HANDED_DOWN = "time_limit" in dict(Task.from_config)
"""Whether tasks have the limit of all tasks as their own: since Celery 5.6. Looking it up in the
settings is slow, and done for each run."""
KILL_GRACE_S = 5
"""A child is killed a moment after its hard limit, never before; until then it needs its lock."""

RUNS = "lockapp_runs"
"""Set on a request whose message is being run."""


def current_lease() -> Lease:
    """Return the lease under which the present task body runs.

    For ``current_lease().check()`` before a step that must not be done by two, and for
    ``current_lease().fence``. Of nested ones it is the innermost. A thread that the body starts
    does not inherit it: hand the lease over.

    Raises:
        NotHeld: not called from within a ``@single_instance`` task, or its scope is ``"queued"``,
            which takes no lock.
    """
    try:
        return LEASE.get()
    except LookupError:
        raise NotHeld("no @single_instance task runs here", name="") from None


class Execution:
    """One run of a task's body, as seen from the wrapper around it."""

    __slots__ = ("_nested", "_note", "_run", "call", "head", "request", "task")

    def __init__(
        self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Find the task that ``run`` is the body of.

        Args:
            run: the wrapper that `single_instance` made.
            args: as it was called with: a bound task comes first.
            kwargs: as it was called with.
        """
        self._run = run
        self._note: Note | None = None
        first = args[0] if args else None
        current: Task[..., Any] | None = get_current_task()
        self.head: tuple[Any, ...] = ()
        """What the body gets before its arguments: a bound task gets itself."""
        if issubclass(type(first), Task) and (first is current or _runs(first, run)):
            self.task: Task[..., Any] | None = first
            self.call = Call(types.MethodType(run, first), args[1:], kwargs)
            self.head = (first,)
        else:
            self.call = Call(run, args, kwargs)
            # Another task's body may call ours without a request of its own (`task.run(…)`).
            if current is not None and _runs(current, run):
                self.task = current
            else:
                found = (task for task in list(current_app.tasks.values()) if _runs(task, run))
                self.task = next(found, None)
        # Looked up once: it takes longer than all that is asked of it.
        self.request = None if self.task is None else self.task.request
        # A body may call a task's body, its own too, while its message is under way.
        self._nested = getattr(self.request, RUNS, False)

    @property
    def task_name(self) -> str:
        """The task's name; for a function that no task is known of, the name it would get."""
        if self.task is not None:
            return self.task.name
        return f"{self._run.__module__}.{self._run.__name__}"

    @property
    def task_id(self) -> str | None:
        """The message's id; None when called directly."""
        return None if self.request is None else self.request.id

    @property
    def from_a_message(self) -> bool:
        """Whether a worker runs it for a message, which can be sent once more."""
        request = self.request
        return not (request is None or request.called_directly or request.is_eager or self._nested)

    def name(self, key: Key) -> str:
        """Return what the message locks: worked out at its first delivery, then carried along.

        Raises:
            TypeError, ValueError: as Key.name().
        """
        note = self._carried()
        if note is None:
            note = Note(self.task_name, key.name(self.task_name, self.call))
            self._note = note
        if self.from_a_message:
            keep(self.request, note)
            setattr(self.request, RUNS, True)
        return note.name

    def note(self, name: str) -> Note:
        """Return what earlier deliveries of the message noted."""
        return self._note or Note(self.task_name, name)

    def _carried(self) -> Note | None:
        if self._note is None and self.from_a_message:
            assert self.request is not None
            self._note = Note.read(self.task_name, self.request.get(HEADER))
            if self._note is not None and self.redelivered:
                self._note = self._note.afresh()
        return self._note

    @property
    def redelivered(self) -> bool:
        """Whether the broker says that it has delivered the message before."""
        if not self.from_a_message:
            return False
        assert self.request is not None
        delivery: Mapping[str, Any] = self.request.delivery_info or {}
        return bool(delivery.get("redelivered"))

    def is_own(self, holder: HolderState | None) -> bool:
        """Whether the holder is an earlier (or a second) delivery of the message that runs here."""
        mine = self.task_id if self.from_a_message else None
        return holder is not None and mine is not None and holder.description.get("task_id") == mine

    def earlier_outcome(self) -> str:
        """Return the state of the message's earlier delivery; "" if it is not known to have one.

        PENDING also where it can't be known: results are not kept, or the backend does not answer.
        """
        if not self.from_a_message:
            return ""
        task, request = self.task, self.request
        assert task is not None
        assert request is not None
        if not (self.redelivered or (self._note is not None and self._note.own)):
            return ""
        if isinstance(task.backend, DisabledBackend):
            return states.PENDING
        try:
            return str(task.AsyncResult(str(request.id)).state)
        except Exception as error:
            if is_interruption(error):
                raise
            logger.exception("could not ask whether %s has succeeded before", request.id)
            return states.PENDING

    @property
    def details(self) -> dict[str, object]:
        """What a holder's description says about this run."""
        request = self.request
        if request is None or request.called_directly:
            return {"task": self.task_name}
        delivery: Mapping[str, Any] = request.delivery_info or {}
        return {
            "task": self.task_name,
            "task_id": request.id,
            "retries": request.retries,
            "queue": delivery.get("routing_key"),
            "worker": request.hostname,
        }

    @property
    def hard_limit_s(self) -> float | None:
        """After how many seconds the worker kills this run; None where nobody does."""
        if not self.from_a_message:
            return None
        assert self.task is not None
        assert self.request is not None
        limits = self.request.timelimit or (None, None)
        return with_grace(limits[0] or hard_limit_of(self.task))


def hard_limit_of(task: Any) -> float | None:
    """Return a task's own hard limit in seconds, or that of all tasks.

    Celery before 5.6 does not hand the setting down to tasks; its pool enforces it all the same.
    """
    limit: float | None = task.time_limit
    return limit if limit or HANDED_DOWN else task.app.conf.task_time_limit


def with_grace(limit_s: float | None) -> float | None:
    """Return when a run with that limit has ended for certain."""
    return None if limit_s is None else limit_s + KILL_GRACE_S


def _runs(task: Any, run: Callable[..., Any]) -> bool:
    """Whether ``run`` is the task's body, possibly inside of other wrappers (autoretry is one)."""
    step = task.run
    while step is not None:
        step = getattr(step, "__func__", step)
        if step is run:
            return True
        step = getattr(step, "__wrapped__", None)
    return False
