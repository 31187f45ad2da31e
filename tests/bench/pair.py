"""The uncontended pair: acquire + release of a free lock, all contestants in turns.

The turns are short and interleaved, so that whatever else the machine does hits all alike; what
counts is the median of the ratios of neighbouring turns.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import redis

from tests.bench.contestants import CONTESTANTS, UNCONTENDED, Pair, Place, commands_sent
from tests.bench.report import Chart, Section, Target, rounded
from tests.bench.surroundings import Surroundings

SIZES = {"full": (60, 100), "quick": (12, 50), "tiny": (2, 3)}  # turns, pairs a turn
WARM_UP = 3
PEER, FLOOR = "redis-py", "raw"
AIM_PEER, AIM_FLOOR = 0.75, 2.5


@dataclass(frozen=True)
class PairResult:
    """One contestant's figures; the ratios are medians over turns."""

    title: str
    median_us: float
    cpu_us: float  # of the client
    commands: float  # sent by the client, a pair
    to_peer: float
    to_floor: float


def measure(place: Place, turns: int, pairs: int) -> dict[str, PairResult]:
    """Measure every contestant."""
    callables: dict[str, Pair] = {}
    walls: dict[str, list[float]] = {key: [] for key in UNCONTENDED}
    cpus: dict[str, list[float]] = {key: [] for key in UNCONTENDED}
    for key in UNCONTENDED:
        callables[key] = CONTESTANTS[key].join(place)(f"pair-{key}")
    for turn in range(-WARM_UP, turns):
        for key, (take, give) in callables.items():
            times = []
            cpu = time.process_time()
            for _ in range(pairs):
                start = time.perf_counter()
                take()
                give()
                times.append(time.perf_counter() - start)
            if turn >= 0:
                walls[key].append(statistics.median(times))
                cpus[key].append((time.process_time() - cpu) / pairs)
    return {
        key: PairResult(
            title=CONTESTANTS[key].title,
            median_us=statistics.median(walls[key]) * 1e6,
            cpu_us=statistics.median(cpus[key]) * 1e6,
            commands=count_commands(place, key, pair, pairs),
            to_peer=median_ratio(walls[key], walls[PEER]),
            to_floor=median_ratio(walls[key], walls[FLOOR]),
        )
        for key, pair in callables.items()
    }


def median_ratio(mine: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of neighbouring turns: drift hits both alike."""
    return statistics.median(one / other for one, other in zip(mine, theirs, strict=True))


def count_commands(place: Place, key: str, pair: Pair, pairs: int) -> float:
    """Return how many commands the client sends for one pair."""
    take, give = pair
    with redis.Redis.from_url(place.url) as client:
        client.config_resetstat()
        for _ in range(pairs):
            take()
            give()
        return commands_sent(key, client) / pairs


def run(around: Surroundings, size: str) -> list[Section]:
    """One section for each way to put client and server on cores."""
    sections = []
    times: dict[str, dict[str, PairResult]] = {}
    for title, client, server in around.arrangements():
        around.say(f"uncontended pair, {title}")
        around.pin(client, server, around.server)
        results = times[title] = measure(around.place, *SIZES[size])
        ours = results["lockapp"]
        sections.append(
            Section(
                f"Uncontended pair, client and server on {title}",
                ("", "median µs", "client CPU µs", "commands", "to redis-py's Lock", "to raw"),
                tuple(
                    (
                        it.title, f"{it.median_us:.0f}", f"{it.cpu_us:.0f}",
                        rounded(it.commands), f"{it.to_peer:.2f}", f"{it.to_floor:.2f}",
                    )
                    for it in results.values()
                ),
                (
                    Target("lockapp to redis-py's Lock", ours.to_peer, AIM_PEER, " ×"),
                    Target("lockapp to raw commands", ours.to_floor, AIM_FLOOR, " ×"),
                ),
            )
        )  # fmt: skip
    around.pin(None, None, around.server)
    chart = Chart(
        "pair",
        "Uncontended acquire + release, median µs",
        tuple(CONTESTANTS[key].title for key in UNCONTENDED),
        {
            f"on {title}": tuple(results[key].median_us for key in UNCONTENDED)
            for title, results in times.items()
        },
    )
    sections.append(replace(sections.pop(), charts=(chart,)))
    return sections
