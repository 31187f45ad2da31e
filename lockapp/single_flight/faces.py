"""The two fronts of a single flight: how each reaches the engine, the cache and the caller's code.

Both have the same coroutine methods; those of the blocking one never suspend (``run_sync``).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from django.core.cache.backends.base import BaseCache

from lockapp.core.flight import Stored, unpacked
from lockapp.core.interruption import is_interruption
from lockapp.core.ports import EnginePort

logger = logging.getLogger("lockapp")

UNREADABLE = "single_flight: %s could not be read from the cache; it counts as not there"


class Face(Protocol):
    """One front."""

    port: EnginePort

    async def read(self, key: str) -> Stored | None:
        """Return what lies in the cache; None as well where it can't be read, which is logged.

        The cache is down, or a release that knew other classes has written it: then somebody has
        to compute, and what that makes replaces it.
        """
        ...

    async def write(self, key: str, stored: Stored, seconds: float) -> None:
        """Put something into the cache. Raises what the cache and its serializer raise."""
        ...

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call the caller's function and return what it makes."""
        ...


class SyncFace:
    """The blocking front."""

    def __init__(self, port: EnginePort, cache: BaseCache) -> None:
        self.port = port
        self.cache = cache

    async def read(self, key: str) -> Stored | None:
        """See Face."""
        try:
            return unpacked(self.cache.get(key))
        except Exception as error:
            if is_interruption(error):
                raise
            logger.exception(UNREADABLE, key)
            return None

    async def write(self, key: str, stored: Stored, seconds: float) -> None:
        """See Face."""
        self.cache.set(key, stored.packed(), timeout=max(seconds, 1))

    async def run(self, function: Callable[[], Any]) -> Any:
        """See Face.

        Raises:
            TypeError: the function is asynchronous.
        """
        made = function()
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(f"{function!r} is asynchronous: use asingle_flight")
        return made


class AsyncFace:
    """The front of a running event loop."""

    def __init__(self, port: EnginePort, cache: BaseCache) -> None:
        self.port = port
        self.cache = cache

    async def read(self, key: str) -> Stored | None:
        """See Face."""
        try:
            return unpacked(await self.cache.aget(key))
        except Exception as error:
            if is_interruption(error):
                raise
            logger.exception(UNREADABLE, key)
            return None

    async def write(self, key: str, stored: Stored, seconds: float) -> None:
        """See Face."""
        await self.cache.aset(key, stored.packed(), timeout=max(seconds, 1))

    async def run(self, function: Callable[[], Any]) -> Any:
        """See Face."""
        made = function()
        return await made if inspect.isawaitable(made) else made
