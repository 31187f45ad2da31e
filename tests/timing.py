"""Every wait in the suite goes through here.

A test waits for a *condition* with a limit, never for a guess. All limits are multiplied by
`LOCKAPP_TEST_TIME_SCALE` (default 1), so that a slow machine needs one variable and no edits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SCALE = float(os.environ.get("LOCKAPP_TEST_TIME_SCALE", "1"))


def scaled(seconds: float) -> float:
    """Return `seconds` times the factor of this run; for limits, ttls and pauses alike."""
    return seconds * SCALE


def wait_until(
    condition: Callable[[], T], *, limit_s: float = 5.0, every_s: float = 0.005, what: str = ""
) -> T:
    """Return the first true value of `condition()`.

    Args:
        condition: Called again and again; cheap and without side effects.
        limit_s: Seconds (scaled) until the wait is given up.
        every_s: Seconds between two calls.
        what: What was waited for, in the words of the failure message.

    Raises:
        AssertionError: The limit passed; the message carries the last value.
    """
    end = time.monotonic() + scaled(limit_s)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(_message(condition, what, limit_s, value))
        time.sleep(every_s)


async def await_until(
    condition: Callable[[], T | Awaitable[T]],
    *,
    limit_s: float = 5.0,
    every_s: float = 0.005,
    what: str = "",
) -> T:
    """See wait_until(); the condition may be a coroutine function."""
    end = time.monotonic() + scaled(limit_s)
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(_message(condition, what, limit_s, value))
        await asyncio.sleep(every_s)


def pause(seconds: float) -> None:
    """Sleep (scaled) where passing time is itself the point, such as letting a ttl run out."""
    time.sleep(scaled(seconds))


class Stopwatch:
    """Seconds since the `with` block was entered; frozen when it is left."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        """Elapsed seconds on the monotonic clock."""
        return (self._end if self._end is not None else time.monotonic()) - self._start

    def stop(self) -> None:
        """Freeze the reading."""
        self._end = time.monotonic()


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure the block: `with stopwatch() as watch: …; assert watch.seconds < scaled(1)`."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()


def _message(condition: object, what: str, limit_s: float, value: object) -> str:
    name = what or getattr(condition, "__name__", repr(condition))
    return f"gave up waiting for {name} after {scaled(limit_s):g} s; last value {value!r}"
