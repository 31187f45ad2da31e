"""A port whose every call is a stop, and an explorer that walks through all orders of the stops.

Several contenders run the production procedures on one server. Each port call suspends and waits
to be chosen; when it is, the real step is carried out on the real server (scripts and all). The
explorer repeats a scenario from the start once per possible order, so that races that would need
luck and threads are met by enumeration.

Time is virtual: the scripts read the clock from a key (the one fragment ``_shared/clock.lua`` is
replaced, everything else is the shipped text), and so does the contenders' own clock. A contender
that waits for a grant can be chosen once its inbox holds one. When nobody can be chosen, time
jumps to the end of the shortest wait.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from lockapp.core.options import EngineOptions
from lockapp.core.ports import EnginePort
from lockapp.core.run import run_sync
from lockapp.core.values import Undo
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.scripts import build_all
from lockapp.engines.redis.steps import RedisSteps
from lockapp.engines.redis.sync_transport import SyncTransport

EPOCH_US = 4_000_000_000_000_000
"""Virtual time 0 lies in the year 2096: keys expire by the server's own clock, and must not."""
VIRTUAL_CLOCK = """
local now_us = tonumber(redis.call('GET', (string.gsub(KEYS[1], '{0}:.*', '{0}:testclock'))))
local now_ms = math.floor(now_us / 1000)
local us_text, ms_text = string.format('%.0f', now_us), string.format('%.0f', now_ms)
"""
FOREVER = 10_000
"""Stops after which a run counts as never ending."""


class Stop:
    """What a suspended contender waits for."""

    def __init__(
        self, what: str, until: float | None = None, ready: Callable[[], bool] | None = None
    ) -> None:
        self.what = what
        self.until = until  # virtual time at which it goes on by itself
        self.ready = ready  # whether it can be chosen; None: always

    def __await__(self) -> Generator[Stop, None, None]:
        yield self


class World:
    """One run: a server under a fresh prefix, and the virtual clock."""

    def __init__(self, server: Any, slow_replies: bool = False) -> None:
        self.server = server
        self.slow_replies = slow_replies  # whether a reply is a stop of its own, after the step
        self.time_s = 0.0
        self.undos: list[Undo] = []
        self.trace: list[str] = []
        self.sections: list[Section] = []
        self.faults: list[str] = []

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass for everybody."""
        self.time_s += seconds
        self.server.set_time(self.time_s)

    def port(self, who: str) -> SteppingPort:
        """A contender's view of the world."""
        return SteppingPort(self, who)

    def enter(self, who: str, fence: int, valid_until: float) -> Section:
        """Note that ``who`` starts to work under its lease; a valid overlap is a fault."""
        for other in self.sections:
            if other.inside and other.valid_until > self.time_s:
                self.faults.append(f"{who} entered while {other.who} was inside: {self.trace}")
        if self.sections and fence <= max(other.fence for other in self.sections):
            self.faults.append(f"fence of {who} did not grow: {self.trace}")
        section = Section(who, fence, valid_until)
        self.sections.append(section)
        return section


@dataclass
class Section:
    """One stay in the critical section."""

    who: str
    fence: int
    valid_until: float
    inside: bool = True


class SteppingPort:
    """A StepPort; each call is a stop."""

    def __init__(self, world: World, who: str) -> None:
        self._world = world
        self._steps = world.server.steps
        self._who = who
        self.alias = "stepping"
        self.options: EngineOptions = self._steps.options
        self.parts = self._steps.parts

    def now(self) -> float:
        return self._world.time_s

    def defer(self, undo: Undo) -> None:
        self._world.undos.append(undo)

    async def sleep(self, seconds: float) -> None:
        await Stop(
            f"{self._who}.sleep", until=self._world.time_s + seconds, ready=lambda: not seconds
        )

    async def pause(self) -> None:
        """A stop of no length: somebody else may go first."""
        await Stop(f"{self._who}.pause")

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> Any:
        server = self._world.server
        await Stop(
            f"{self._who}.wait",
            until=self._world.time_s + timeout_s,
            ready=lambda: server.has_grant(name, token),
        )
        grant = server.pop_grant(name, token)
        if self._world.slow_replies:
            await Stop(f"{self._who}.wait answered")
        return grant

    def __getattr__(self, step: str) -> Callable[..., Awaitable[Any]]:
        real = getattr(self._steps, step)

        async def stepped(*args: Any, **kwargs: Any) -> Any:
            await Stop(f"{self._who}.{step}")
            reply = run_sync(real(*args, **kwargs))
            if self._world.slow_replies:
                await Stop(f"{self._who}.{step} answered")
            return reply

        return stepped


@dataclass
class Contender:
    """A coroutine under the explorer's control."""

    who: str
    work: Coroutine[Any, Any, None]
    stop: Stop | None = None
    done: bool = False

    def go(self) -> None:
        """Run to the next stop."""
        try:
            self.stop = self.work.send(None)
        except StopIteration:
            self.done = True


@dataclass
class Report:
    """What an exploration found."""

    orders: int = 0
    faults: list[str] = field(default_factory=list)
    complete: bool = True


def explore(
    server: RedisWorldServer,
    contenders: Callable[[World], Sequence[tuple[str, Coroutine[Any, Any, None]]]],
    *,
    limit: int,
    slow_replies: bool = False,
    at_end: Callable[[World], None] = lambda world: None,
    chance: random.Random | None = None,
) -> Report:
    """Run the scenario once per order of stops, at most ``limit`` times, on an empty server each.

    ``slow_replies``: whether a reply is a stop of its own.
    ``at_end`` may add faults to ``world.faults`` (litter, for example). With ``chance``, ``limit``
    orders are drawn at random instead: for scenarios with more orders than one can walk through.
    """
    report = Report()
    path: list[int] = []  # which of the choosable contenders went, at each stop
    while True:
        server.reset()
        world = World(server, slow_replies)
        if chance is not None:
            path = [chance.randrange(1_000_000) for _ in range(200)]
        widths = _run(world, contenders(world), path)
        at_end(world)
        report.orders += 1
        report.faults += world.faults
        if chance is not None:
            if report.orders >= limit:
                report.complete = False
                return report
            continue
        path = _next_path(path, widths)
        if not path:
            return report
        if report.orders >= limit:
            report.complete = False
            return report


def _run(
    world: World, started: Sequence[tuple[str, Coroutine[Any, Any, None]]], path: Sequence[int]
) -> list[int]:
    everybody = [Contender(who, work) for who, work in started]
    for one in everybody:
        one.go()
    widths: list[int] = []
    while any(not one.done for one in everybody) or world.undos:
        if len(widths) > FOREVER:
            world.faults.append(f"never ends: {world.trace[-20:]}")
            break
        choosable: list[Any] = [one for one in everybody if not one.done and _ready(one, world)]
        choosable += world.undos[:1]
        if not choosable:
            world.advance(_shortest(everybody) - world.time_s + 0.001)
            continue
        at = len(widths)
        chosen = choosable[path[at] % len(choosable) if at < len(path) else 0]
        widths.append(len(choosable))
        if isinstance(chosen, Undo):
            world.undos.remove(chosen)
            world.trace.append("undo")
            run_sync(
                world.server.steps.release(
                    chosen.name, chosen.token, tombstone=chosen.tombstone, why=chosen.why
                )
            )
        else:
            world.trace.append(chosen.stop.what)
            chosen.go()
    for one in everybody:
        one.work.close()
    return widths


def _ready(one: Contender, world: World) -> bool:
    stop = one.stop
    assert stop is not None
    if stop.ready is None or stop.ready():
        return True
    return stop.until is not None and world.time_s >= stop.until


def _shortest(everybody: Sequence[Contender]) -> float:
    return min(
        one.stop.until for one in everybody
        if not one.done and one.stop is not None and one.stop.until is not None
    )  # fmt: skip


def _next_path(path: Sequence[int], widths: Sequence[int]) -> list[int]:
    """The next order in depth-first enumeration, or nothing after the last."""
    taken = [*path, *[0] * (len(widths) - len(path))][: len(widths)]
    for at in range(len(taken) - 1, -1, -1):
        if taken[at] + 1 < widths[at]:
            return [*taken[:at], taken[at] + 1]
    return []


class RedisWorldServer:
    """The real scripts on a real server, under virtual time."""

    def __init__(
        self, url: str, prefix: str, sources: dict[str, str] | None = None, **options: Any
    ) -> None:
        self.client = redis.Redis.from_url(url)
        chosen = EngineOptions(prefix=prefix, **options)
        scripts = build_all({"_shared/clock.lua": VIRTUAL_CLOCK, **(sources or {})})
        transport = SyncTransport(Address.from_url(url), chosen, "stepping")
        self.steps: EnginePort = RedisSteps(transport, chosen, scripts, "stepping")
        self._base = f"{prefix}:{{0}}:"
        self.set_time(0.0)

    def set_time(self, seconds: float) -> None:
        """Set the clock that the scripts read."""
        self.client.set(f"{self._base}testclock", EPOCH_US + round(seconds * 1e6))

    def has_grant(self, name: str, token: str) -> bool:
        """Whether a waiter would be woken."""
        return bool(self.client.exists(f"{self._base}grant:{token}"))

    def pop_grant(self, name: str, token: str) -> Any:
        """What BLPOP would answer."""
        from lockapp.engines.redis.replies import grant_message

        value = self.client.lpop(f"{self._base}grant:{token}")
        return None if value is None else grant_message(value)

    def keys(self) -> list[str]:
        """What is left of locks, queues and grants; a flight's landing goes by itself."""
        found = [key.decode() for key in self.client.keys(f"{self._base}*")]
        kept = ("testclock", "fence", "events", "number", "counts", "meta")
        return sorted(key for key in found if not key.endswith(kept) and ":flight:" not in key)

    def reset(self) -> None:
        """Forget everything; the next run starts on an empty server at time 0."""
        self.client.delete(*self.client.keys(f"{self._base}*"))
        self.set_time(0.0)
