"""Metrics: what is counted, under which labels, in one process and in several."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from lockapp.core.breaker import FAILURES
from lockapp.exceptions import LeaseLost, NotAcquired
from lockapp.handler import lock, locks
from lockapp.metrics import apps, prometheus
from lockapp.metrics.prometheus import FAMILIES, Metrics, connect, disconnect
from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
ORDER = {"engine": "default", "family": "order"}


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """A registry in which locks are counted."""
    made = CollectorRegistry()
    connect(made)
    yield made
    disconnect()


def test_a_life_is_counted(redis_locks: Any, registry: CollectorRegistry) -> None:
    """How long it waited and was held; who gave up."""

    def contend() -> bool:
        with suppress(NotAcquired):
            lock("order", 1).acquire(wait=0)
            return False
        return True

    with lock("order", 1), ThreadPoolExecutor(1) as somebody_else:
        assert somebody_else.submit(contend).result()
    assert registry.get_sample_value("lockapp_wait_seconds_count", ORDER) == 1
    held = {**ORDER, "outcome": "released"}
    assert registry.get_sample_value("lockapp_hold_seconds_count", held) == 1
    assert registry.get_sample_value("lockapp_contended_total", ORDER) == 1
    assert registry.get_sample_value("lockapp_engine_up", {"engine": "default"}) == 1


@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_a_loss_is_counted_once_with_its_reason(
    redis_locks: Any, registry: CollectorRegistry
) -> None:
    """By the holder and by who took it, here the same process."""
    lease = lock("order", 1).acquire()
    redis_locks["default"].force_release("order:1", lease.fence, actor="ann", reason="stuck")
    with pytest.raises(LeaseLost):
        lease.release()
    with suppress(LeaseLost):
        lease.release()
    assert registry.get_sample_value("lockapp_forced_total", ORDER) == 1
    lost = {**ORDER, "reason": "forced"}
    assert registry.get_sample_value("lockapp_leases_lost_total", lost) == 1
    held = {**ORDER, "outcome": "forced"}
    assert registry.get_sample_value("lockapp_hold_seconds_count", held) == 1


def test_an_outage_is_counted(
    settings: Any, fresh_redis: RedisServer, registry: CollectorRegistry
) -> None:
    """And what ran all the same, and that it is over."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    fresh_redis.kill()
    for _ in range(FAILURES + 1):
        with lock("order", 1, on_unavailable="open"):
            pass
    opened = {**ORDER, "way": "open"}
    assert registry.get_sample_value("lockapp_degraded_total", opened) == FAILURES + 1
    engine = {"engine": "default"}
    assert registry.get_sample_value("lockapp_engine_outages_total", engine) == 1
    assert registry.get_sample_value("lockapp_engine_up", engine) == 0
    fresh_redis.start()
    wait_until(
        lambda: registry.get_sample_value("lockapp_engine_up", engine) == 1,
        limit_s=20,
        what="the watchdog to find that it answers again",
    )
    wait_until(lambda: not locks["default"].sync.watchdog._backlog, limit_s=15, what="the report")
    locks.close_all()


def test_families_are_bounded() -> None:
    """Who uses ids as families gets one label more, not a million."""
    metrics = Metrics(CollectorRegistry())
    seen = {metrics.of("default", f"order{n}:1")["family"] for n in range(FAMILIES + 50)}
    assert len(seen) == FAMILIES + 1
    assert "other" in seen
    assert metrics.of("default", "order1:77")["family"] == "order1"


def test_the_app_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed in INSTALLED_APPS without its library."""
    monkeypatch.delitem(sys.modules, "lockapp.metrics.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImproperlyConfigured, match=r"django-lockapp\[prometheus\]"):
        apps.MetricsConfig("lockapp.metrics", __import__("lockapp.metrics").metrics).ready()


# ------------------------------------------------------------------ several processes


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=scaled(20)) as answer:
        return str(answer.read().decode())


def test_the_workers_of_gunicorn_count_together(
    redis_url: str, prefix: str, tmp_path: Path
) -> None:
    """Two processes, forked after the application was loaded; either answers for both."""
    port = free_port()
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "LOCKAPP_TEST_LOCKS": redis_url,
        "LOCKAPP_TEST_PREFIX": prefix,
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
    command += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", "tests.django.metrics_site"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=ROOT, env=environment) as server:
        try:
            pids: list[str] = []

            def both() -> bool:
                with suppress(OSError):
                    pids.append(fetch(f"{url}/lock"))
                return len(set(pids)) == 2

            wait_until(both, limit_s=30, every_s=0.01, what="both workers to answer")
            found = {
                sample.name: sample.value
                for family in text_string_to_metric_families(fetch(f"{url}/metrics"))
                for sample in family.samples
                if sample.name in ("lockapp_wait_seconds_count", "lockapp_hold_seconds_count")
            }
        finally:
            server.terminate()
    assert found == dict.fromkeys(
        ("lockapp_wait_seconds_count", "lockapp_hold_seconds_count"), len(pids)
    )


# ------------------------------------------------------------------ what is written about them


def names() -> set[str]:
    """The metrics as they are queried, without the parts of a histogram."""
    registry = CollectorRegistry()
    Metrics(registry)
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }


def named(text: str) -> set[str]:
    """The metrics that a text names, also by a part of a histogram."""
    return set(re.findall(r"\blockapp_[a-z_]*(?:total|seconds|up)(?=\b|_bucket|_count)", text))


@pytest.mark.parametrize("file", ["reference/metrics.md", "metrics/grafana.json"])
def test_what_is_written_names_each_metric(file: str) -> None:
    """And no other."""
    text = (ROOT / "docs" / file).read_text("utf-8")
    found = named(text)
    assert found == names()


def test_alerts_are_on_metrics_that_exist() -> None:
    """A renamed metric must not leave an alert that never fires."""
    text = (ROOT / "docs" / "metrics" / "alerts.yml").read_text("utf-8")
    found = named(text)
    assert found
    assert found <= names()


def test_receivers_and_signals_are_in_step() -> None:
    """Each signal is counted."""
    from lockapp import signals

    told = {it for it in vars(signals).values() if isinstance(it, signals.LockSignal)}
    assert set(prometheus.RECEIVERS.values()) == told
