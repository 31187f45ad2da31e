"""single_flight among processes: one computation, one broadcast, and a leader that is killed."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract.processes import freeze
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

logger = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
Answers = list[tuple[str, str, float]]

# Hundreds of callers and killed leaders, judged by the clock: not beside other tests.
pytestmark = pytest.mark.soak


class Callers:
    """Processes full of callers, on a server of their own."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.notes = redis.Redis(port=server.port, db=2, decode_responses=True)
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self,
        callers: int,
        *,
        front: str = "sync",
        mode: str = "work",
        seconds: float = 2.0,
        lock_ttl: float = 30.0,
    ) -> subprocess.Popen[str]:
        """Start a process whose callers wait for `go`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.flight_child", self.server.url, self.prefix,
             str(callers), front, mode, str(seconds), str(lock_ttl)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    def go(self, *processes: subprocess.Popen[str]) -> None:
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()

    def answers(self, *processes: subprocess.Popen[str]) -> Answers:
        found: Answers = []
        for process in processes:
            out, _ = process.communicate(timeout=scaled(40))
            assert process.returncode == 0
            found += json.loads(out)
        return found

    @property
    def runs(self) -> list[str]:
        return self.notes.lrange(f"{self.prefix}:runs", 0, -1)  # type: ignore[return-value]

    @property
    def ended_at(self) -> float:
        return float(self.notes.lrange(f"{self.prefix}:ends", -1, -1)[0])  # type: ignore[index]

    def commands(self) -> dict[str, int]:
        """Requests so far, by command; what scripts call is not counted."""
        stats: dict[str, Any] = self.server.client.info("commandstats")
        names = ("evalsha", "eval", "xread", "get")
        return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.notes.close()


@pytest.fixture
def callers(fresh_redis: RedisServer, prefix: str) -> Iterator[Callers]:
    made = Callers(fresh_redis, prefix)
    yield made
    made.close()


@pytest.mark.parametrize("front", ["sync", "async"])
def test_200_callers_in_4_processes_compute_once(callers: Callers, front: str) -> None:
    """All answered within a second of its end, by one broadcast, and without asking meanwhile."""
    seconds = 3.0
    processes = [callers.start(50, front=front, seconds=seconds) for _ in range(4)]
    callers.go(*processes)
    answers = callers.answers(*processes)
    ended_at, commands = callers.ended_at, callers.commands()
    late = sorted(at - ended_at for _, _, at in answers)
    logger.info(
        "%s: median %.3f s, last %.3f s after the end; %s", front, late[100], late[-1], commands
    )
    assert len(answers) == 200
    assert len({(kind, value) for kind, value, _ in answers}) == 1
    assert answers[0][0] == "value"
    assert len(callers.runs) == 1
    assert late[-1] < scaled(1)
    # Each asks the cache twice, the lock once, and blocks once: no polling within a slice.
    # (An eval is an evalsha asked again, where another test has flushed the scripts.)
    assert commands["evalsha"] + commands["xread"] <= 2 * 200 + 20
    assert commands["get"] <= 2 * 200 + 10
    landings = list(callers.server.client.scan_iter(f"{callers.prefix}:{{0}}:flight:*"))
    assert all(0 < callers.server.client.pttl(key) <= 10_000 for key in landings)
    assert not list(callers.server.client.scan_iter(f"{callers.prefix}:{{0}}:lock:*"))


@pytest.mark.parametrize("front", ["sync", "async"])
def test_a_killed_leader_is_replaced_by_exactly_one(callers: Callers, front: str) -> None:
    """When its lease is over: the ttl of 2 s and a stagger, and then a second of work."""
    doomed = callers.start(1, front=front, seconds=60, lock_ttl=2)
    callers.go(doomed)
    wait_until(lambda: callers.runs, what="the first to compute", limit_s=20)
    others = [callers.start(20, front=front, seconds=1, lock_ttl=2) for _ in range(2)]
    callers.go(*others)
    wait_until(lambda: callers.server.blocked("xread") == 40, what="the others to wait")
    doomed.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    answers = callers.answers(*others)
    assert len(callers.runs) == 2
    assert [kind for kind, _, _ in answers] == ["value"] * 40
    assert {value for _, value, _ in answers} == {f"computed by {callers.runs[1]}"}
    late = max(at for _, _, at in answers)
    logger.info("%s: all answered %.3f s after the kill", front, late - killed_at)
    assert late - killed_at < scaled(2 + 0.5 + 1 + 1)
    assert late - callers.ended_at < scaled(1)


def test_a_frozen_leader_does_not_overwrite_a_newer_result(callers: Callers) -> None:
    """Stopped until its lease was over and another had computed, it keeps its result to itself."""
    frozen = callers.start(1, seconds=0.5, lock_ttl=1)
    callers.go(frozen)
    wait_until(lambda: callers.runs, what="the first to compute", limit_s=20)
    freeze(frozen)
    other = callers.start(3, seconds=0.1, lock_ttl=1)
    callers.go(other)
    answers = callers.answers(other)
    frozen.send_signal(signal.SIGCONT)
    late = callers.answers(frozen)
    assert [value for _, value, _ in late] == [f"computed by {callers.runs[0]}"]
    expected = [f"computed by {callers.runs[1]}"]
    assert [value for _, value, _ in answers] == expected * 3
    later = callers.start(1)
    callers.go(later)
    assert [value for _, value, _ in callers.answers(later)] == expected
    assert len(callers.runs) == 2


def test_an_error_reaches_the_waiting_of_all_processes(callers: Callers) -> None:
    """One computation; who comes later computes anew."""
    processes = [callers.start(10, mode="fail", seconds=1.5) for _ in range(2)]
    callers.go(*processes)
    answers = callers.answers(*processes)
    assert {(kind, value) for kind, value, _ in answers} == {
        ("LookupError", f"computed by {callers.runs[0]}")
    }
    assert len(answers) == 20
    assert len(callers.runs) == 1
    later = callers.start(1, seconds=0)
    callers.go(later)
    assert [kind for kind, _, _ in callers.answers(later)] == ["value"]
    assert len(callers.runs) == 2


def test_both_fronts_share_a_flight(callers: Callers) -> None:
    """Threads of one process, tasks of another."""
    processes = [callers.start(10, front=front, seconds=1.5) for front in ("sync", "async")]
    callers.go(*processes)
    answers = callers.answers(*processes)
    assert len(answers) == 20
    assert len({value for _, value, _ in answers}) == 1
    assert len(callers.runs) == 1
