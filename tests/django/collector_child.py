"""A process that collects until it is killed; run by test_collector_processes.py.

    python -m tests.django.collector_child URL PREFIX [WHERE]

Without WHERE it collects for ever in small batches. With WHERE it kills itself there: "before"
the transaction, "inside" it when the events were inserted, "written" when their holds were too, or
"after" the commit, before the trim.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import django


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, prefix: str, where: str = "") -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from django.db import DatabaseError

    from lockapp.audit import collector
    from lockapp.core.options import EngineOptions
    from lockapp.engines.redis import RedisEngine
    from lockapp.querysets import LockEventQuerySet

    engine = RedisEngine("default", url, EngineOptions.parse({"prefix": prefix}))
    if where == "before":
        collector._store = die  # type: ignore[assignment]
    elif where == "inside":
        insert = LockEventQuerySet.bulk_create

        def insert_and_die(*args: Any, **options: Any) -> Any:
            insert(*args, **options)
            die()

        LockEventQuerySet.bulk_create = insert_and_die  # type: ignore[method-assign]
    elif where == "written":
        write = collector.write

        def write_and_die(*args: Any) -> None:
            write(*args)
            die()

        collector.write = write_and_die
    elif where == "after":
        collector._trim = die
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            if not collector.collect(engine, batch=7).stored:
                time.sleep(0.005)
        except DatabaseError as error:  # SQLite's only writer was somebody else for too long
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
