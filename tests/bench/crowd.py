"""A crowd at one name: what a thousand waiters cost the one who holds it.

A holder that lets go can't have the lock again before the crowd, so the measuring process stands
in front: it queues tokens of its own first, then the waiters come, and then it takes up and
releases one of its tokens after the other while they all wait behind. Such a pair (take the grant
from the inbox, release) is set beside the pair of a name that nobody waits for (acquire, release);
both at the level of the engine's steps, in turns. At the end the crowd itself gets the lock, each
once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import redis

from lockapp.core.options import EngineOptions
from lockapp.core.run import run_sync
from lockapp.core.values import LockSpec
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lock import Lock
from tests.bench.report import Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.timing import wait_until

SIZES = {"full": (1000, 40, 10), "quick": (100, 10, 10), "tiny": (4, 2, 2)}  # waiters, turns, pairs
PROCESSES = 4  # that the waiters are tasks of
PATIENCE_S = 120.0
PREFIX, CROWDED, EMPTY = "crowd", "crowded", "empty"
AIM = 2.0


@dataclass(frozen=True)
class CrowdResult:
    """The figures."""

    waiters: int
    crowded_us: float
    empty_us: float
    ratio: float  # median over turns
    served: int  # waiters that had the lock in the end
    served_s: float


def measure(url: str, waiters: int, turns: int, pairs: int) -> CrowdResult:
    """Hold in front of ``waiters`` waiters."""
    options = EngineOptions(
        prefix=PREFIX, slice_ms=int(PATIENCE_S * 1000)
    )  # our tokens are patient
    engine = RedisEngine("crowd", url, options)
    port = engine.sync
    crowded = Lock(engine, CROWDED, ttl=PATIENCE_S).spec
    empty = Lock(engine, EMPTY, ttl=PATIENCE_S).spec
    tokens = [secrets.token_hex(16) for _ in range(turns * pairs + 1)]
    for token in tokens:
        run_sync(port.acquire(crowded, token, "{}", queue=True))
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for number in range(PROCESSES):
        ours, theirs = context.Pipe()
        count = waiters // PROCESSES + (number < waiters % PROCESSES)
        worker = context.Process(target=_wait, args=(theirs, url, count), daemon=True)
        worker.start()
        pipes.append(ours)
        workers.append(worker)
    everybody = len(tokens) - 1 + waiters
    wait_until(lambda: _queue_length(engine) == everybody, limit_s=60, every_s=0.1, what="waiters")
    with redis.Redis.from_url(url) as client:
        wait_until(lambda: client.info("clients")["blocked_clients"] >= waiters, what="sleepers")
    _release(port, crowded, tokens.pop(0))  # hands it to the next of ours
    pairs_of: dict[str, list[float]] = {CROWDED: [], EMPTY: []}
    for turn in range(turns):
        mine = tokens[turn * pairs : (turn + 1) * pairs]
        pairs_of[CROWDED].append(statistics.median(_crowded(port, crowded, it) for it in mine))
        pairs_of[EMPTY].append(statistics.median(_empty(port, empty) for _ in range(pairs)))
    started = time.monotonic()
    served = sum(pipe.recv() for pipe in pipes)
    seconds = time.monotonic() - started
    for worker in workers:
        worker.join()
    engine.close()
    return CrowdResult(
        waiters=waiters,
        crowded_us=statistics.median(pairs_of[CROWDED]) * 1e6,
        empty_us=statistics.median(pairs_of[EMPTY]) * 1e6,
        ratio=statistics.median(
            one / other for one, other in zip(pairs_of[CROWDED], pairs_of[EMPTY], strict=True)
        ),
        served=served,
        served_s=seconds,
    )


def _queue_length(engine: RedisEngine) -> int:
    state = engine.show(CROWDED)
    return 0 if state is None else state.waiter_count


def _crowded(port: Any, spec: LockSpec, token: str) -> float:
    start = time.perf_counter()
    grant = run_sync(port.wait_grant(spec.name, token, 5.0))
    _release(port, spec, token)
    seconds = time.perf_counter() - start
    assert grant is not None, "the lock was not handed on"
    return seconds


def _empty(port: Any, spec: LockSpec) -> float:
    token = secrets.token_hex(16)
    start = time.perf_counter()
    run_sync(port.acquire(spec, token, "{}", queue=True))
    _release(port, spec, token)
    return time.perf_counter() - start


def _release(port: Any, spec: LockSpec, token: str) -> None:
    run_sync(port.release(spec.name, token, tombstone=False, why=""))


def _wait(pipe: Connection, url: str, count: int) -> None:
    """Wait as ``count`` tasks, each with the whole front and a connection of its own."""
    engine = RedisEngine("crowd", url, EngineOptions(prefix=PREFIX))

    async def once() -> None:
        lease = await Lock(engine, CROWDED, wait=PATIENCE_S).aacquire()
        await lease.arelease()

    async def crowd() -> int:
        outcomes = await asyncio.gather(*(once() for _ in range(count)), return_exceptions=True)
        return sum(outcome is None for outcome in outcomes)

    pipe.send(asyncio.run(crowd()))


def run(around: Surroundings, size: str) -> list[Section]:
    """The holder's pair with and without a crowd."""
    waiters, turns, pairs = SIZES[size]
    around.say(f"{waiters} waiters on one name")
    it = measure(around.server.url, waiters, turns, pairs)
    return [
        Section(
            f"{it.waiters:,} waiters on one name",
            ("", "µs"),
            (
                ("holder's pair, all of them waiting", f"{it.crowded_us:.0f}"),
                ("pair of a name without waiters", f"{it.empty_us:.0f}"),
            ),
            (
                Target("with to without waiters", it.ratio, AIM, " ×"),
                Target("waiters that had their turn", it.served, it.waiters, at_least=True),
            ),
            notes=(f"Afterwards {it.served:,} had the lock within {rounded(it.served_s)} s.",),
        )
    ]
