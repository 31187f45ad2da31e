"""LockTask: the task class that does not send a copy of what waits already. An optimisation.

=================================  =========================================================
what we know                       what we do
=================================  =========================================================
place free                         take it by a token, send the message with the token
place taken                        send nothing; the result is that of the copy that stands
place taken, but something counts  send it without a place: it runs as far as the run-time
on this very message               lock allows
engine unavailable, or in error    the same, with a log line
key reads a model of the body's    the same, with a log line once per task and process
the broker refuses the message     give the place up, and let the error pass unchanged
=================================  =========================================================

Invariant: a message is refused only while another one of the same task and key holds the place or
runs. Nothing here waits for a lock, and nothing here keeps a promise: whatever is sent twice all
the same meets the run-time lock (`lockapp.celery.running`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.contrib.django.task import DjangoTask
from celery.utils import uuid
from celery.utils.time import maybe_make_aware

from lockapp.celery.message import HEADER, Note
from lockapp.celery.places import Places, places_of
from lockapp.celery.slot import Slot
from lockapp.celery.turned import TurnedAway
from lockapp.context import holder_details
from lockapp.core.values import HolderState
from lockapp.exceptions import EngineError, LeaseLost

logger = logging.getLogger("lockapp.celery")

if TYPE_CHECKING:
    _Task = DjangoTask[..., Any]
else:
    _Task = DjangoTask  # with older releases of Celery it is generic for type checkers only

AWAITED = (
    "chain", "chord", "group_id", "link", "link_error", "replaced_task_nesting", "reply_to",
    "retries",
)  # fmt: skip
"""Options by which something counts on this very message: what comes after it, a canvas whose
member it is (those are frozen, which sets ``reply_to``), or an earlier delivery of itself."""

LEAST_TTL_S = 1.0

_WARNED: set[str] = set()


class LockTask(_Task):
    """The base class for tasks with a ``scope`` that looks at the queue.

    For all tasks of an application by ``Celery(task_cls="lockapp.celery:LockTask")``, for one by
    ``base=LockTask``. It is Celery's own task class for Django (``delay_on_commit()``) otherwise,
    and changes nothing for tasks without such a scope.

    Example::

        @shared_task(base=LockTask)
        @single_instance(key="index:{catalogue}", scope="queued_or_running")
        def rebuild_index(catalogue): ...
    """

    abstract = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a message, unless another copy stands; see Celery for the arguments.

        Members of a chain, group or chord, messages with ``link`` or ``link_error``, and those
        that come back (``retry()``, ``replace()``) are always sent. So is one whose key reads an
        attribute that its argument has only where the body runs, as a model of ``pydantic=True``;
        a log line says so once. In eager mode there is no queue. Never waits for a lock.

        Returns:
            The AsyncResult of the message, or of the copy that stands: the one that waits, or,
            with ``"queued_or_running"``, the one that runs.

        Raises:
            TypeError, ValueError: the arguments make no key.
            kombu.exceptions.OperationalError: as Celery; the place is free again.
        """
        options.update(producer=producer, link=link, link_error=link_error, shadow=shadow)
        send = partial(super().apply_async, args, kwargs)
        places = places_of(self)
        if places is None or self.app.conf.task_always_eager:
            return send(task_id=task_id, **options)
        try:
            sending = _Sending(self, places, args, kwargs, task_id or uuid(), options)
        except AttributeError as error:  # of a model that Celery makes where the body runs
            if self.name not in _WARNED:
                _WARNED.add(self.name)
                logger.warning(
                    "%s is sent without a look at the queue, since its key can't be read here: %s",
                    self.name, error,
                )  # fmt: skip
            return send(task_id=task_id, **options)
        return sending.run(send)


class _Sending:
    """One message of a task with places, on its way to the broker."""

    def __init__(
        self,
        task: LockTask,
        places: Places,
        args: Any,
        kwargs: Any,
        task_id: str,
        options: dict[str, Any],
    ) -> None:
        self.task = task
        self.places = places
        self.task_id = task_id
        self.options = {**options}
        self.headers: Mapping[str, Any] = self.options.pop("headers", None) or {}
        known = Note.read(task.name, self.headers.get(HEADER))
        self.note = known or places.note(task, args, kwargs)
        self.new = known is None and not any(options.get(option) for option in AWAITED)

    def run(self, send: Callable[..., Any]) -> Any:
        """Send it, or return the result of the copy that stands."""
        token = self.note.queued or Slot.new_token()
        if self.note.own:  # another delivery had its turn, or has it: this one waits for no turn
            return self._send(send, "")
        try:
            with holder_details(task=self.task.name, task_id=self.task_id):
                standing = self.places.take(self.note, token, self._ttl_s(), new=self.new)
        except EngineError as down:
            logger.warning(
                "%s[%s] is sent without a look at the queue: %s", self.task.name, self.task_id,
                down, extra=self._about,
            )  # fmt: skip
            token = ""
        except LeaseLost:
            token = ""
        else:
            if standing is not None:
                token = ""
                if self.new and (other := standing.description.get("task_id")):
                    return self._instead(other, standing)
        return self._send(send, token)

    def _send(self, send: Callable[..., Any], token: str) -> Any:
        note = replace(self.note, queued=token)
        try:
            return send(
                task_id=self.task_id,
                headers={**self.headers, HEADER: asdict(note)},
                **self.options,
            )
        except BaseException:
            if token:
                self.places.free(note, token)
            raise

    def _instead(self, other: str, standing: HolderState) -> Any:
        logger.info(
            "%s[%s] is not sent: %s stands since %.1f s", self.task.name, self.task_id, other,
            standing.held_ms / 1000, extra=self._about,
        )  # fmt: skip
        self.places.engine.observe(
            "turned_away", TurnedAway(self.note.name, self.task.name, self.task_id, "dropped")
        )
        result = self.task.AsyncResult(other)
        # As Celery does for what it sends: where no result is kept, get() does not wait for one.
        result.ignored = bool(self.options.get("ignore_result", self.task.ignore_result))
        return result

    def _ttl_s(self) -> float:
        """Return how long the place lives: as long as the message may lie there, and not longer."""
        task: Any = self.task
        options = {**task._get_exec_options(), **self.options}  # with those of the task's own
        delay_s = options.get("countdown") or self._until_s(options.get("eta")) or 0
        ttl_s = max(delay_s, 0) + self.places.options.queued_ttl_s
        expires_s = self._until_s(options.get("expires"))
        return max(ttl_s if expires_s is None else min(ttl_s, expires_s), LEAST_TTL_S)

    def _until_s(self, when: Any) -> float | None:
        """Return how many seconds it is until a moment, in any form that Celery takes."""
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if not isinstance(when, datetime):
            return None if when is None else float(when)
        left = maybe_make_aware(when, self.task.app.timezone) - self.task.app.now()
        return float(left.total_seconds())

    @property
    def _about(self) -> dict[str, Any]:
        return {"lockapp_name": self.note.name, "lockapp_task_id": self.task_id}
