"""What the children of a prefork worker do is counted together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from tests.celery.conftest import Run, get_all
from tests.celery.worker import Worker
from tests.timing import wait_until


def test_the_children_of_a_worker_count_together(
    run: Run,
    other_worker: Callable[..., Worker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two bodies at once, in two children, and a duplicate that does not run."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    other_worker("counted", {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, children=3)
    results = [run.send("hold", key, queue="counted") for key in (1, 2)]
    told = run.wait_told("enter", 2)
    assert len({event["pid"] for event in told}) == 2
    results.append(run.send("hold", 1, queue="counted"))
    wait_until(results[-1].ready, limit_s=10, what="the skip")
    run.open(1)
    run.open(2)
    get_all(results)

    def count(metric: str, **labels: Any) -> float | None:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(tmp_path))
        return registry.get_sample_value(metric, {"engine": "default", "family": "hold", **labels})

    assert count("lockapp_wait_seconds_count") == 2
    # A result may be there a moment before its child has counted the release.
    wait_until(lambda: count("lockapp_hold_seconds_count", outcome="released") == 2)
    assert count("lockapp_tasks_turned_away_total", outcome="skipped") == 1
