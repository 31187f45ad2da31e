"""A run that does not run its body: what it returns, and what is told of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from lockapp.celery.execution import Execution
from lockapp.celery.message import Note, send_again
from lockapp.exceptions import NotAcquired
from lockapp.lock import Lock

if TYPE_CHECKING:
    from typing_extensions import TypeIs

logger = logging.getLogger("lockapp.celery")

MARK: Literal["lockapp"] = "lockapp"
SKIPPED: Literal["skipped"] = "skipped"
PRIVATE = frozenset(("process", "thread"))
"""What of a holder's description tells people nothing."""


class Skipped(TypedDict):
    """What a skipped task returns. JSON-safe; tell it by :func:`was_skipped`.

    ``holder`` describes who held the lock (``task``, ``task_id``, ``host``, ``pid``, ``fence`` …)
    or is None where that is not known.
    """

    lockapp: Literal["skipped"]
    name: str
    holder: dict[str, str | int] | None


def was_skipped(value: object) -> TypeIs[Skipped]:
    """Return whether a task's result says that its body did not run.

    Args:
        value: a result, as returned by the task or read from any result backend.
    """
    return isinstance(value, Mapping) and value.get(MARK) == SKIPPED


Outcome = Literal["skipped", "refused", "postponed", "parked", "joined", "remembered", "dropped"]


class TurnedAway(NamedTuple):
    """What the signal ``task_turned_away`` tells; for counting.

    ``outcome``: ``skipped``; ``refused`` (it fails); ``postponed`` (it comes back later);
    ``parked`` (it runs once more after the one that runs); ``joined`` (it ends as the one
    that ran);
    ``remembered`` (it ends with the result of an earlier one); ``dropped`` (it was not sent).
    """

    name: str
    task: str
    task_id: str | None
    outcome: Outcome


def tell(execution: Execution, lock: Lock, outcome: Outcome) -> None:
    """Tell that a body does not run here."""
    subject = TurnedAway(lock.name, execution.task_name, execution.task_id, outcome)
    lock.engine.observe("turned_away", subject)


@dataclass(frozen=True, slots=True)
class Turned:
    """A run that was turned away by another one."""

    execution: Execution
    lock: Lock
    refusal: NotAcquired
    cache: str

    def refused(self) -> NotAcquired:
        """Tell of it, and return what to raise."""
        tell(self.execution, self.lock, "refused")
        return self.refusal

    def again(self, note: Note, longest_s: float, outcome: Outcome = "postponed") -> Exception:
        """Tell of it, send the message once more, and return what to raise."""
        tell(self.execution, self.lock, outcome)
        return send_again(self.execution.task, note, longest_s, self.refusal)


def skipped(turned: Turned) -> Skipped:
    """Log that a copy does not run, and return what says so."""
    execution, refusal = turned.execution, turned.refusal
    tell(execution, turned.lock, "skipped")
    state = refusal.holder
    holder: dict[str, str | int] | None = None
    if state is not None:
        shown = {key: value for key, value in state.description.items() if key not in PRIVATE}
        holder = {**shown, "fence": state.fence}
    logger.info(
        "%s[%s] skipped: %s",
        execution.task_name, execution.task_id, refusal,
        extra={"lockapp_name": refusal.name, "lockapp_task_id": execution.task_id},
    )  # fmt: skip
    return {"lockapp": SKIPPED, "name": refusal.name, "holder": holder}
