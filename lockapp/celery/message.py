"""What a message carries from one delivery to the next, and how it is sent once more.

A task that was turned away and comes back keeps its id, its arguments, its canvas and its count of
retries: to Celery it is the same message. What we have to know of its earlier deliveries travels in
one header. A token that gives possession of a run's lock never does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from celery.exceptions import Retry

from lockapp.core.chance import chance

HEADER = "lockapp"
PLACES = ("queued", "parked")
"""The kinds of places that a message may hold (`lockapp.celery.slot`)."""
FIRST_PAUSE_S = 0.25

logger = logging.getLogger("lockapp.celery")


@dataclass(frozen=True, slots=True)
class Note:
    """The header's content. Times are epoch seconds of the worker that wrote them."""

    task: str
    """Whose note it is: whoever sends another task's message may hand on its headers."""
    name: str
    """What the message locks, worked out at its first delivery."""
    since: float = 0.0
    """When it was first turned away by what is in its way; 0 if it was not since it last ran."""
    times: int = 0
    """How often it was turned away since then."""
    own: bool = False
    """Whether it is an earlier delivery of the message itself that was in its way."""
    looked: int = 0
    """How often it has found the lock free since then, and has left once more."""
    parked: str = ""
    """The token of the place that it holds for one more run."""
    queued: str = ""
    """The token of the place that it holds as the copy that waits, from publish on."""

    @classmethod
    def read(cls, task: str, raw: object) -> Self | None:
        """Return the note in a header; None if it has none of ours."""
        if not isinstance(raw, Mapping) or raw.get("task") != task:
            return None
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{key: value for key, value in raw.items() if key in known})
        except TypeError:  # of a release that wrote less
            return None

    def later(self, now: float, *, own: bool = False, **changes: Any) -> Self:
        """Return the note of the next delivery of a message that was turned away at ``now``.

        Args:
            now: epoch seconds.
            own: whether by an earlier delivery of itself. That and other runs have a patience each.
            **changes: what else is new.
        """
        again = self.times > 0 and own == self.own
        return replace(
            self,
            since=self.since if again else now,
            times=self.times + 1 if again else 1,
            own=own,
            **changes,
        )

    def afresh(self) -> Self:
        """Return the note of a message that the broker delivered anew: it ran since it was sent."""
        return replace(self, since=0.0, times=0, own=False, looked=0)

    def pause_s(self, longest_s: float) -> float:
        """Return how long the message should stay away: doubled each time, spread by a fifth."""
        pause: float = min(FIRST_PAUSE_S * 2 ** min(max(self.times - 1, 0), 20), longest_s)
        return pause * chance.uniform(0.8, 1.2)


def keep(request: Any, note: Note) -> None:
    """Have the message of a user's own ``retry()`` carry the name: the body gets its turn.

    The places that this delivery holds lie there as well, until they are given up.
    """
    known = {"task": note.task, "name": note.name}
    known.update({kind: token for kind in PLACES if (token := getattr(note, kind))})
    request.headers = {**(request.headers or {}), HEADER: known}


def leave_place(request: Any, kind: str) -> str:
    """Return the token of the place that this delivery holds, once; then it holds none."""
    token: str = ((request.headers or {}).get(HEADER) or {}).pop(kind, "")
    return token


def send_again(task: Any, note: Note, longest_s: float, reason: Exception) -> Retry:
    """Publish the message that runs here once more, to be delivered after a pause.

    It has the same id, arguments, canvas and count of retries. One that stands for others, or for
    a delivery that may be at work, does not expire: that would say something about those.

    Args:
        task: which task runs here.
        note: what the next delivery has to know.
        longest_s: the longest pause; they begin at FIRST_PAUSE_S and double.
        reason: why.

    Returns:
        The exception by which this delivery has to end; the task's state then is RETRY.

    Raises:
        kombu.exceptions.OperationalError: the broker did not take the message.
    """
    request, pause_s = task.request, note.pause_s(longest_s)
    lasting = {"expires": None} if note.own or note.parked else {}
    signature = task.signature_from_request(
        request,
        **lasting,
        countdown=pause_s,
        retries=request.retries,
        headers={**(request.headers or {}), HEADER: asdict(note)},
    )
    signature.apply_async()
    for kind in PLACES:
        leave_place(request, kind)  # it goes along with the message
    logger.info(
        "%s[%s] comes back in %.2f s: %s", task.name, request.id, pause_s, reason,
        extra={"lockapp_name": note.name, "lockapp_task_id": request.id},
    )  # fmt: skip
    return Retry(exc=reason, when=pause_s, sig=signature)  # type: ignore[arg-type]
