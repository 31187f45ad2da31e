"""More events, as in `steps.py`: the ways to send a message, and what is down meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.utils import uuid
from kombu.exceptions import OperationalError

from lockapp.celery import LockTask
from tests.celery.semantics.bodies import define
from tests.celery.semantics.scene import Scene
from tests.celery.semantics.steps import Steps, wait_ended
from tests.celery.worker import CeleryProcess
from tests.servers import free_port
from tests.timing import wait_until


def copy(variant: str = "") -> Steps:
    """While one runs, another service sends the same by name. It ends, or comes back later."""

    def steps(scene: Scene) -> Any:
        scene.start(variant=variant)
        result = scene.send(variant=variant)
        wait_until(lambda: result.state != "PENDING", limit_s=15, what="the refusal of the copy")
        return result

    return steps


def waiting_copy(variant: str) -> Steps:
    """The same, with a copy that waits in its child."""

    def steps(scene: Scene) -> Any:
        scene.start(variant=variant)
        result = scene.send(variant=variant)
        wait_until(scene.is_waited_for, limit_s=15, what="a copy that waits")
        return result

    return steps


def copy_while_one_waits(scene: Scene) -> Any:
    """Two are sent before a worker reads the queue. The row speaks of the second."""
    scene.send(queue="later")
    result = scene.send(queue="later")
    scene.run.consume("later")
    return wait_ended(result)


def copy_while_one_runs(scene: Scene) -> Any:
    """It is sent and has been seen by a worker, or it is not sent."""
    first = scene.start()
    result = scene.send()
    seen = result.id == first.id
    wait_until(lambda: seen or result.state != "PENDING", limit_s=15, what="what becomes of it")
    return result


def by_beat(scene: Scene) -> Any:
    """A real beat sends it, while one runs."""
    scene.start()
    result = scene.run.result(uuid())
    entry = [scene.scope, scene.run.id, result.id]
    environment = {**scene.worker.environment, "LOCKAPP_TEST_BEAT": json.dumps(entry)}
    arguments = ["beat", "--schedule", str(scene.folder / "schedule"), "--pidfile=", "-l", "INFO"]
    log, app = scene.folder / "beat.log", "tests.celery.semantics.beat"
    with CeleryProcess(arguments, log, environment, app=app, ready="Sending due task"):
        return wait_ended(result)


def eager(scene: Scene) -> Any:
    """By `apply()`, inside of another task's body."""
    return wait_ended(scene.run.send("semantics.eagerly", scene.scope))


def eager_copy(scene: Scene) -> Any:
    """The same, while one runs."""
    scene.start()
    return eager(scene)


def in_a_chain(scene: Scene) -> Any:
    """A copy is a chain's first link. The row speaks of the next one, which gets its value."""
    scene.start()
    links = scene.signature() | _hand_on(scene)
    return wait_ended(links.apply_async())


def in_a_group(scene: Scene) -> Any:
    """Two members of one key; the row speaks of the one that does not run."""
    members = [scene.signature("hold") for _ in range(2)]
    results = group(members, app=scene.run.client)().results
    wait_until(lambda: any(it.ready() for it in results), limit_s=15, what="one of two")
    return next(it for it in results if it.ready())


def in_a_chord(scene: Scene) -> Any:
    """Two members of one key; the row speaks of the chord's body."""
    members = [scene.signature("hold") for _ in range(2)]
    result = chord(members, app=scene.run.client)(_hand_on(scene))
    wait_until(
        lambda: any(it.ready() for it in result.parent.results), limit_s=15, what="one of two"
    )
    return result


def _hand_on(scene: Scene) -> Any:
    return scene.run.client.signature("semantics.hand_on", queue="shared")


# ------------------------------------------------------------------ by what is down


def broker_down_at_publish(scene: Scene) -> Any:
    """Nobody listens where the sender looks for the broker."""
    scheme, task_id = scene.run.broker.url.partition(":")[0], uuid()
    nowhere = f"{scheme}://127.0.0.1:{free_port()}"
    with Celery("cut off", broker=nowhere, set_as_current=False) as app:
        app.conf.broker_transport_options = {"max_retries": 0}
        define(app, base=LockTask)
        scene.task = scene.scope
        sending: Any = {"task_id": task_id, "retry": False}
        with pytest.raises(OperationalError):
            app.tasks[scene.scope].apply_async((scene.run.id,), **sending)
    return scene.run.result(task_id)


def engine_down_at_publish(scene: Scene) -> Any:
    """It is back when a worker takes the message."""
    scene.frail_server.kill()
    try:
        result = scene.send(variant="_frail", queue="later")
    finally:
        scene.frail_server.start()
    scene.run.consume("later")
    return wait_ended(result)


def engine_down_at_start(scene: Scene) -> Any:
    """It comes back after the task has ended."""
    scene.frail_server.kill()
    try:
        return wait_ended(scene.send(variant="_frail"))
    finally:
        scene.frail_server.start()


def engine_down_at_end(scene: Scene) -> Any:
    """Frozen when the body ends, and for a while after the result is there."""
    result = scene.start(variant="_frail")
    scene.frail_server.pause()
    try:
        scene.run.open(count=1)
        return wait_ended(result)
    finally:
        scene.frail_server.resume()


def taken_away(variant: str = "") -> Steps:
    """By an operator, while the body runs."""

    def steps(scene: Scene) -> Any:
        result = scene.start(variant=variant)
        assert scene.engine.force_release(
            scene.name, scene.first_fence(), actor="alice", reason="stuck"
        )
        return result

    return steps
