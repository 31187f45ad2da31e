"""No stale commit, with real processes that are stopped where it hurts, on each database.

A is the holder that is paused, B the next one. Both add their letter to the word that they read:
whatever happens, the word must tell who committed, in the order of their leases.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.redis import RedisEngine
from tests.django.fence_places import Place
from tests.django.fencing_child import WORDS
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

SHORT_S = scaled(1.0)  # a lease that is over soon once its holder is paused
LONG_S = 60.0  # one that is not, in any test
BUSY_S = scaled(2.5)  # one that lasts until FenceBusy: MariaDB waits for whole seconds

_numbers = itertools.count(1)


class Process:
    """A child, and what it says."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.django.fencing_child"]
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # A stopped process does not see that its input has ended: it would keep its locks in the
        # database when this process is killed. The watcher sees it.
        self.watcher = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r line; kill -9 "$1"', "sh", str(self.popen.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.idle = True

    def begin(self, step: str, **options: Any) -> None:
        """Have it take a step."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"step": step, **options}) + "\n")
        self.popen.stdin.flush()
        self.idle = False

    def hear(self) -> Any:
        """Return what it says next."""
        assert self.popen.stdout is not None
        return json.loads(self.popen.stdout.readline())

    def came(self) -> dict[str, Any]:
        """Return what came of the step that was begun."""
        while (said := self.hear()) == "claiming":
            pass
        assert isinstance(said, dict)
        self.idle = True
        return said

    def do(self, step: str, **options: Any) -> dict[str, Any]:
        """Have it take a step; return what came of it."""
        self.begin(step, **options)
        return self.came()

    def write(self, name: str, letter: str, stop_at: str = "") -> dict[str, Any]:
        """See the child."""
        return self.do("write", name=name, letter=letter, stop_at=stop_at)

    def write_until_stopped(self, name: str, letter: str, stop_at: str) -> None:
        """Have it write, and return when it has stopped itself there."""
        self.begin("write", name=name, letter=letter, stop_at=stop_at)
        flags = os.WSTOPPED | os.WNOHANG
        wait_until(lambda: os.waitid(os.P_PID, self.popen.pid, flags), limit_s=20, what=stop_at)

    def go_on(self) -> dict[str, Any]:
        """Let it go on; return what comes of its step."""
        os.kill(self.popen.pid, signal.SIGCONT)
        return self.came()

    def end(self) -> None:
        """Kill it."""
        for process in (self.watcher, self.popen):
            process.kill()
            process.wait()
        for pipe in (self.watcher.stdin, self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def saw(came: dict[str, Any]) -> str:
    """What a holder that has committed had read."""
    assert "saw" in came, came
    return str(came["saw"])


class Scene:
    """A database, a lock and two processes."""

    def __init__(
        self, place: Place, children: list[Process], url: str, prefix: str, **options: Any
    ) -> None:
        self.place = place
        for child in children:
            assert "error" not in child.do("connect", database=place.settings(**options))
        self.a, self.b = children
        self.url = url
        self.prefix = prefix
        self.name = f"order:{next(_numbers)}"
        self.before_claim = "PRAGMA" if place.kind == "sqlite" else "INSERT"
        """Where A has seen that its lease is live, and holds nothing in the database yet."""
        with place.opened() as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {WORDS} VALUES (%s, '')", [self.name])

    def acquire(self, who: Process, ttl: float, **options: Any) -> int:
        """Take the lock; return the fence."""
        where = {"url": self.url, "prefix": self.prefix, **options}
        came = who.do("acquire", name=self.name, ttl=ttl, **where)
        assert "fence" in came, came
        return int(came["fence"])

    def take_away(self, fence: int) -> None:
        """End a lease as an operator does."""
        engine = RedisEngine("default", self.url, EngineOptions.parse({"prefix": self.prefix}))
        engine.force_release(self.name, fence, actor="test")
        engine.close()

    @property
    def word(self) -> str:
        """What has been committed."""
        with self.place.opened() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT word FROM {WORDS} WHERE name = %s", [self.name])
            return str(cursor.fetchone()[0])


@pytest.fixture(scope="session")
def crew() -> Iterator[list[Process]]:
    """Two processes, for all tests of this module."""
    both = [Process(), Process()]
    yield both
    for child in both:
        child.end()


@pytest.fixture
def children(crew: list[Process]) -> Iterator[list[Process]]:
    """The two; one that a failed test leaves in the middle of a step is replaced."""
    yield crew
    for number, child in enumerate(crew):
        if not child.idle:
            child.end()
            crew[number] = Process()


@pytest.fixture
def scene(place: Place, children: list[Process], redis_url: str, prefix: str) -> Scene:
    """A lock on the shared server."""
    return Scene(place, children, redis_url, prefix)


def test_who_was_paused_before_its_transaction_is_refused(scene: Scene) -> None:
    """Its lease ran out meanwhile, and the next holder has committed."""
    a, b = scene.a, scene.b
    scene.acquire(a, SHORT_S)
    a.write_until_stopped(scene.name, "a", scene.before_claim)
    scene.acquire(b, LONG_S)
    assert saw(b.write(scene.name, "b")) == ""
    late = a.go_on()
    assert late.get("error") == "StaleFence", late
    assert scene.word == "b"
    assert saw(b.write(scene.name, "b")) == "b", "the same lease may do it again"
    b.do("release", name=scene.name)


def test_who_was_paused_inside_its_transaction_is_rolled_back(scene: Scene) -> None:
    """The next holder is told within its own lease, and tries again."""
    a, b = scene.a, scene.b
    scene.acquire(a, SHORT_S)
    a.write_until_stopped(scene.name, "a", "body")
    scene.acquire(b, BUSY_S)
    busy = b.write(scene.name, "b")
    assert busy.get("error") == "FenceBusy", busy
    assert busy["live"]
    assert busy["took"] < BUSY_S
    late = a.go_on()
    assert late.get("error") == "LeaseLost", late
    assert saw(b.write(scene.name, "b")) == ""
    assert scene.word == "b"
    b.do("release", name=scene.name)


def test_who_was_paused_at_its_commit_is_waited_for_also_when_the_server_lost_everything(
    place: Place, children: list[Process], fresh_redis: RedisServer, prefix: str
) -> None:
    """Then the next holder builds on what was committed; the earlier one can't come back."""
    scene = Scene(place, children, fresh_redis.url, prefix)
    a, b = scene.a, scene.b
    first = scene.acquire(a, LONG_S)
    a.write_until_stopped(scene.name, "a", "COMMIT")
    fresh_redis.restart(empty=True)
    assert scene.acquire(b, BUSY_S) > first
    busy = b.write(scene.name, "b")
    assert (busy.get("error"), busy.get("live")) == ("FenceBusy", True), busy
    assert saw(a.go_on()) == ""
    assert scene.word == "a"
    assert saw(b.write(scene.name, "b")) == "a"
    assert a.write(scene.name, "a")["error"] in ("StaleFence", "LeaseLost")
    assert scene.word == "ab"
    b.do("release", name=scene.name)


def test_two_engines_that_disagree_are_ordered_by_their_epochs(scene: Scene) -> None:
    """A site has moved its locks; an old process has not heard of it, and its lease is live."""
    a, b = scene.a, scene.b
    scene.acquire(a, LONG_S, alias="old", prefix=f"{scene.prefix}-old")
    a.write_until_stopped(scene.name, "a", scene.before_claim)
    scene.acquire(b, LONG_S, alias="new", epoch=2)
    assert saw(b.write(scene.name, "b")) == ""
    late = a.go_on()
    assert (late.get("error"), late.get("live")) == ("StaleFence", True), late
    a.do("release", name=scene.name)
    scene.acquire(a, LONG_S, alias="old", prefix=f"{scene.prefix}-old")
    assert a.write(scene.name, "a")["error"] == "StaleFence", "a larger token, a smaller epoch"
    assert scene.word == "b"
    for each in (a, b):
        each.do("release", name=scene.name)


LEVELS: dict[str, list[dict[str, Any]]] = {
    "sqlite": [{"transaction_mode": mode} for mode in (None, "IMMEDIATE")],
    "postgres": [{"isolation_level": level} for level in (2, 3, 4)],
    "mariadb": [
        {"isolation_level": level}
        for level in ("read committed", "repeatable read", "serializable")
    ],
}
"""How transactions are kept apart, as the drivers spell it; the first is Django's default."""


@pytest.fixture
def scenes(place: Place, children: list[Process], redis_url: str, prefix: str) -> Iterator[Scene]:
    """A scene for each isolation level of the database, one after another."""
    return (Scene(place, children, redis_url, prefix, **level) for level in LEVELS[place.kind])


def test_who_waited_for_the_row_reads_what_was_committed_meanwhile(
    scenes: Iterator[Scene],
) -> None:
    """At each isolation level: the snapshot is never older than the claim."""
    for scene in scenes:
        a, b = scene.a, scene.b
        fence = scene.acquire(a, LONG_S)
        assert saw(a.write(scene.name, "a")) == ""
        a.write_until_stopped(scene.name, "a", "COMMIT")
        scene.take_away(fence)
        scene.acquire(b, LONG_S)
        b.begin("write", name=scene.name, letter="b")
        if scene.place.kind != "sqlite":  # where nobody can see that somebody waits
            assert b.hear() == "claiming"
            with scene.place.opened() as connection:
                wait_until(partial(scene.place.waiting, connection), limit_s=20, what="lock wait")
        assert saw(a.go_on()) == "a"
        assert saw(b.came()) == "aa"
        assert scene.word == "aab"
        b.do("release", name=scene.name)


def test_a_late_claim_is_refused_at_each_isolation_level(scenes: Iterator[Scene]) -> None:
    """Not as a serialization failure, which says nothing about who is late."""
    for scene in scenes:
        a, b = scene.a, scene.b
        fence = scene.acquire(a, LONG_S)
        a.write_until_stopped(scene.name, "a", scene.before_claim)
        scene.take_away(fence)
        scene.acquire(b, LONG_S)
        assert saw(b.write(scene.name, "b")) == ""
        late = a.go_on()
        assert late.get("error") == "StaleFence", late
        assert scene.word == "b"
        b.do("release", name=scene.name)
