"""How each event of the table is brought about. A step returns the task that the row speaks of.

It leaves at the moment that counts: the task has ended, or what should end it has happened. Bodies
that wait are let through afterwards.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from celery.utils import uuid

from tests.celery import brokers
from tests.celery.semantics.scene import Scene
from tests.proxy import TcpProxy
from tests.timing import wait_until

Steps = Callable[[Scene], Any]


def wait_ended(result: Any) -> Any:
    """Wait for a task's outcome, whatever it is."""
    wait_until(result.ready, limit_s=30, every_s=0.01, what="the task's outcome")
    return result


# ------------------------------------------------------------------ by the body, or by a limit


def told_to(how: str, variant: str = "", **options: Any) -> Steps:
    """Send one that ends by itself."""
    return lambda scene: wait_ended(scene.send(how, variant, **options))


def told_to_leave_no_trace(how: str) -> Steps:
    """Send one that ends without an outcome."""

    def steps(scene: Scene) -> Any:
        result = scene.send(how)
        scene.run.wait_told("leave")
        wait_until(lambda: scene.state() is None, what="the end of the run")
        return result

    return steps


def returns(scene: Scene) -> Any:
    """Hold the lock for as long as the body takes."""
    result = scene.start()
    assert scene.holding_fence() == scene.first_fence()
    scene.run.open(count=1)
    return wait_ended(result)


# ------------------------------------------------------------------ by a signal


def child_killed(how: str = "hold", variant: str = "") -> Steps:
    """SIGKILL to the child, as the kernel does when memory is short."""

    def steps(scene: Scene) -> Any:
        result = scene.start(how, variant)
        os.kill(scene.first_pid(), signal.SIGKILL)
        return result

    return steps


def worker_killed(scene: Scene) -> Any:
    """SIGKILL to the worker and its children."""
    doomed = scene.other_worker("doomed")
    result = scene.start(variant="_brief", queue="doomed")
    doomed.kill()
    return result


def warm_shutdown(scene: Scene) -> Any:
    """SIGTERM: the worker takes no more, and waits for the body."""
    leaving = scene.other_worker("leaving")
    result = scene.start(queue="leaving")
    leaving.terminate()
    scene.wait_logged("Warm shutdown", leaving)
    return result


def cold_shutdown(variant: str = "", heir: bool = False) -> Steps:
    """SIGQUIT: the worker ends its children. Another one may take its place."""

    def steps(scene: Scene) -> Any:
        leaving = scene.other_worker("later", name="leaving")
        result = scene.start(variant=variant, queue="later")
        os.kill(leaving.pid, signal.SIGQUIT)
        leaving.wait(limit_s=20)
        if heir:
            scene.run.consume("later")
        return result

    return steps


# ------------------------------------------------------------------ by remote control, by the queue


def revoked_in_the_queue(scene: Scene) -> Any:
    """Its worker has it, and waits for its time to come."""
    result = scene.send(countdown=1)
    scene.run.revoke(result.id, scene.worker)
    return wait_ended(result)


def revoked_while_it_runs(**options: Any) -> Steps:
    """With or without `terminate`."""

    def steps(scene: Scene) -> Any:
        result = scene.start()
        scene.run.revoke(result.id, scene.worker, **options)
        return wait_ended(result) if options else result

    return steps


def expired(scene: Scene) -> Any:
    """It was to start within half a second, and not before one has passed."""
    return wait_ended(scene.send(countdown=1, expires=0.5))


def purged(scene: Scene) -> Any:
    """The queue is emptied before a worker reads it."""
    result = scene.send(variant="" if scene.scope == "running" else "_passing", queue="unread")
    assert brokers.purge(scene.run.broker, "unread") == 1
    return result


# ------------------------------------------------------------------ one message, twice


def published_twice(scene: Scene) -> Any:
    """The same id once more, while the first one runs. The copy is turned away at least once."""
    result = scene.start(task_id=uuid())
    scene.send("hold", task_id=result.id)
    scene.wait_logged(rf"\[{result.id}\] comes back")
    return result


def published_again_later(scene: Scene) -> Any:
    """The same id once more, after the first one succeeded."""
    result = told_to("value", task_id=uuid())(scene)
    scene.send(task_id=result.id)
    scene.run.wait_told("leave", 2)
    return result


def redelivered_while_it_runs(scene: Scene) -> Any:
    """The broker believes the worker to be gone, and gives the message to the next one who asks."""
    if scene.run.broker.name == "redis":
        result = scene.start(variant="_late")
        brokers.redeliver(scene.run.broker)
        scene.wait_logged(rf"\[{result.id}\] comes back")
        return result
    at = urlsplit(scene.run.broker.url)
    with TcpProxy(at.port or 5672) as between:
        place = at.netloc.rpartition("@")[0] + f"@127.0.0.1:{between.port}"
        broker = at._replace(netloc=place).geturl()
        scene.other_worker("later", {"LOCKAPP_TEST_BROKER": broker}, name="cut off")
        result = scene.start(variant="_late", queue="later")
        between.refuse()
        between.cut()
        scene.run.consume("later")
        scene.wait_logged(rf"\[{result.id}\] comes back")
    return result


def redelivered_after_the_worker_died(scene: Scene) -> Any:
    """Not acknowledged, so another worker gets it, while the lease is not over yet."""
    doomed = scene.other_worker("later", name="doomed")
    result = scene.start(variant="_brief_late", queue="later")
    doomed.kill()
    brokers.redeliver(scene.run.broker)
    scene.run.consume("later")
    scene.wait_logged(rf"\[{result.id}\] comes back")
    return result
