"""A process full of callers of one flight, for test_single_flight_processes.

It says "ready", waits for a line, lets its callers go, and prints their answers as JSON: value or
error, and when (monotonic clock, which the processes of one machine share).

`python -m tests.integration.flight_child URL PREFIX CALLERS FRONT MODE SECONDS LOCK_TTL`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

import django
import redis
from django.conf import settings


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    url, prefix, callers, front, mode, seconds, lock_ttl = sys.argv[1:]
    base, _, _ = url.rpartition("/")
    settings.configure(
        CACHES={
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"{base}/1"},
        },
        LOCKAPP={
            "default": {
                "ENGINE": "lockapp.engines.redis.RedisEngine",
                "LOCATION": url,
                # Fifty connections at once in a busy loop under development mode take their time.
                "OPTIONS": {"prefix": prefix, "connect_timeout": 10, "command_timeout": 10},
            }
        },
        USE_TZ=True,
    )
    django.setup()
    from lockapp import asingle_flight, locks, single_flight

    notes = redis.Redis.from_url(f"{base}/2")

    def begin() -> str:
        notes.rpush(f"{prefix}:runs", os.getpid())
        return f"computed by {os.getpid()}"

    def end(value: str) -> str:
        notes.rpush(f"{prefix}:ends", time.monotonic())
        if mode == "fail":
            raise LookupError(value)
        return value

    def compute() -> str:
        value = begin()
        time.sleep(float(seconds))
        return end(value)

    async def acompute() -> str:
        value = begin()
        await asyncio.sleep(float(seconds))
        return end(value)

    answers: list[tuple[str, str, float]] = []
    options: dict[str, Any] = {"ttl": 30, "wait": 30, "lock_ttl": float(lock_ttl)}

    def note(kind: str, value: object) -> None:
        answers.append((kind, str(value), time.monotonic()))

    def call(barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            note("value", single_flight("rag", "q", compute=compute, **options))
        except Exception as error:  # noqa: BLE001 - told
            note(type(error).__name__, error)

    async def acall() -> None:
        try:
            note("value", await asingle_flight("rag", "q", compute=acompute, **options))
        except Exception as error:  # noqa: BLE001 - told
            note(type(error).__name__, error)

    async def aall() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(int(callers)):
                group.create_task(acall())
        await locks.aclose_all()

    say("ready")
    sys.stdin.readline()
    if front == "async":
        asyncio.run(aall())
    else:
        barrier = threading.Barrier(int(callers))
        threads = [threading.Thread(target=call, args=(barrier,)) for _ in range(int(callers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    locks.close_all()
    say(json.dumps(answers))


if __name__ == "__main__":
    main()
