"""Waiting for the background renewer, so that a test sees what it has noted and called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from lockapp.core.ports import EVERY_LOCK
from lockapp.engines.base import Engine

LIMIT_S = 5.0
"""After this long nobody seems to look after the lease, as when its event loop has been closed."""
STEP_S = 0.001


def refuse_in_loop() -> None:
    """Do nothing outside of an event loop.

    Raises:
        RuntimeError: inside one, whose own renewer could not run meanwhile.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("this would block the running event loop; use the a… twin")


def noted(engine: Engine, condition: Callable[[], bool], name: str = EVERY_LOCK) -> None:
    """Block until the renewer has made ``condition`` true and has called what it had to call.

    It is told that something happened to ``name``, since its own channel may not be open yet.
    """
    for pause in _pauses(engine, condition, name):
        time.sleep(pause)


async def anoted(engine: Engine, condition: Callable[[], bool], name: str = EVERY_LOCK) -> None:
    """See noted()."""
    for pause in _pauses(engine, condition, name):
        await asyncio.sleep(pause)


def _pauses(engine: Engine, condition: Callable[[], bool], name: str) -> Iterator[float]:
    for port in engine.ports:
        port.watchdog.notice(name)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and (not condition() or _at_work(engine)):
        yield STEP_S


def _at_work(engine: Engine) -> bool:
    return any(port.watchdog._wake_at == float("-inf") for port in engine.ports)
