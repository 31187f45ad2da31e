"""The application of the workers whose children the tests of test_death.py kill.

Its leases are long: within the time of a test none runs out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from celery import Task

from lockapp.celery import single_instance
from tests.celery.app import _body as body
from tests.celery.app import _tell as tell
from tests.celery.app import app

__all__ = ["app"]

TTL_S = 30

if method := os.environ.get("LOCKAPP_TEST_START_METHOD"):
    app.conf.worker_pool_start_method = method
if count := os.environ.get("LOCKAPP_TEST_TASKS_PER_CHILD"):
    app.conf.worker_max_tasks_per_child = int(count)


def _live(self: Task[..., Any], run: str, key: int = 0, deaf: bool = False) -> object:
    """Deaf to SIGTERM, as a body inside a C library is, or not."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return body(self, run, key)


for suffix, late, requeued in (
    ("", False, False),
    ("_late", True, False),
    ("_requeued", True, True),
):
    app.task(bind=True, name=f"live{suffix}", acks_late=late, reject_on_worker_lost=requeued)(
        single_instance(key="hold:{run}:{key}", ttl=TTL_S)(_live)
    )


@app.task(bind=True, name="live_with_children")
@single_instance(key="hold:{run}:{key}", ttl=TTL_S)
def live_with_children(self: Task[..., Any], run: str, key: int = 0) -> object:
    """With a forked process and a program that go on when it dies."""
    forked = os.fork()
    if not forked:
        time.sleep(60)
        os._exit(0)
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    tell(run, "children", pids=[forked, program.pid])
    return body(self, run, key)


@app.task(bind=True, name="live_or_wait")
@single_instance(key="hold:{run}:{key}", ttl=TTL_S, on_contention="wait", wait=TTL_S)
def live_or_wait(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@app.task(bind=True, name="live_or_join")
@single_instance(key="hold:{run}:{key}", ttl=TTL_S, on_contention="join", wait=TTL_S)
def live_or_join(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@single_instance(key="step:{run}:{step}")
def one_step(run: str, step: int) -> None:
    """Called directly, within the body of another task."""


@app.task(bind=True, name="many_steps")
@single_instance(key="hold:{run}:{key}", ttl=TTL_S)
def many_steps(self: Task[..., Any], run: str, steps: int, key: int = 0) -> None:
    """Take and give back many locks, once the gate opens."""
    body(self, run, key)
    for step in range(steps):
        one_step(run, step)
    tell(run, "stepped")


@app.task(bind=True, name="live_on_frail_engine")
@single_instance(key="hold:{run}:{key}", ttl=TTL_S, using="frail", on_contention="wait", wait=TTL_S)
def live_on_frail_engine(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@app.task(bind=True, name="live_on_zookeeper")
@single_instance(key="hold:{run}:{key}", on_contention="wait", wait=25, using="zookeeper")
def live_on_zookeeper(self: Task[..., Any], run: str, key: int = 0) -> object:
    """Its session lives for longer than another copy waits."""
    return body(self, run, key)
