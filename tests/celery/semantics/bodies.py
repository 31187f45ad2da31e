"""The tasks of the table: one body, told by its message what to do. For workers and for senders."""

from __future__ import annotations

import signal
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from lockapp.celery import current_lease, single_instance
from lockapp.exceptions import NotHeld
from tests.celery.semantics import BRIEF_TTL_S, PASSING_TTL_S, VALUE

RETRY_DELAY_S = 0.5
"""Celery stores RETRY after it has sent the next try: one that is quicker would be overwritten."""

SCOPES: dict[str, dict[str, Any]] = {
    "running": {},
    "queued": {"scope": "queued"},
    "queued_or_running": {"scope": "queued_or_running"},
    "queued_and_running": {"scope": "queued_and_running", "on_contention": "retry"},
}
"""Name → what @single_instance is told."""

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "": ({}, {}),
    "_late": ({"acks_late": True, "reject_on_worker_lost": True}, {}),
    "_brief": ({}, {"ttl": BRIEF_TTL_S}),
    "_brief_late": ({"acks_late": True}, {"ttl": BRIEF_TTL_S}),
    "_strict": ({}, {"on_lost": "raise"}),
    "_frail": ({}, {"using": "frail"}),
    **{f"_or_{word}": ({}, {"on_contention": word}) for word in ("raise", "retry", "rerun")},
    **{f"_or_{word}": ({}, {"on_contention": word, "wait": 20}) for word in ("wait", "join")},
}
"""What is added to a task's name → what Celery and @single_instance are told."""

PASSING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "": VARIANTS[""],
    "_late": VARIANTS["_late"],
    "_frail": VARIANTS["_frail"],
    "_passing": ({}, {"queued_ttl": PASSING_TTL_S}),
}
"""The same, where the scope looks at the queue."""


def _act(task: Task[..., Any], run: str, how: str = "value", key: int = 0) -> Any:
    from tests.celery.app import GATE_LIMIT_S, _client, _tell

    _tell(run, "enter", key=key, id=task.request.id, fence=_fence())
    try:
        if how == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how in ("hold", "deaf"):
            _client().blpop([f"gate:{run}:{key}"], timeout=GATE_LIMIT_S)
    finally:
        _tell(run, "leave", key=key, id=task.request.id)
    _end(task, how)
    return VALUE


def _fence() -> int:
    """Return that of the lease; 0 where the scope has none."""
    try:
        return current_lease().fence
    except NotHeld:
        return 0


def _end(task: Task[..., Any], how: str) -> None:
    request = task.request
    again = request.retries or request.delivery_info.get("redelivered")
    if how == "error":
        raise ValueError("of the body itself")
    if how == "retry" and not again:
        raise task.retry()
    if how == "autoretry":
        raise KeyError("of the body itself")
    if how == "ignore":
        raise Ignore
    if how == "reject" or (how == "requeue" and not again):
        raise Reject("of the body itself", requeue=how == "requeue")
    if how == "replace":
        other = task.app.signature("semantics.other")
        raise task.replace(other.set(queue=request.delivery_info["routing_key"]))


def define(app: Celery, **more: Any) -> None:
    """Make the tasks known to an application, and to no other one: a worker's, or a sender's."""
    for scope, ours in SCOPES.items():
        variants = VARIANTS if scope == "running" else PASSING
        for variant, (celery, extra) in variants.items():
            run = single_instance(key="hold:{run}:{key}", **{**ours, **extra})(_act)
            app.task(
                bind=True, name=scope + variant, shared=False, autoretry_for=(KeyError,),
                max_retries=1, default_retry_delay=RETRY_DELAY_S, **celery, **more,
            )(run)  # fmt: skip
