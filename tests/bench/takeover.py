"""Takeover: how long a lock stays with a holder that was killed.

A process holds the lock and renews it; this process waits for it; SIGKILL; the time until this
process holds it. The moments of the kills are spread over the time between two renewals, since
what is left of a lease depends on when it was last renewed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import threading
import time
from multiprocessing.connection import Connection

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lock import Lock
from tests.bench.contend import percentile
from tests.bench.report import Chart, Section, Target
from tests.bench.surroundings import Surroundings
from tests.timing import wait_until

SIZES = {"full": (15, 1.5), "quick": (4, 1.0), "tiny": (1, 0.4)}  # kills, ttl
LATE_S = 0.05  # beyond the ttl
PREFIX, NAME = "takeover", "killed"


def measure(url: str, kills: int, ttl: float) -> list[float]:
    """Return the seconds from each kill to the takeover."""
    engine = RedisEngine("takeover", url, EngineOptions(prefix=PREFIX))
    found = [_once(engine, url, ttl, number / kills) for number in range(kills)]
    engine.close()
    return found


def _once(engine: RedisEngine, url: str, ttl: float, phase: float) -> float:
    """Kill ``phase`` of a renewal period after a renewal or so."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(theirs, url, ttl), daemon=True)
    holder.start()
    assert mine.poll(60), "the holder did not start"
    granted = mine.recv()
    taken = []

    def take() -> None:
        lease = Lock(engine, NAME, ttl=ttl, wait=60).acquire()
        taken.append(time.monotonic())
        lease.release()

    waiter = threading.Thread(target=take)
    waiter.start()
    wait_until(lambda: (state := engine.show(NAME)) and state.waiter_count == 1, what="the waiter")
    time.sleep(max(0.0, granted + ttl * (2 + phase) / 3 - time.monotonic()))
    assert holder.pid is not None
    killed = time.monotonic()
    os.kill(holder.pid, signal.SIGKILL)
    waiter.join()
    holder.join()
    return taken[0] - killed


def _hold(pipe: Connection, url: str, ttl: float) -> None:
    lease = Lock(
        RedisEngine("takeover", url, EngineOptions(prefix=PREFIX)), NAME, ttl=ttl, wait=30
    ).acquire()
    pipe.send(time.monotonic())
    while not lease.lost:
        time.sleep(60)


def run(around: Surroundings, size: str) -> list[Section]:
    """Several kills."""
    kills, ttl = SIZES[size]
    around.say(f"{kills} kills of a holder with a ttl of {ttl:g} s")
    seconds = sorted(measure(around.server.url, kills, ttl))
    figures = {
        "shortest": seconds[0],
        "median": statistics.median(seconds),
        "p90": percentile(seconds, 90),
        "longest": seconds[-1],
    }
    return [
        Section(
            f"Takeover after SIGKILL of a holder, ttl {ttl:g} s, {kills} kills",
            ("", *figures),
            (("seconds until the waiter holds", *(f"{it:.3f}" for it in figures.values())),),
            (Target("longest takeover", seconds[-1], ttl + LATE_S, " s"),),
            (
                Chart(
                    "takeover",
                    f"Seconds from SIGKILL to takeover, ttl {ttl:g} s, shortest first",
                    tuple(str(number) for number in range(1, kills + 1)),
                    {"lockapp": tuple(seconds)},
                ),
            ),
        )
    ]
