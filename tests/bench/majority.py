"""The uncontended pair on three masters: a lock on a majority, beside the bare floor and a peer.

The floor asks three servers what a lock on a majority must ask, at once and with nothing around
it: SET NX PX sent to all three before the first answer is read, then compare-and-delete the same
way. It waits for all three answers.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Sequence

import redis

from tests.bench.contestants import PREFIX, RELEASE, TTL_S, WAIT_S, Pair, open_link
from tests.bench.pair import median_ratio
from tests.bench.report import Section, Target
from tests.bench.surroundings import Surroundings

SIZES = {"full": (40, 50), "quick": (10, 30), "tiny": (2, 3)}  # turns, pairs a turn
WARM_UP = 2
MASTERS = 3
AIM_FLOOR, AIM_PEER = 1.6, 0.3


def lockapp_pair(urls: Sequence[str]) -> Pair:
    """This project, without fencing."""
    from lockapp.core.options import EngineOptions
    from lockapp.engines.redis.redlock.engine import RedlockEngine
    from lockapp.lock import Lock

    engine = RedlockEngine("bench", urls, EngineOptions(prefix=PREFIX))
    lock = Lock(engine, "pair", ttl=TTL_S, wait=WAIT_S)
    leases: list[object] = []
    return lambda: leases.append(lock.acquire()), lambda: leases.pop().release()  # type: ignore[attr-defined]


def pottery_pair(urls: Sequence[str]) -> Pair:
    """Pottery's Redlock: a thread per master."""
    from pottery import Redlock

    masters = {redis.Redis.from_url(url) for url in urls}
    lock = Redlock(key="pair", masters=masters, auto_release_time=TTL_S)
    return lock.acquire, lock.release


def floor_pair(urls: Sequence[str]) -> Pair:
    """Three bare sockets."""
    links = [open_link(url) for url in urls]
    sha = [(send("SCRIPT", "LOAD", RELEASE), read())[1].decode() for send, read in links]
    token = ""

    def ask(*words: str) -> list[object]:
        for send, _ in links:
            send(*words)
        return [read() for _, read in links]

    def take() -> None:
        nonlocal token
        token = secrets.token_hex(16)
        assert ask("SET", "pair", token, "NX", "PX", str(TTL_S * 1000)) == [b"OK"] * len(links)

    def give() -> None:
        assert ask("EVALSHA", sha[0], "1", "pair", token) == [1] * len(links)

    return take, give


CONTESTANTS = {
    "lockapp": ("lockapp, unfenced", lockapp_pair),
    "pottery": ("pottery Redlock", pottery_pair),
    "floor": ("three bare sockets", floor_pair),
}


def measure(servers: dict[str, Sequence[str]], turns: int, pairs: int) -> dict[str, list[float]]:
    """Return each contestant's medians, in seconds, turn by turn; each has servers of its own."""
    callables = {key: join(servers[key]) for key, (_, join) in CONTESTANTS.items()}
    found: dict[str, list[float]] = {key: [] for key in CONTESTANTS}
    for turn in range(-WARM_UP, turns):
        for key, (take, give) in callables.items():
            times = []
            for _ in range(pairs):
                start = time.perf_counter()
                take()
                give()
                times.append(time.perf_counter() - start)
            if turn >= 0:
                found[key].append(statistics.median(times))
    return found


def run(around: Surroundings, size: str) -> list[Section]:
    """One table."""
    around.say(f"uncontended pair on {MASTERS} masters")
    urls = [around.another_server().url for _ in range(MASTERS)]
    # One database each: nobody meets another's keys.
    servers = {key: [f"{url[:-1]}{at}" for url in urls] for at, key in enumerate(CONTESTANTS)}
    found = measure(servers, *SIZES[size])
    ratio = {
        (one, other): median_ratio(found[one], found[other])
        for one in CONTESTANTS
        for other in CONTESTANTS
    }
    return [
        Section(
            f"Uncontended pair on {MASTERS} masters",
            ("", "median µs", "to pottery", "to the floor"),
            tuple(
                (
                    title,
                    f"{statistics.median(found[key]) * 1e6:.0f}",
                    f"{ratio[key, 'pottery']:.2f}",
                    f"{ratio[key, 'floor']:.2f}",
                )
                for key, (title, _) in CONTESTANTS.items()
            ),
            (
                Target("lockapp to three bare sockets", ratio["lockapp", "floor"], AIM_FLOOR, " ×"),
                Target("lockapp to pottery", ratio["lockapp", "pottery"], AIM_PEER, " ×"),
            ),
        )
    ]
