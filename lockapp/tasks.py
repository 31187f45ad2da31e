"""The Celery tasks that lockapp ships; found by ``app.autodiscover_tasks()``.

::

    CELERY_BEAT_SCHEDULE = {
        "collect lock events": {
            "task": "lockapp.tasks.collect",
            "schedule": timedelta(seconds=2),
            "options": {"expires": 10},
        },
    }

``collect`` also reclaims expired leases, so one entry is enough. Two runs at once do no harm.
Can be imported without Celery; then there is nothing in it.
"""

from __future__ import annotations

from dataclasses import asdict

from lockapp.audit import collector
from lockapp.engines.base import Engine
from lockapp.handler import locks

try:
    from celery import shared_task
except ImportError:
    shared_task = None  # type: ignore[assignment]


def engines(using: str | None = None) -> list[Engine]:
    """Return the engine of an alias, or all whose locks other processes see."""
    if using is not None:
        return [locks[using]]
    return [engine for engine in locks.all() if engine.shared_between_processes]


if shared_task is not None:

    @shared_task(name="lockapp.tasks.collect", ignore_result=True)
    def collect(using: str | None = None) -> dict[str, dict[str, int]]:
        """Store the events of one engine, or of all; return per alias what was done.

        An engine that fails does not keep the others from being collected; its error is raised
        at the end, so that the task is seen to have failed.
        """
        done, failed = collector.collect_all(engines(using))
        if failed:
            raise next(iter(failed.values()))
        return {alias: asdict(collected) for alias, collected in done.items()}

    @shared_task(name="lockapp.tasks.sweep", ignore_result=True)
    def sweep(using: str | None = None) -> dict[str, int]:
        """Reclaim expired leases of one engine, or of all; return per alias how many there were."""
        return {engine.alias: engine.sweep() for engine in engines(using)}
