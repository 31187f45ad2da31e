"""Places: where copies of a task wait in the broker's queue, one for each key.

A place is taken before its message is sent and travels with it by its token
(`lockapp.celery.slot`). It is given up when the body starts, when the message ends without, and
when Celery drops it in the worker's main process, revoked or expired. Nobody else sees it go: a
purged queue, a publisher that dies on the way and a worker that dies with the message cost its ttl.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import MethodType, TracebackType
from typing import Any, Self

from celery.signals import task_revoked

from lockapp.celery.execution import Execution
from lockapp.celery.identity import Call, Key
from lockapp.celery.message import HEADER, Note, leave_place
from lockapp.celery.options import Options
from lockapp.celery.slot import Slot, unpark
from lockapp.core.values import HolderState
from lockapp.engines.base import Engine
from lockapp.engines.procedures import NoGrant
from lockapp.exceptions import EngineError
from lockapp.handler import locks
from lockapp.lock import Lock

logger = logging.getLogger("lockapp.celery")


class Places:
    """The places of one task. Nothing is kept here: each call asks the engine."""

    __slots__ = ("key", "options")

    def __init__(self, options: Options, key: Key) -> None:
        """Remember how the task is locked.

        Args:
            options: with a scope that looks at the queue.
            key: how its calls are named.
        """
        self.options = options
        self.key = key

    @property
    def engine(self) -> Engine:
        """Where they are."""
        return locks[self.options.using]

    def note(self, task: Any, args: Any, kwargs: Any) -> Note:
        """Return the note of a new message.

        Raises:
            TypeError, ValueError: the arguments make no key.
        """
        call = Call(_method(task.run), tuple(args or ()), kwargs or {})
        return Note(task.name, self.key.name(task.name, call))

    def take(self, note: Note, token: str, ttl_s: float, *, new: bool) -> HolderState | None:
        """Take the place of a key by a token; or return who stands in the way.

        A place that was taken is not given back because a copy has begun to run in that moment:
        somebody else may have been answered with its message meanwhile, which must then be sent.

        Args:
            note: of the message.
            token: as its header will have it.
            ttl_s: seconds the place lives unless it is given up.
            new: whether the message would not be sent because of one that runs.

        Raises:
            EngineError: could not ask.
            LeaseLost: an operator has released the place from this token.
        """
        if new and self.options.scope.either and (copy := self._running(note)):
            return copy
        asked = self._slot(note, ttl_s).ask(token)
        return asked.holder if isinstance(asked, NoGrant) else None

    def free(self, note: Note, token: str) -> None:
        """Give a place up. Never fails; without effect if the token does not hold it any more."""
        try:
            self._slot(note, self.options.queued_ttl_s).free(token)
        except EngineError as down:
            logger.warning(
                "the place of %s in the queue stays taken for its ttl, or until the engine is "
                "back: %s", note.name, down, extra={"lockapp_name": note.name},
            )  # fmt: skip

    def _slot(self, note: Note, ttl_s: float) -> Slot:
        return Slot(self.engine, "queued", note.task, note.name, ttl_s)

    def _running(self, note: Note) -> HolderState | None:
        """Return the copy that runs. The lock may be held by something else, too."""
        state = self.engine.show(note.name)
        holders = state.holders if state else ()
        return next((it for it in holders if it.description.get("task") == note.task), None)


def _method(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the bound method inside of a wrapper, such as that of ``autoretry_for``; else itself.

    The wrapper shows the signature of the function, in which the task is an argument.
    """
    step: Any = run
    while step is not None and not isinstance(step, MethodType):
        step = getattr(step, "__wrapped__", None)
    return step or run


def places_of(task: Any) -> Places | None:
    """Return the places of a task; None if its scope does not look at the queue."""
    places = getattr(task.run, "places", None)  # also through wrappers made with functools.wraps
    return places if isinstance(places, Places) else None


class Place:
    """The places of the message that runs here, if any; left with the block at the latest."""

    __slots__ = ("_execution", "_lock")

    def __init__(self, execution: Execution, lock: Lock) -> None:
        """Nothing is sent.

        Args:
            execution: of the message.
            lock: what it locks.
        """
        self._execution = execution
        self._lock = lock

    def leave(self) -> None:
        """Give up the place in the queue, unless that was done or it went along with the message.

        Never fails.
        """
        execution = self._execution
        if not execution.from_a_message:
            return
        token = leave_place(execution.request, "queued")
        if token and (places := places_of(execution.task)):
            places.free(execution.note(self._lock.name), token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()
        execution = self._execution
        if execution.from_a_message and (token := leave_place(execution.request, "parked")):
            unpark(self._lock.engine, execution.task_name, self._lock.name, token)


@task_revoked.connect
def give_up_places(sender: Any, request: Any, **_: object) -> None:
    """Give up the places of a message that Celery drops: the body will not."""
    single = getattr(sender.run, "single_instance", None)
    note = Note.read(sender.name, request.get(HEADER))
    if single is None or note is None:
        return
    if note.queued and (places := places_of(sender)):
        places.free(note, note.queued)
    if note.parked:
        unpark(locks[single.using], note.task, note.name, note.parked)
