"""What the suite's workers run for the table: the tasks of `bodies.py`, and some around them."""

from __future__ import annotations

from typing import Any

from celery import current_app

from lockapp.celery import LockTask
from tests.celery.app import app
from tests.celery.semantics.bodies import define

define(app, base=LockTask)


@app.task(name="semantics.other")
def other() -> str:
    """What a task replaces itself with."""
    return "of the other"


@app.task(name="semantics.hand_on")
def hand_on(value: Any) -> Any:
    """The next link of a chain, the body of a chord: hands back what it got."""
    return value


@app.task(name="semantics.eagerly")
def eagerly(run: str, name: str) -> Any:
    """Apply a task eagerly, here in the worker, and hand back what it returned."""
    return current_app.tasks[name].apply((run,)).get(disable_sync_subtasks=False)
