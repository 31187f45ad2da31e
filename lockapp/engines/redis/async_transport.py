"""The asynchronous twin of ``sync_transport``: the same rules, one event loop.

Every limit is an ``asyncio.timeout`` block, never ``wait_for`` (which loses cancellations on
CPython 3.11), and whatever interrupts an exchange closes its connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from lockapp.core.options import EngineOptions
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.circuit import Circuit
from lockapp.engines.redis.errors import ANSWERS, server_error, transport_error
from lockapp.engines.redis.notices import AsyncNotices
from lockapp.engines.redis.request import NONE, Words, request
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import IDLE, _nothing, twin_of


class AsyncTransport:
    """Exchanges with one server, for the tasks of one event loop."""

    def __init__(
        self, address: Address, options: EngineOptions, alias: str, circuit: Circuit | None = None
    ) -> None:
        """See SyncTransport."""
        self.address = address
        self.options = options
        self.alias = alias
        self.circuit = circuit or Circuit(alias, options)
        self._refusable = True
        self._idle: deque[AbstractConnection] = deque()
        self._open: set[AbstractConnection] = set()  # idle or in use
        self.on_connect: Callable[[], None] = _nothing

    now = staticmethod(boot_clock)

    def unrefused(self) -> Self:
        """See SyncTransport.unrefused()."""
        twin = twin_of(self)
        twin._refusable = False
        return twin

    async def sleep(self, seconds: float) -> None:
        """Suspend this task."""
        await asyncio.sleep(seconds)

    async def script(self, script: Script, arguments: tuple[str, ...], first: Words = NONE) -> Any:
        """See SyncTransport.script()."""
        try:
            try:
                return await self._exchange(request(script.by_sha, first, arguments))
            except redis_errors.NoScriptError:
                return await self._exchange(request(script.by_text, first, arguments))
        except ANSWERS as error:
            raise server_error(error, self.alias, script) from error

    async def command(self, *arguments: Any, block_s: float = 0.0) -> Any:
        """See SyncTransport.command()."""
        try:
            return await self._exchange(pack_command(arguments), block_s)
        except ANSWERS as error:
            raise server_error(error, self.alias, None) from error

    async def _exchange(self, packed: bytes, block_s: float = 0.0) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = await self._connect()
        try:
            async with asyncio.timeout(block_s + self.options.command_timeout_ms / 1000):
                await connection.send_packed_command([packed], check_health=False)
                reply = await connection.read_response(
                    disable_decoding=True, disconnect_on_error=False
                )
        except ANSWERS:
            await self._put_back(connection)  # an error reply is a whole reply
            raise
        except (redis_errors.RedisError, OSError, AttributeError) as error:
            # AttributeError: CPython 3.12 and later write to a connection that its peer had closed
            # without looking whether it still has a loop (selector_events, writelines).
            await self._drop(connection)
            await self.rest()  # the idle ones are no better: asking again must not meet them
            raise self.circuit.failed(transport_error(error, self.alias, sent=True)) from error
        except BaseException:
            await self._drop(connection)
            raise
        await self._put_back(connection)
        return reply

    async def _connect(self) -> AbstractConnection:
        if self._refusable:
            self.circuit.admit()
        connection = self.address.connect_async()
        try:
            async with asyncio.timeout(self.options.connect_timeout_ms / 1000):
                await connection.connect()
        except (redis_errors.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self.circuit.failed(transport_error(error, self.alias, sent=False)) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._open.add(connection)
        self.circuit.worked()
        self.on_connect()
        return connection

    async def _put_back(self, connection: AbstractConnection) -> None:
        if len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def _drop(self, connection: AbstractConnection) -> None:
        self._open.discard(connection)
        await connection.disconnect(nowait=True)

    async def rest(self) -> bool:
        """Close the idle connections; return whether none is left open."""
        while self._idle:
            await self._drop(self._idle.pop())
        return not self._open

    async def listen(self, channels: Sequence[str]) -> AsyncNotices:
        """Subscribe to channels on a connection of its own.

        Raises:
            EngineUnavailable.
        """
        connection = await self._connect()
        command: tuple[Any, ...] = ("SUBSCRIBE", *channels)
        packed = pack_command(command)
        self._open.discard(connection)  # the channel's own: nobody rests while it is open
        try:
            await connection.send_packed_command([packed], check_health=False)
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, redis_errors.RedisError | OSError):
                raise transport_error(error, self.alias, sent=True) from error
            raise
        return AsyncNotices(connection, self.alias)

    def forget(self) -> set[AbstractConnection]:
        """See SyncTransport.forget()."""
        inherited, self._idle, self._open = self._open, deque(), set()
        return inherited
