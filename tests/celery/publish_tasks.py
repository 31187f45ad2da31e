"""The tasks of test_publish.py: defined in the workers' application and in those that send."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from lockapp.celery import single_instance

QUEUE = "publishing"
PARKED = 60
"""So many queues that no worker takes from before it is told to: one for each test."""


def body(task: Task[..., Any], run: str, key: int = 0) -> object:
    """Enter, wait for the gate of this run and key, leave."""
    from tests.celery.app import GATE_LIMIT_S, _client, _tell

    _tell(run, "enter", key=key, id=task.request.id)
    try:
        _client().blpop([f"gate:{run}:{key}"], timeout=GATE_LIMIT_S)
    finally:
        _tell(run, "leave", key=key, id=task.request.id)
    return key


def retry_once(task: Task[..., Any], run: str, key: int = 0, queue: str = QUEUE) -> object:
    """Come back once, through a queue, when the gate has opened once."""
    done = body(task, run, key)
    if not task.request.retries:
        raise task.retry(countdown=0, queue=queue)
    return done


def replace_once(task: Task[..., Any], run: str, key: int = 0) -> object:
    """Have the task `either` go on in its place, under the same id."""
    body(task, run, key)
    return task.replace(task.app.tasks["either"].si(run, key).set(queue=QUEUE))


ANY: dict[str, Any] = {"key": "hold:{run}:{key}"}
OPTIONS: dict[str, dict[str, Any]] = {
    "queued": {"scope": "queued"},
    "either": {"scope": "queued_or_running"},
    "both": {"scope": "queued_and_running", "on_contention": "retry"},
    "both_waiting": {"scope": "queued_and_running", "on_contention": "wait", "wait": 20},
    "briefly": {"scope": "queued", "queued_ttl": 4},
    "either_late": {"scope": "queued_or_running"},
    "retrying": {"scope": "queued_or_running"},
    "replacing": {"scope": "queued_or_running", "key": "replacing:{run}:{key}"},
    "plain": {"scope": "running"},
}
BODIES = {"retrying": retry_once, "replacing": replace_once}
LATE = {"acks_late": True, "reject_on_worker_lost": True}


def define(app: Celery, **options: Any) -> None:
    """Make the tasks known to an application, and to no other one."""
    for name, more in OPTIONS.items():
        run = single_instance(**{**ANY, **more})(BODIES.get(name, body))
        late = LATE if name == "either_late" else {}
        app.task(bind=True, name=name, shared=False, **late, **options)(run)
