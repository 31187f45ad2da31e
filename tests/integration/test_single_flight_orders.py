"""Every order of two or three callers' steps through one flight, on the shipped scripts.

What is looked for: two that compute at once, a caller without an answer, and a landing that is
missed. The last shows itself in virtual time: it only passes when nobody can go on, so a caller
that sleeps through its landing makes it jump by a slice.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lockapp.core.flight import Landing, Stored, unpacked
from lockapp.core.run import run_sync
from lockapp.engines.redis.scripts import read
from lockapp.lock import Lock
from lockapp.single_flight.flight import fly
from lockapp.single_flight.leader import Plan
from lockapp.ways import UNSET
from tests.integration.orders import SEED, Contenders
from tests.stepping import RedisWorldServer, Report, SteppingPort, Stop, World, explore

NAME = "rag:1"
SOON_S = 0.5  # virtual


class FlightPort(SteppingPort):
    """A stepping port on which a follower can be chosen once its flight has landed."""

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        steps, key = self._steps, self._steps.shard(name).flight(name)  # type: ignore[attr-defined]
        client = self._world.server.client
        await Stop(
            f"{self._who}.follow",
            until=self._world.time_s + timeout_s,
            ready=lambda: bool(client.xrange(key, f"{since}-0", "+")),
        )
        return run_sync(steps.wait_landing(name, since, 0.001))


class SteppingFace:
    """A front whose cache is a dictionary, and each access to it a stop."""

    def __init__(self, world: World, who: str, cache: dict[str, Any]) -> None:
        self.port: Any = FlightPort(world, who)
        self.who = who
        self.cache = cache

    async def read(self, key: str) -> Stored | None:
        await Stop(f"{self.who}.read")
        return unpacked(self.cache.get(key))

    async def write(self, key: str, stored: Stored, seconds: float) -> None:
        await Stop(f"{self.who}.write")
        self.cache[key] = stored.packed()

    async def run(self, function: Callable[[], Any]) -> Any:
        return await function()


class Scene:
    """The callers of one world."""

    def __init__(self, world: World, *, ttl_s: float = 60) -> None:
        self.world = world
        self.cache: dict[str, Any] = {}
        self.ttl_s = ttl_s
        self.runs: list[str] = []
        self.answers: dict[str, Any] = {}

    def plan(self) -> Plan:
        options = self.world.server.steps.options
        engine: Any = SimpleNamespace(
            alias="stepping", options=options, pid=os.getpid(), now=lambda: self.world.time_s,
            remember=lambda lease, port: None, forget=lambda lease: None,
            held_by=lambda name, owner: None, observe=lambda kind, subject: None,
            transactions=None, vet=lambda spec: None, doubt="",
        )  # fmt: skip
        return Plan(Lock(engine, NAME), "key", self.ttl_s, 0, 120, UNSET)

    async def call(self, who: str, outcome: object = None) -> None:
        """Ask; to be computed is ``outcome``, raised if it is an error."""
        face, world = SteppingFace(self.world, who, self.cache), self.world

        async def compute() -> object:
            state = run_sync(world.server.steps.inspect((NAME,), waiters=False))[1][0]
            section = world.enter(who, state.holders[0].fence, world.time_s + 30)
            self.runs.append(who)
            await face.port.pause()
            section.inside = False
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome or who

        try:
            self.answers[who] = await fly(face, self.plan(), compute)
        except (LookupError, SystemExit) as error:
            self.answers[who] = type(error)

    def judge(self, runs: int | None) -> None:
        """Note what is wrong at the end."""
        faults = self.world.faults
        if runs is not None and len(self.runs) != runs:
            faults.append(f"computed by {self.runs}: {self.world.trace}")
        if self.world.time_s > SOON_S:
            faults.append(f"somebody slept {self.world.time_s} s: {self.world.trace}")


def run(
    server: RedisWorldServer,
    outcomes: dict[str, object],
    *,
    judge: Callable[[Scene], None],
    ttl_s: float = 60,
    limit: int = 1500,
    drawn: bool = False,
) -> Report:
    """Explore (``drawn``: orders at random); each one's scene is judged, and what is left."""
    scenes: list[Scene] = []

    def callers(world: World) -> Contenders:
        scenes.append(Scene(world, ttl_s=ttl_s))
        return [(who, scenes[-1].call(who, outcome)) for who, outcome in outcomes.items()]

    def at_end(world: World) -> None:
        judge(scenes[-1])
        if left := server.keys():
            world.faults.append(f"left behind {left}: {world.trace}")

    chance = random.Random(SEED) if drawn else None
    return explore(server, callers, limit=limit, at_end=at_end, chance=chance)


def all_got_one(scene: Scene) -> None:
    """One computation, and everybody has its result."""
    scene.judge(runs=1)
    if len(set(scene.answers.values())) != 1:
        scene.world.faults.append(f"{scene.answers}: {scene.world.trace}")


def everybody_answered(scene: Scene) -> None:
    """One at a time, however often."""
    scene.judge(runs=None)
    if any(answer is None for answer in scene.answers.values()):
        scene.world.faults.append(f"{scene.answers}: {scene.world.trace}")


def test_two_callers_compute_once(make_server: Any) -> None:
    """All orders."""
    report = run(make_server(), {"A": None, "B": None}, judge=all_got_one, limit=5000)
    assert report.faults == []
    assert report.complete
    assert report.orders > 100


def test_three_callers_compute_once(make_server: Any) -> None:
    """Orders drawn at random: there are too many to walk through."""
    outcomes = dict.fromkeys("ABC")
    report = run(make_server(), outcomes, judge=all_got_one, limit=600, drawn=True)
    assert report.faults == []


def test_an_interrupted_leader_hands_over(make_server: Any) -> None:
    """It is no result, and nobody sleeps through it."""
    report = run(
        make_server(),
        {"A": SystemExit(1), "B": None, "C": None},
        judge=everybody_answered,
        limit=600,
        drawn=True,
    )
    assert report.faults == []


@pytest.mark.parametrize("ttl_s", [0, 60])
def test_errors_and_results_that_are_not_kept(make_server: Any, ttl_s: float) -> None:
    """Whoever came too late computes anew; one at a time."""
    report = run(
        make_server(),
        {"A": LookupError("no"), "B": None, "C": LookupError("no")},
        judge=everybody_answered,
        ttl_s=ttl_s,
        limit=600,
        drawn=True,
    )
    assert report.faults == []


def test_the_harness_sees_a_broadcast_that_is_missing(make_server: Any) -> None:
    """Without it followers sleep for a slice."""
    text = read("land.lua").replace("redis.pcall('XADD'", "redis.pcall('ECHO', 'x') --")
    assert text != read("land.lua")
    report = run(make_server({"land.lua": text}), dict.fromkeys("AB"), judge=all_got_one, limit=300)
    assert any("slept" in fault for fault in report.faults)
