"""Connecting and asking one thing after the other, blocking or not: what a search is written on.

A connection is redis-py's own here, and whoever opened it closes it or hands it on.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from lockapp.engines.redis.address import Address
from lockapp.engines.redis.request import command


class Dial(Protocol):
    """How to connect and ask; blocking or not."""

    async def open(self, address: Address, limit_s: float) -> Any:
        """Connect to one server."""
        ...

    async def ask(self, connection: Any, limit_s: float, *words: Any) -> Any:
        """Give a command; return its reply, undecoded."""
        ...

    async def close(self, connection: Any) -> None:
        """Close it, at once."""
        ...


class Blocking:
    """A dial that blocks its thread."""

    async def open(self, address: Address, limit_s: float) -> Any:
        """See Dial."""
        return address.open(limit_s)

    async def ask(self, connection: Any, limit_s: float, *words: Any) -> Any:
        """See Dial. The connection has its limit since it was opened."""
        connection.send_packed_command([command(*words)], check_health=False)
        return connection.read_response(disable_decoding=True)

    async def close(self, connection: Any) -> None:
        """See Dial."""
        connection.disconnect()


class Awaiting:
    """A dial that suspends its task."""

    async def open(self, address: Address, limit_s: float) -> Any:
        """See Dial."""
        return await address.open_async(limit_s)

    async def ask(self, connection: Any, limit_s: float, *words: Any) -> Any:
        """See Dial."""
        async with asyncio.timeout(limit_s):
            await connection.send_packed_command([command(*words)], check_health=False)
            return await connection.read_response(disable_decoding=True)

    async def close(self, connection: Any) -> None:
        """See Dial."""
        await connection.disconnect(nowait=True)


BLOCKING, AWAITING = Blocking(), Awaiting()
