"""Processes that contend are killed and frozen at random moments; the history is judged."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from tests.history import judge, read_log
from tests.servers import RedisServer
from tests.soak.worker import NAMES, OPTIONS, command
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
PROCESSES = 8


class Crowd:
    """The contending processes, and what is done to them."""

    def __init__(self, server: RedisServer, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = server
        self.directory = directory
        self.stop = directory / "stop"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.frozen: dict[str, float] = {}
        self.started = self.killed = self.stopped = 0

    def start(self) -> None:
        """Start one more process."""
        who = f"w{self.started}"
        self.started += 1
        self.running[who] = subprocess.Popen(
            command(
                self.server.url, self.directory / f"{who}.log", self.stop, self.chance.random()
            ),
            cwd=ROOT,
        )

    def harm(self) -> None:
        """Do something to one of them; let those go on that were frozen for long enough."""
        now = time.monotonic()
        for who in [who for who, until in self.frozen.items() if until <= now]:
            del self.frozen[who]
            self.running[who].send_signal(signal.SIGCONT)
        who = self.chance.choice(list(self.running))
        if self.chance.random() < 0.3:
            process = self.running.pop(who)
            self.frozen.pop(who, None)
            process.kill()
            assert process.wait(scaled(10)) == -signal.SIGKILL
            self.killed += 1
            self.start()
        elif who not in self.frozen and len(self.frozen) < PROCESSES // 2:
            self.running[who].send_signal(signal.SIGSTOP)
            self.frozen[who] = now + self.chance.choice([0.05, 0.3, 0.8, 1.6, 2.5])
            self.stopped += 1

    def end(self) -> list[int]:
        """Have everybody finish; return how they ended."""
        self.stop.touch()
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
        return [process.wait(scaled(30)) for process in self.running.values()]

    def kill(self) -> None:
        """Kill what is left."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.fixture
def make_crowd(fresh_redis: RedisServer, tmp_path: Path) -> Iterator[Callable[[int], Crowd]]:
    """Start a crowd on a server of its own."""
    made: list[Crowd] = []

    def make(seed: int) -> Crowd:
        made.append(Crowd(fresh_redis, tmp_path, seed))
        return made[-1]

    yield make
    for crowd in made:
        crowd.kill()


def contend(crowd: Crowd, seconds: float, every_s: float) -> None:
    """Let the crowd contend and be harmed for so long, then judge."""
    engine = RedisEngine("judge", crowd.server.url, EngineOptions.parse(OPTIONS))
    for _ in range(PROCESSES):
        crowd.start()
    wait_until(
        lambda: len(list(crowd.directory.glob("*.log"))) == PROCESSES,
        limit_s=30, what="everybody to be there",
    )  # fmt: skip
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(crowd.chance.uniform(0.2, 1.8) * every_s)
        crowd.harm()
    assert crowd.end() == [0] * PROCESSES
    lasting = {"fence", "events", "number", "counts", "meta"}

    def left() -> list[str]:
        engine.sweep()
        keys = crowd.server.client.keys("soak:*")
        return sorted(key for key in keys if key.rsplit(":", 1)[-1] not in lasting)

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), every_s=0.1, limit_s=10)
    events = engine.read_events(count=1_000_000)
    stays = [
        stay
        for log in crowd.directory.glob("*.log")
        for stay in read_log(log.stem, log.read_text().splitlines(keepends=True))
    ]
    engine.close()
    assert judge(stays, events, left_over := left()) == [], left_over
    assert {stay.name for stay in stays} == set(NAMES)
    assert crowd.killed
    assert crowd.stopped
    assert any(event.kind == "expired" for event in events)
    print(  # noqa: T201
        f"{len(stays)} stays, {len(events)} events, {crowd.killed} killed, {crowd.stopped} frozen"
    )


def test_killed_and_frozen_processes_break_no_promise(
    make_crowd: Callable[[int], Crowd],
) -> None:
    """A short while with many faults."""
    contend(make_crowd(20261130), 8, every_s=0.15)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_they_break_no_promise_for_long(make_crowd: Callable[[int], Crowd], seed: int) -> None:
    """The same for longer, with more time between faults."""
    contend(make_crowd(seed), 35, every_s=0.4)
