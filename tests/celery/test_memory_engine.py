"""A worker whose locks would bind nobody: its tasks fail, and their bodies don't run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.celery.brokers import Broker
from tests.celery.conftest import get
from tests.celery.worker import ROOT, Worker

SETTINGS = """
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["lockapp"]
LOCKAPP = {"default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"}}
"""


def test_tasks_fail_where_locks_would_bind_nobody(
    client: Celery, broker: Broker, results_url: str, tmp_path: Path
) -> None:
    """Loudly, with the cure. That the checks say so first keeps no worker from starting."""
    (tmp_path / "memory_settings.py").write_text(SETTINGS)
    environment = {
        "DJANGO_SETTINGS_MODULE": "memory_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "LOCKAPP_TEST_BROKER": broker.url,
        "LOCKAPP_TEST_QUEUES": broker.prefix,
        "LOCKAPP_TEST_RESULTS": results_url,
    }
    run = f"memory{os.getpid()}"
    with Worker("memory", tmp_path / "memory.log", environment, children=1):
        result = client.send_task("hold", (run,), queue="memory")
        with pytest.raises(Exception, match="single_process") as caught:
            get(result)
        result.forget()
    assert type(caught.value).__name__ == "ImproperlyConfigured"
    with redis.Redis.from_url(results_url) as server:
        assert not server.exists(f"told:{run}")
