"""The tasks of test_pools.py, run by workers with other pools."""

from __future__ import annotations

import time
from typing import Any

from celery import Task

from lockapp.celery import current_lease, single_instance
from lockapp.exceptions import LeaseLost
from lockapp.lease import Lease
from tests.celery.app import _body as body
from tests.celery.app import _tell as tell
from tests.celery.app import app

LISTEN_LIMIT_S = 30


@app.task(bind=True, name="pool.briefly")
@single_instance(key="hold:{run}:{key}", ttl=1)
def briefly(self: Task[..., Any], run: str, key: int = 0) -> object:
    """Renewed every third of a second, or lost."""
    held = body(self, run, key)
    current_lease().check()
    return held


def _asked(lease: Lease) -> None:
    tell(lease.name.split(":")[1], "asked", name=lease.name)


@app.task(bind=True, name="pool.listen")
@single_instance(key="hold:{run}:{key}", on_revoke=_asked)
def listen(self: Task[..., Any], run: str, key: int = 0) -> str:
    """Work in small steps, and stop when the lease is gone."""
    lease = current_lease()
    tell(run, "enter", key=key, id=self.request.id, fence=lease.fence)
    end = time.monotonic() + LISTEN_LIMIT_S
    while time.monotonic() < end:
        try:
            lease.check()
        except LeaseLost:
            return f"stopped: {lease.lost_reason}"
        time.sleep(0.01)
    return "heard nothing"
