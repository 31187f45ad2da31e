"""What the collector does a minute: lock events into rows of events and holds, on each database.

Each database is measured by a process of its own, with tables made for it; one that is not there
is left out. All events lie in the stream before the collector hears of them. The most memory it had
is looked at after a tenth and at the end: what grows with the number of events shows there.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench.report import Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.services import why_absent

if TYPE_CHECKING:
    from lockapp.engines.redis import RedisEngine

EVENTS = {"full": 100_000, "quick": 20_000, "tiny": 200}
KINDS = ("postgres", "mariadb", "sqlite")
A_MINUTE = 100_000
GROWTH_MB = 8
PREFIX = "collecting"
NOTE = """\
One process collects what half as many acquisitions left behind, into rows of events and holds.
Server, database and collector share the machine."""


def run(around: Surroundings, size: str) -> list[Section]:
    """Measure each database that is there."""
    events = EVENTS[size]
    rows, targets = [], []
    for kind in KINDS if size != "tiny" else ("sqlite",):
        if kind != "sqlite" and why_absent(kind):
            rows.append((kind, "not there", "", "", ""))
            continue
        around.say(f"collecting {events:,} events on {kind}")
        found = _measured(kind, around.server.url, events)
        rows.append(
            (
                kind,
                rounded(found["per_second"]),
                rounded(found["cpu_us"]),
                rounded(found["memory_mb"]),
                f"{found['grown_mb']:.1f}",
            )
        )
        targets += [
            Target(f"{kind}, events a minute", found["per_second"] * 60, A_MINUTE, at_least=True),
            Target(f"{kind}, memory grown", found["grown_mb"], GROWTH_MB, " MB"),
        ]
    return [
        Section(
            f"The collector, {events:,} events",
            ("", "events a second", "its CPU an event, µs", "its memory, MB", "grown, MB"),
            tuple(rows),
            tuple(targets),
            notes=(NOTE,),
        )
    ]


def _measured(kind: str, url: str, events: int) -> dict[str, float]:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "LOCKAPP_TEST_DATABASE": kind,
    }
    command = [sys.executable, "-m", "tests.bench.collecting", url, str(events)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(url: str, events: int) -> None:
    """Collect in this process, into a database made for it; print what that took."""
    import django

    django.setup()
    from django.db import connection
    from django.test.utils import setup_databases, teardown_databases

    from lockapp.audit.collector import collect
    from lockapp.core.options import EngineOptions
    from lockapp.engines.redis import RedisEngine
    from lockapp.models import LockHold

    options = EngineOptions.parse({"prefix": PREFIX, "event_cap": 2 * events})
    engine = RedisEngine("default", url, options)
    made = setup_databases(verbosity=0, interactive=False)
    try:
        fill(engine, events // 10)
        collect(engine)
        before_mb = _memory_mb()
        fill(engine, events)
        started, cpu = time.perf_counter(), time.process_time()
        stored = collect(engine).stored
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        if stored != events or LockHold.objects.without_end().exists():
            raise RuntimeError(f"{stored} of {events} events stored")
        memory_mb = _memory_mb()
    finally:
        teardown_databases(made, verbosity=0)
        connection.close()
        engine.close()
    found = {
        "per_second": events / seconds,
        "cpu_us": cpu / events * 1e6,
        "memory_mb": memory_mb,
        "grown_mb": memory_mb - before_mb,
    }
    print(json.dumps(found))


def fill(engine: RedisEngine, events: int) -> None:
    """Leave that many events in the engine's stream, two for each acquisition."""
    from lockapp.context import holder_details
    from lockapp.lock import Lock

    for number in range(events // 2):
        with holder_details(task="shop.report", task_id=f"task-{number}", user="ann"):
            Lock(engine, f"order:{number % 5000}", wait=0).acquire().release()


def _memory_mb() -> float:
    """Return the most memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
