"""Growth: the uncontended pair on a server that holds more and more other locks.

The others are made by the acquire step itself, with the arguments of a real acquire in which name
and token are exchanged, many in one go. The pair on the full server and on one with few locks
are measured in turns.
"""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

from hiredis import pack_command

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import SyncTransport
from lockapp.lock import Lock
from tests.bench.contestants import CONTESTANTS, PREFIX, Pair, Place
from tests.bench.report import Chart, Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.servers import RedisServer

LEVELS = {
    "full": (10, 1_000, 100_000, 1_000_000),
    "quick": (10, 1_000, 20_000),
    "tiny": (10, 30),
}
TURNS = {"full": (60, 60), "quick": (12, 40), "tiny": (2, 2)}  # turns, pairs a turn
FEW = 10
AT_ONCE = 500  # requests under way
TTL_S = 3600
AIM = 1.1


@dataclass(frozen=True)
class Level:
    """The figures at one number of other locks."""

    locks: int
    pair_us: float
    few_us: float  # on the server with few, in the same turns
    ratio: float  # median over turns
    bytes_each: float  # of the server's memory


class RecordingTransport(SyncTransport):
    """Remembers the last step that was sent."""

    sent: tuple[Script, tuple[Any, ...]]

    async def script(
        self, script: Script, arguments: tuple[str, ...], first: Words = NONE, acks: int = 0
    ) -> Any:
        """See SyncTransport."""
        self.sent = (script, (*first.words, *arguments))
        return await super().script(script, arguments, first, acks)


class RecordingEngine(RedisEngine):
    """An engine whose transport can be asked what it sent."""

    recorder: RecordingTransport

    def make_sync_port(self) -> Any:
        """See Engine."""
        self.recorder = RecordingTransport(self.address, self.options, self.alias)
        return self._port(self.recorder)


class Loader:
    """Takes locks in bulk: the keys and records of an acquire, without a process to renew them."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self.engine = RecordingEngine("loader", url, EngineOptions(prefix=prefix))
        self.loaded = 0
        with Lock(self.engine, name_of("template"), ttl=TTL_S, wait=0) as lease:
            script, arguments = self.engine.recorder.sent
            self._old = (name_of("template"), lease.renew_item.token)
        self._script, self._arguments = script, [str(it) for it in arguments]
        self._swaps = [
            at for at, it in enumerate(self._arguments) if any(old in it for old in self._old)
        ]

    def load(self, total: int) -> None:
        """Take locks until ``total`` have been taken.

        Raises:
            RuntimeError: one of them was not granted.
        """
        connection = self.engine.address.open(self.engine.options.connect_timeout_ms / 1000)
        try:
            while self.loaded < total:
                batch = range(self.loaded, min(self.loaded + AT_ONCE, total))
                connection.send_packed_command([self._request(number) for number in batch])
                for _ in batch:
                    reply = connection.read_response(disable_decoding=True)
                    if reply[0] != b"GRANTED":
                        raise RuntimeError(f"not granted: {reply!r}")
                self.loaded = batch.stop
        finally:
            connection.disconnect()

    def _request(self, number: int) -> bytes:
        old_name, old_token = self._old
        name, token = name_of(number), secrets.token_hex(16)
        words = self._arguments.copy()
        for at in self._swaps:
            words[at] = words[at].replace(old_name, name).replace(old_token, token)
        return pack_command(("EVALSHA", self._script.sha, *words))

    def check(self) -> None:
        """Look at a few of them, and at the index.

        Raises:
            RuntimeError: they are not what an acquire leaves behind.
        """
        listed = self.engine.snapshot(count=1).total
        if listed < self.loaded:
            raise RuntimeError(f"{listed} of {self.loaded} locks are listed")
        for number in {0, self.loaded // 2, self.loaded - 1}:
            state = self.engine.show(name_of(number))
            if state is None or len(state.holders) != 1:
                raise RuntimeError(f"lock {number} is not held by one holder: {state}")


def name_of(number: object) -> str:
    """Return the name of one of the other locks."""
    return f"grown:{number}"


def measure_level(
    few: Pair, many: Pair, locks: int, turns: int, pairs: int, bytes_each: float
) -> Level:
    """Measure both pairs in turns."""
    times: dict[str, list[float]] = {"few": [], "many": []}
    for turn in range(-3, turns):
        for key, (take, give) in (("few", few), ("many", many)):
            spent = []
            for _ in range(pairs):
                start = time.perf_counter()
                take()
                give()
                spent.append(time.perf_counter() - start)
            if turn >= 0:
                times[key].append(statistics.median(spent))
    ratios = [one / other for one, other in zip(times["many"], times["few"], strict=True)]
    return Level(
        locks,
        statistics.median(times["many"]) * 1e6,
        statistics.median(times["few"]) * 1e6,
        statistics.median(ratios),
        bytes_each,
    )


def measure(around: Surroundings, few: RedisServer, many: RedisServer, size: str) -> list[Level]:
    """Fill the server ``many`` level by level."""
    join = CONTESTANTS["lockapp"].join
    beside_few, beside_many = (
        join(Place(it.url, around.place.directory))("pair:grown") for it in (few, many)
    )
    Loader(few.url).load(FEW)
    loader = Loader(many.url)
    empty = int(many.client.info("memory")["used_memory"])
    levels = []
    for locks in LEVELS[size]:
        around.say(f"taking {locks:,} locks")
        loader.load(locks)
        loader.check()
        grown = int(many.client.info("memory")["used_memory"]) - empty
        around.say(f"pair beside {locks:,} locks")
        levels.append(measure_level(beside_few, beside_many, locks, *TURNS[size], grown / locks))
    loader.engine.close()
    return levels


def run(around: Surroundings, size: str) -> list[Section]:
    """From few other locks to a million."""
    few, many = around.another_server(), around.another_server()
    _, client, server = around.arrangements()[-1]
    around.pin(client, server, few, many)
    levels = measure(around, few, many, size)
    around.pin(None, None, few, many)
    many.stop()  # gives a gigabyte back
    last = levels[-1]
    return [
        Section(
            "Pair beside other live locks",
            ("other locks", "pair µs", f"pair beside {FEW} µs", "ratio", "bytes each"),
            tuple(
                (
                    f"{it.locks:,}", f"{it.pair_us:.0f}", f"{it.few_us:.0f}", f"{it.ratio:.3f}",
                    rounded(it.bytes_each if it.locks >= 1000 else float("nan")),
                )
                for it in levels
            ),
            (Target(f"beside {last.locks:,} to beside {FEW}", last.ratio, AIM, " ×"),),
            (
                Chart(
                    "growth",
                    f"Pair beside other live locks, to the pair beside {FEW}",
                    tuple(f"{it.locks:,}" for it in levels),
                    {"lockapp": tuple(it.ratio for it in levels)},
                    lines=True,
                ),
            ),
            notes=(
                "Bytes are the server's, with the audit stream, which is kept to its cap.",
            ),
        )
    ]  # fmt: skip
