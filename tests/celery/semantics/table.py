"""The rows: an event, how it is brought about, and what each scope says to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from billiard.exceptions import WorkerLostError
from celery.exceptions import Reject, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded

from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired
from tests.celery.semantics import senders, steps
from tests.celery.semantics.senders import copy, waiting_copy
from tests.celery.semantics.steps import Steps, told_to, told_to_leave_no_trace
from tests.celery.semantics.words import (
    NOTHING,
    OF_THE_OTHER,
    OF_THE_RUNNING,
    OF_THE_WAITING,
    SKIPPED,
    THE_BODYS,
    VALUE_AND_SKIP,
    Fate,
    Outcome,
    Place,
    error,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one scope says to an event."""

    lock: Fate
    state: str
    result: Outcome
    runs: int = 1
    place: Place | None = None  # in the queue, where the scope looks at it


@dataclass(frozen=True, slots=True)
class Event:
    """A row. A scope in which it makes no difference, or no sense, has no cell."""

    words: str
    steps: Steps
    running: Cell | None = None
    queued: Cell | None = None
    queued_or_running: Cell | None = None
    queued_and_running: Cell | None = None

    def cell(self, scope: str) -> Cell | None:
        """The cell of a scope."""
        cell: Cell | None = getattr(self, scope)
        return cell


SCOPES = ("running", "queued", "queued_or_running", "queued_and_running")

SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
PENDING, RETRY = "PENDING", "RETRY"  # for Celery nothing has ended
BODYS_ERROR = error(ValueError, "the body's exception")


def placed(place: Place, cell: Cell) -> dict[str, Cell]:
    """Return the cells of the scopes that look at the queue, where they say the same.

    With `queued` copies that run have no lock; what else becomes of them is the same.
    """
    both = replace(cell, place=place)
    return {
        "queued": replace(both, lock=Fate.UNLIMITED),
        "queued_or_running": both,
        "queued_and_running": both,
    }


GROUPS: dict[str, tuple[Event, ...]] = {
    "The body ends, or a limit ends it": (
        Event(
            "it returns",
            steps.returns,
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS),
            **placed(Place.STARTED, Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS)),
        ),
        Event(
            "it raises",
            told_to("error"),
            Cell(Fate.GIVEN_BACK, FAILURE, BODYS_ERROR),
            **placed(Place.STARTED, Cell(Fate.GIVEN_BACK, FAILURE, BODYS_ERROR)),
        ),
        Event(
            "`self.retry()`, once",
            told_to("retry"),
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS, runs=2),
            **placed(Place.STARTED, Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS, runs=2)),
        ),
        Event(
            "`autoretry_for`, until `max_retries=1` is used up",
            told_to("autoretry"),
            Cell(Fate.GIVEN_BACK, FAILURE, error(KeyError, "the body's exception"), runs=2),
        ),
        Event(
            "`Ignore`",
            told_to_leave_no_trace("ignore"),
            Cell(Fate.GIVEN_BACK, PENDING, NOTHING),
        ),
        Event("`Reject`", told_to("reject"), Cell(Fate.GIVEN_BACK, FAILURE, error(Reject))),
        Event(
            "`Reject(requeue=True)`, with `acks_late`",
            told_to("requeue", "_late"),
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS, runs=2),
        ),
        Event("`replace()`", told_to("replace"), Cell(Fate.GIVEN_BACK, SUCCESS, OF_THE_OTHER)),
        Event(
            "soft time limit",
            told_to("hold", soft_time_limit=1),
            Cell(Fate.GIVEN_BACK, FAILURE, error(SoftTimeLimitExceeded)),
        ),
        Event(
            "hard time limit",
            told_to("hold", time_limit=1),
            Cell(Fate.SIGTERM, FAILURE, error(TimeLimitExceeded)),
        ),
        Event(
            "hard time limit, in a body that is deaf to SIGTERM",
            told_to("deaf", time_limit=1),
            Cell(Fate.ABANDONED, FAILURE, error(TimeLimitExceeded)),
        ),
    ),
    "A process dies, or the worker ends": (
        Event(
            "child killed (SIGKILL, out of memory)",
            steps.child_killed(),
            Cell(Fate.ABANDONED, FAILURE, error(WorkerLostError)),
        ),
        Event(
            "child killed, with `acks_late` and `reject_on_worker_lost`: redelivered",
            steps.child_killed("hold", "_late"),
            Cell(Fate.ABANDONED, SUCCESS, THE_BODYS, runs=2),
            **placed(Place.STARTED, Cell(Fate.ABANDONED, SUCCESS, THE_BODYS, runs=2)),
        ),
        Event(
            "whole worker killed",
            steps.worker_killed,
            Cell(Fate.TTL, PENDING, NOTHING),
        ),
        Event(
            "whole worker killed, with `acks_late`: redelivered",
            steps.redelivered_after_the_worker_died,
            Cell(Fate.TTL, SUCCESS, THE_BODYS, runs=2),
        ),
        Event(
            "warm shutdown",
            steps.warm_shutdown,
            Cell(Fate.KEPT, SUCCESS, THE_BODYS),
        ),
        Event(
            "cold shutdown",
            steps.cold_shutdown(),
            Cell(Fate.SIGTERM, RETRY, NOTHING),
        ),
        Event(
            "cold shutdown, with `acks_late`: redelivered",
            steps.cold_shutdown("_late", heir=True),
            Cell(Fate.SIGTERM, SUCCESS, THE_BODYS, runs=2),
        ),
    ),
    "Somebody ends the message": (
        Event(
            "revoked in the queue",
            steps.revoked_in_the_queue,
            Cell(Fate.NEVER, REVOKED, error(TaskRevokedError), runs=0),
            **placed(Place.DROPPED, Cell(Fate.NEVER, REVOKED, error(TaskRevokedError), runs=0)),
        ),
        Event(
            "revoked while it runs",
            steps.revoked_while_it_runs(),
            Cell(Fate.KEPT, SUCCESS, THE_BODYS),
        ),
        Event(
            "revoked while it runs, with `terminate=True`",
            steps.revoked_while_it_runs(terminate=True),
            Cell(Fate.SIGTERM, REVOKED, error(TaskRevokedError)),
            **placed(Place.STARTED, Cell(Fate.SIGTERM, REVOKED, error(TaskRevokedError))),
        ),
        Event(
            'revoked while it runs, with `terminate=True, signal="SIGKILL"`',
            steps.revoked_while_it_runs(terminate=True, signal="SIGKILL"),
            Cell(Fate.ABANDONED, REVOKED, error(TaskRevokedError)),
        ),
        Event(
            "expired in the queue",
            steps.expired,
            Cell(Fate.NEVER, REVOKED, error(TaskRevokedError), runs=0),
            **placed(Place.EXPIRES, Cell(Fate.NEVER, REVOKED, error(TaskRevokedError), runs=0)),
        ),
        Event(
            "purged",
            steps.purged,
            Cell(Fate.NEVER, PENDING, NOTHING, runs=0),
            **placed(Place.TTL, Cell(Fate.NEVER, PENDING, NOTHING, runs=0)),
        ),
    ),
    "One message comes twice": (
        Event(
            "published again with the same id, while it runs",
            steps.published_twice,
            Cell(Fate.KEPT, SUCCESS, THE_BODYS),
        ),
        Event(
            "redelivered while it runs",
            steps.redelivered_while_it_runs,
            Cell(Fate.KEPT, SUCCESS, THE_BODYS),
        ),
        Event(
            "published again with the same id, after it succeeded",
            steps.published_again_later,
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS, runs=2),
        ),
    ),
    "A copy is sent (its state and result)": (
        Event(
            "while one waits in the queue",
            senders.copy_while_one_waits,
            **placed(Place.STARTED, Cell(Fate.GIVEN_BACK, SUCCESS, OF_THE_WAITING)),
        ),
        Event(
            "while one runs",
            senders.copy_while_one_runs,
            Cell(Fate.KEPT, SUCCESS, SKIPPED),
            queued=Cell(Fate.UNLIMITED, SUCCESS, THE_BODYS, 2, Place.STARTED),
            queued_or_running=Cell(Fate.KEPT, SUCCESS, OF_THE_RUNNING, 1, Place.STARTED),
            queued_and_running=Cell(Fate.KEPT, SUCCESS, THE_BODYS, 2, Place.WAITS),
        ),
    ),
    "A copy comes while one runs (the copy's state and result)": (
        Event("sent by name, by `send_task()`", copy(), Cell(Fate.KEPT, SUCCESS, SKIPPED)),
        Event("sent by beat", senders.by_beat, Cell(Fate.KEPT, SUCCESS, SKIPPED)),
        Event("eager, by `apply()`", senders.eager_copy, Cell(Fate.KEPT, SUCCESS, SKIPPED)),
        Event(
            "in a chain: what the next link gets",
            senders.in_a_chain,
            Cell(Fate.KEPT, SUCCESS, SKIPPED),
        ),
        Event("in a group", senders.in_a_group, Cell(Fate.KEPT, SUCCESS, SKIPPED)),
        Event(
            "in a chord's header: what the body gets",
            senders.in_a_chord,
            Cell(Fate.KEPT, SUCCESS, VALUE_AND_SKIP),
        ),
        Event(
            '`on_contention="raise"`',
            copy("_or_raise"),
            Cell(Fate.KEPT, FAILURE, error(NotAcquired)),
        ),
        Event(
            '`on_contention="retry"`',
            copy("_or_retry"),
            Cell(Fate.KEPT, SUCCESS, THE_BODYS, runs=2),
        ),
        Event(
            '`on_contention="wait"`',
            waiting_copy("_or_wait"),
            Cell(Fate.KEPT, SUCCESS, THE_BODYS, runs=2),
        ),
        Event(
            '`on_contention="join"`',
            waiting_copy("_or_join"),
            Cell(Fate.KEPT, SUCCESS, OF_THE_RUNNING),
        ),
        Event(
            '`on_contention="rerun"`',
            copy("_or_rerun"),
            Cell(Fate.KEPT, SUCCESS, THE_BODYS, runs=2),
        ),
    ),
    "It runs eagerly, or a server is down": (
        Event(
            "`apply()`, `task_always_eager`",
            senders.eager,
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS),
        ),
        Event(
            "broker down at publish: the sender gets `OperationalError`",
            senders.broker_down_at_publish,
            Cell(Fate.NEVER, PENDING, NOTHING, runs=0),
            **placed(Place.UNDONE, Cell(Fate.NEVER, PENDING, NOTHING, runs=0)),
        ),
        Event(
            "lock engine down at publish",
            senders.engine_down_at_publish,
            Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS),
            **placed(Place.NONE, Cell(Fate.GIVEN_BACK, SUCCESS, THE_BODYS)),
        ),
        Event(
            "lock engine down at the start",
            senders.engine_down_at_start,
            Cell(Fate.NEVER, FAILURE, error(EngineUnavailable), runs=0),
        ),
        Event(
            "lock engine down at the end",
            senders.engine_down_at_end,
            Cell(Fate.LATE, SUCCESS, THE_BODYS),
        ),
        Event(
            "lease lost while the body runs",
            senders.taken_away(),
            Cell(Fate.TAKEN, SUCCESS, THE_BODYS),
        ),
        Event(
            'lease lost while the body runs, with `on_lost="raise"`',
            senders.taken_away("_strict"),
            Cell(Fate.TAKEN, FAILURE, error(LeaseLost)),
        ),
    ),
}


def cells() -> list[tuple[str, Event]]:
    """Return every scope and event that have a cell."""
    events = [event for group in GROUPS.values() for event in group]
    return [(scope, event) for scope in SCOPES for event in events if event.cell(scope)]
