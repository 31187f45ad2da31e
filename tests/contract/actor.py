"""A process that takes locks on request: `python -m tests.contract.actor URL PREFIX NAME VERB …`.

It says on standard output what it has, one line each, and obeys lines on standard input.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lease import Lease
from lockapp.lock import Lock

# A process frozen between its two requests waits for one slice on an inbox that has lapsed.
OPTIONS = {"tombstone": 0.2, "waiting_slice": 1}


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def obey(lease: object) -> None:
    """Answer questions about the lease until standard input ends."""
    for line in sys.stdin:
        say(eval(line, {"lease": lease}))


def visit(lock: Lock, directory: Path, times: int) -> None:
    """Enter and leave; another one inside makes `touch` fail."""
    for _ in range(times):
        with lock as lease:
            _inside(directory)
            say(lease.fence)


async def avisit(lock: Lock, directory: Path, times: int) -> None:
    """See visit()."""
    for _ in range(times):
        async with lock as lease:
            _inside(directory)
            say(lease.fence)


def _inside(directory: Path) -> None:
    mark = directory / "inside"
    mark.touch(exist_ok=False)
    mark.unlink()


def main() -> None:
    url, prefix, name, verb, *rest = sys.argv[1:]
    engine = RedisEngine("actor", url, EngineOptions.parse(OPTIONS | {"prefix": prefix}))
    if verb == "visit":
        lock = Lock(engine, name, wait=30)
        if rest[2] == "async":
            asyncio.run(avisit(lock, Path(rest[0]), int(rest[1])))
        else:
            visit(lock, Path(rest[0]), int(rest[1]))
    elif verb == "hold":
        lease = Lock(engine, name, ttl=float(rest[0])).acquire()
        say("held", lease.fence)
        obey(lease)
    elif verb == "wait":
        for number in range(int(rest[0])):
            waiting = Lock(engine, f"{name}{number}", ttl=5, wait=60, why="doomed")
            threading.Thread(target=waiting.acquire, daemon=True).start()
        say("waiting")
        sys.stdin.read()
    elif verb == "leave":  # without releasing
        lock = Lock(engine, name, ttl=float(rest[0]))
        lease = asyncio.run(_aleave(lock)) if rest[1] == "async" else lock.acquire()
        say("held", lease.fence)


async def _aleave(lock: Lock) -> Lease:
    lease = await lock.aacquire()
    await asyncio.sleep(0.05)
    return lease


if __name__ == "__main__":
    main()
