"""Tasks whose locks are on ZooKeeper, on a real worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from celery.exceptions import WorkerLostError

from tests.celery.conftest import Run, get
from tests.celery.worker import Worker
from tests.timing import scaled
from tests.zookeeper_servers import ZooKeeperServer

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(180)]

MORTALS = "tests.celery.mortals"


def test_a_killed_childs_lock_is_free_long_before_its_session_ends(
    run: Run, other_worker: Callable[..., Worker], zookeeper_server: ZooKeeperServer
) -> None:
    """Its worker abandons it; the session would keep it for longer than the next one waits."""
    addresses = {"LOCKAPP_TEST_ZOOKEEPER_LOCKS": zookeeper_server.url}
    other_worker("zookeeper", addresses, app=MORTALS, children=8)
    result = run.send("live_on_zookeeper", queue="zookeeper")
    (entered,) = run.wait_told("enter")
    fresh = run.send("live_on_zookeeper", queue="zookeeper")
    os.kill(entered["pid"], signal.SIGKILL)
    first, second = run.wait_told("enter", 2, limit_s=20)
    assert second["fence"] > first["fence"]
    assert second["pid"] != first["pid"]
    run.open()
    assert get(fresh, scaled(20)) == 0
    with pytest.raises(WorkerLostError):
        get(result)
