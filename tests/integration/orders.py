"""Contenders whose steps cross in every order, and how an exploration of theirs is judged.

Beside what the explorer watches (no overlap of valid stays, growing fences, an end), the event
stream of each order is judged: every grant ended once, nobody passed a waiter, no gap.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from lockapp.core.run import run_sync
from lockapp.core.values import LockSpec
from lockapp.engines import procedures
from tests.history import judge
from tests.stepping import RedisWorldServer, Report, SteppingPort, World, explore

NAME = "stepping:1"
SPEC = LockSpec(NAME, ttl_ms=30_000, max_hold_ms=0)
SEED = 20261130

Contenders = list[tuple[str, Coroutine[Any, Any, None]]]


def run(
    server: RedisWorldServer,
    contenders: Callable[[World], Contenders],
    *names: str,
    limit: int = 1500,
    drawn: bool = False,
    slow_replies: bool = False,
    tombstones: bool = False,
    holders: int = 1,
) -> Report:
    """Explore; each order's events are judged, and what is left.

    Args:
        server: emptied before each order.
        contenders: make those of one world.
        *names: the locks they take; ``NAME`` when none is given.
        limit: orders at most.
        drawn: orders at random, for more of them than one can walk through.
        slow_replies: whether a reply is a stop of its own.
        tombstones: whether something may be left: the tombstone of a token stays for a minute.
        holders: how many may hold a name at once.
    """

    def at_end(world: World) -> None:
        left = [] if tombstones else server.keys()
        world.advance(120)  # what nobody released has run out by then
        run_sync(server.steps.sweep(names or (NAME,)))
        events = run_sync(server.steps.read_events(0, "0-0", 1000))
        world.faults += [f"{it}: {world.trace}" for it in judge([], events, left, limit=holders)]

    chance = random.Random(SEED) if drawn else None
    return explore(
        server, contenders, limit=limit, slow_replies=slow_replies, at_end=at_end, chance=chance
    )


async def once(port: SteppingPort, who: str, wait_s: float | None) -> None:
    """Acquire, work for one stop, release."""
    await port.pause()
    token = secrets.token_hex(16)
    world = port._world
    grant = await procedures.acquire(port, SPEC, token, "{}", wait_s)
    if isinstance(grant, procedures.NoGrant):
        return
    section = world.enter(who, grant.fence, grant.valid_until)
    await port.pause()
    section.inside = False
    await procedures.release(port, NAME, token, tombstone=grant.doubtful)


async def frozen(port: SteppingPort, who: str, seconds: float) -> None:
    """Acquire, be frozen for longer than the lease lasts, then release all the same."""
    token = secrets.token_hex(16)
    world = port._world
    grant = await procedures.acquire(port, SPEC, token, "{}", 0)
    if isinstance(grant, procedures.NoGrant):
        return
    section = world.enter(who, grant.fence, grant.valid_until)
    world.advance(seconds)
    await port.pause()
    section.inside = False
    await procedures.release(port, NAME, token, tombstone=grant.doubtful)


async def gives_up(port: SteppingPort, who: str) -> None:
    """Wait for so short that giving up and being granted may cross."""
    await once(port, who, 0.001)


async def passing(port: SteppingPort, seconds: float) -> None:
    """Let time pass at some moment."""
    await port.pause()
    port._world.advance(seconds)


class Once:
    """Hand one stop on to the explorer."""

    def __init__(self, stop: Any) -> None:
        self.stop = stop

    def __await__(self) -> Iterator[Any]:
        yield self.stop
