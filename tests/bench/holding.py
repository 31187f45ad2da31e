"""Holding many leases: what renewal costs, and whether any is lost."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import redis

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lock import Lock
from tests.bench.contestants import commands_sent
from tests.bench.report import Chart, Section, Target, rounded
from tests.bench.surroundings import Surroundings

LEASES = {"full": (100, 1_000, 10_000), "quick": (100, 1_000), "tiny": (10,)}
TIMES = {"full": (30.0, 2), "quick": (6.0, 2), "tiny": (0.6, 2)}  # ttl, periods
JUDGED = 10_000
AIM_THREADS, AIM_CPU, AIM_CALLS = 1, 0.02, 60


@dataclass(frozen=True)
class HoldingResult:
    """Figures of one run."""

    leases: int
    seconds: float
    threads: int  # beside the main one
    cpu_share: float  # of one core, this process
    calls_per_period: float  # a period is ttl / 3
    lost: int


def measure(url: str, leases: int = 10_000, ttl: float = 30.0, periods: float = 2) -> HoldingResult:
    """Hold ``leases`` leases for ``periods`` renewal periods.

    Every lease is renewed several times over: without renewal all would be lost in the middle.
    """
    others = set(threading.enumerate())
    engine = RedisEngine("bench", url, EngineOptions(prefix="holding"))
    held = [Lock(engine, f"hold:{number}", ttl=ttl).acquire(0) for number in range(leases)]
    with redis.Redis.from_url(url) as server:
        time.sleep(ttl / 3)  # they were taken over a time; let renewal come to its rhythm
        server.config_resetstat()
        cpu, started = time.process_time(), time.monotonic()
        time.sleep(periods * ttl / 3)
        cpu, seconds = time.process_time() - cpu, time.monotonic() - started
        calls = commands_sent("lockapp", server)
    lost = sum(lease.lost for lease in held)
    threads = len(set(threading.enumerate()) - others)
    for lease in held:
        lease.release()
    engine.close()
    return HoldingResult(
        leases, seconds, threads, cpu / seconds, calls / (seconds / (ttl / 3)), lost
    )


def run(around: Surroundings, size: str) -> list[Section]:
    """From few leases to many."""
    ttl, periods = TIMES[size]
    results = []
    for leases in LEASES[size]:
        around.say(f"holding {leases:,} leases")
        results.append(measure(around.server.url, leases, ttl, periods))
    return [
        Section(
            f"Holding leases of {ttl:g} s, for {periods} periods of {ttl / 3:g} s",
            ("leases", "threads", "client CPU", "calls a period", "lost"),
            tuple(
                (
                    f"{it.leases:,}", str(it.threads), f"{it.cpu_share:.2%} of a core",
                    rounded(it.calls_per_period), str(it.lost),
                )
                for it in results
            ),
            tuple(target for it in results if it.leases == JUDGED for target in judged(it)),
            (
                Chart(
                    "holding",
                    "Calls in a renewal period",
                    tuple(f"{it.leases:,} leases" for it in results),
                    {"lockapp": tuple(it.calls_per_period for it in results)},
                ),
            ),
        )
    ]  # fmt: skip


def judged(it: HoldingResult) -> tuple[Target, ...]:
    """What is asked of a process that holds ten thousand."""
    many = f"{it.leases:,} leases"
    return (
        Target(f"threads that look after {many}", it.threads, AIM_THREADS),
        Target(f"client CPU for {many}", it.cpu_share * 100, AIM_CPU * 100, " % of a core"),
        Target(f"calls a period for {many}", it.calls_per_period, AIM_CALLS),
        Target(f"of {many} lost", it.lost, 0),
    )
