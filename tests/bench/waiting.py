"""What waiting costs: commands that clients send while they wait for a lock that stays held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.contestants import CONTESTANTS, Place, commands_sent
from tests.bench.report import Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.servers import RedisServer
from tests.timing import wait_until

SIZES = {"full": (20, 10.0), "quick": (8, 5.0), "tiny": (2, 0.3)}  # waiters, seconds
KEYS = ("lockapp", "redis-py", "python-redis-lock")
AIM = 0.5


@dataclass(frozen=True)
class WaitingResult:
    """One contestant's figures."""

    title: str
    waiters: int
    per_waiter_second: float


def measure(
    servers: dict[str, RedisServer], directory: str, waiters: int, seconds: float
) -> list[WaitingResult]:
    """Let threads wait, every contestant on a server of its own, all at the same time.

    Counted from when all of them stand in the queue; the renewals of the holder count as well.
    """
    gives = []
    threads = []
    for key, server in servers.items():
        make = CONTESTANTS[key].join(Place(server.url, directory))
        take, give = make("waited-for")
        take()
        gives.append(give)
        server.client.config_resetstat()
        for _ in range(waiters):
            pair = make("waited-for")
            threads.append(threading.Thread(target=_wait, args=pair))
    for thread in threads:
        thread.start()
    for key, server in servers.items():
        wait_until(lambda k=key, s=server: _waiting(k, s) >= waiters, what="waiters")
    before = {key: commands_sent(key, server.client) for key, server in servers.items()}
    started = time.monotonic()
    time.sleep(seconds)
    spent = {key: commands_sent(key, it.client) - before[key] for key, it in servers.items()}
    seconds = time.monotonic() - started
    for give in gives:
        give()
    for thread in threads:
        thread.join()
    return [
        WaitingResult(CONTESTANTS[key].title, waiters, spent[key] / (waiters * seconds))
        for key in servers
    ]


def _waiting(key: str, server: RedisServer) -> int:
    """How many wait, with all that they send on arrival behind them."""
    if "blpop" in CONTESTANTS[key].sends:
        return int(server.client.info("clients")["blocked_clients"])
    return commands_sent(key, server.client)  # who polls has asked once


def _wait(take: Callable[[], Any], give: Callable[[], Any]) -> None:
    take()
    give()


def run(around: Surroundings, size: str) -> list[Section]:
    """The cost of waiting, beside the peers."""
    waiters, seconds = SIZES[size]
    around.say(f"{waiters} waiters, for {seconds:g} s")
    servers = {key: around.another_server() for key in KEYS}
    results = measure(servers, around.place.directory, waiters, seconds)
    return [
        Section(
            f"{waiters} waiters of each, for {seconds:g} s",
            ("", "commands a second and waiter"),
            tuple((it.title, rounded(it.per_waiter_second)) for it in results),
            (Target("commands a second and waiter", results[0].per_waiter_second, AIM),),
        )
    ]
