"""A process that holds locks and writes under their fences; run by test_fencing_processes.py.

Each line of its input is a JSON object with one step to take, each line of its output the answer.
It stops itself (SIGSTOP) where a step says so: before the statement that begins with a word, at the
end of the block ("body"), or when the last look at the lease is over, right before "COMMIT".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import django

WORDS = "words"
"""The table that is written: under each name, the letters of those who did, in their order."""


def main() -> None:
    """Take steps until the input ends."""
    django.setup()
    child = Child()
    for line in sys.stdin:
        step = json.loads(line)
        answer(child.take(step.pop("step"), step))


def answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Child:
    """One process, in a few steps."""

    def __init__(self) -> None:
        self.engines: dict[tuple[str, str, int], Any] = {}
        self.leases: dict[str, Any] = {}

    def take(self, step: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return what came of a step: the error with its fields, if it was one."""
        started = time.monotonic()
        try:
            came = getattr(self, step)(**options)
        except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
            came = {"error": type(error).__name__, "text": str(error)}
        return {**came, "took": time.monotonic() - started}

    def connect(self, database: dict[str, Any]) -> dict[str, Any]:
        """Have this database as the default one from now on."""
        from django.db import connections
        from django.db.utils import ConnectionHandler

        if database["ENGINE"].endswith("mysql"):
            import pymysql

            pymysql.install_as_MySQLdb()
        connections["default"].close()
        connections["default"] = ConnectionHandler({"default": database})["default"]
        connections["default"].ensure_connection()
        return {}

    def acquire(
        self, name: str, url: str, prefix: str, ttl: float, alias: str = "default", epoch: int = 1
    ) -> dict[str, Any]:
        """Take a lock."""
        from lockapp.core.options import EngineOptions
        from lockapp.engines.redis import RedisEngine
        from lockapp.lock import Lock

        key = alias, prefix, epoch
        if key not in self.engines:
            options = EngineOptions.parse({"prefix": prefix, "fence_epoch": epoch})
            self.engines[key] = RedisEngine(alias, url, options)
        lock = Lock(self.engines[key], name, ttl=ttl, wait=30)
        self.leases[name] = lease = lock.acquire()
        return {"fence": lease.fence}

    def release(self, name: str) -> dict[str, Any]:
        """Give it back, if it is still ours."""
        self.leases.pop(name).release()
        return {}

    def look(self, name: str) -> dict[str, Any]:
        """Say what this process knows of its lease, by its own clock."""
        return {"live": self.leases[name].live}

    def write(self, name: str, letter: str, stop_at: str = "") -> dict[str, Any]:
        """Add a letter to what is there; answers what was there."""
        from django.db import connection

        from lockapp.fencing import fenced_atomic

        with ExitStack() as stack:
            stack.enter_context(connection.execute_wrapper(before(stop_at, stop)))
            stack.enter_context(connection.execute_wrapper(before("INSERT INTO", claiming)))
            commit = connection.commit
            if stop_at == "COMMIT":
                connection.commit = lambda: (stop(), commit())  # type: ignore[method-assign]
                stack.callback(delattr, connection, "commit")
            try:
                with fenced_atomic(self.leases[name]), connection.cursor() as cursor:
                    cursor.execute(f"SELECT word FROM {WORDS} WHERE name = %s", [name])
                    (word,) = cursor.fetchone()
                    word_after = word + letter
                    cursor.execute(
                        f"UPDATE {WORDS} SET word = %s WHERE name = %s", [word_after, name]
                    )
                    if stop_at == "body":
                        stop()
            except Exception as error:  # noqa: BLE001 - as above
                return {
                    "error": type(error).__name__,
                    "text": str(error),
                    "cause": str(error.__cause__),
                    "live": self.leases[name].live,
                }
        return {"saw": word}


def claiming() -> None:
    """Tell that the claim is sent now."""
    answer("claiming")


def before(word: str, do: Callable[[], object]) -> Callable[..., Any]:
    """Do something before the first statement that begins with a word."""
    left = [do] if word else []

    def execute(run: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if left and sql.lstrip().startswith(word):
            left.pop()()
        return run(sql, *rest)

    return execute


if __name__ == "__main__":
    main()
