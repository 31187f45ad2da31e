"""The asynchronous twin of ``sync_transport``: the same rules, one event loop.

Every limit is an ``asyncio.timeout`` block, never ``wait_for`` (which loses cancellations on
CPython 3.11), and whatever interrupts an exchange closes its connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from lockapp.core.options import EngineOptions
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.circuit import Circuit
from lockapp.engines.redis.dial import AWAITING
from lockapp.engines.redis.errors import (
    ANSWERS,
    demoted,
    server_error,
    transport_error,
    unacked,
)
from lockapp.engines.redis.notices import AsyncNotices
from lockapp.engines.redis.request import ASKING, NONE, Words, command, grants, request
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import IDLE, _nothing, twin_of
from lockapp.engines.redis.wire import LOOK_S


class Lookout:
    """Breaks a connection that waits for an answer when another server has taken its place."""

    def __init__(self, address: Address, connection: AbstractConnection) -> None:
        self._address = address
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_S, self._begin)
        self._task: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._look(), name="lockapp-lookout")

    async def _look(self) -> None:
        if await self._address.look_async(self._connection):
            self._connection.break_off()  # type: ignore[attr-defined]
        else:
            self._timer = self._loop.call_later(LOOK_S, self._begin)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


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
    dial = AWAITING

    def unrefused(self) -> Self:
        """See SyncTransport.unrefused()."""
        twin = twin_of(self)
        twin._refusable = False
        return twin

    def at(self, base: str) -> Self:
        """See SyncTransport.at()."""
        return self

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Suspend this task."""
        await asyncio.sleep(seconds)

    async def script(
        self,
        script: Script,
        arguments: tuple[str, ...],
        first: Words = NONE,
        acks: int = 0,
        asking: bool = False,
    ) -> Any:
        """See SyncTransport.script()."""
        try:
            try:
                known = request(script.by_sha, first, arguments)
                return await self._exchange(known, 0, acks, asking)
            except redis_errors.NoScriptError:
                whole = request(script.by_text, first, arguments)
                return await self._exchange(whole, 0, acks, asking)
        except ANSWERS as error:
            raise server_error(error, self.alias, script) from error

    async def command(self, *arguments: Any, block_s: float = 0.0, asking: bool = False) -> Any:
        """See SyncTransport.command()."""
        try:
            return await self._exchange(command(*arguments), block_s, 0, asking)
        except ANSWERS as error:
            raise server_error(error, self.alias, None) from error

    async def _exchange(self, packed: bytes, block_s: float, acks: int, asking: bool) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = await self._connect()
        acked: Any = acks
        try:
            if asking:
                await self._ask(connection, ASKING, 0)
            reply = await self._ask(connection, packed, block_s)
            if acks and grants(reply):
                acked = await self._acked(connection, acks)
        except ANSWERS as error:
            if demoted(error):
                await self._drop(connection)
                await self.rest()
            else:
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
        if acks and not (isinstance(acked, int) and acked >= acks):
            raise unacked(self.alias, acked, acks)
        return reply

    async def _ask(self, connection: AbstractConnection, packed: bytes, block_s: float) -> Any:
        lookout = Lookout(self.address, connection) if self.address.moves else None
        try:
            async with asyncio.timeout(block_s + self.options.command_timeout_ms / 1000):
                await connection.send_packed_command([packed], check_health=False)
                return await connection.read_response(
                    disable_decoding=True, disconnect_on_error=False
                )
        finally:
            if lookout:
                lookout.end()

    async def _acked(self, connection: AbstractConnection, acks: int) -> Any:
        wait_ms = self.options.command_timeout_ms
        try:
            return await self._ask(connection, command("WAIT", acks, wait_ms), wait_ms / 1000)
        except ANSWERS as error:  # the step was carried out, whatever the server says to this
            return error

    async def _connect(self) -> AbstractConnection:
        if self._refusable:
            self.circuit.admit()
        try:
            connection = await self.address.open_async(self.options.connect_timeout_ms / 1000)
        except (redis_errors.RedisError, OSError) as error:
            raise self.circuit.failed(transport_error(error, self.alias, sent=False)) from error
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
        packed = command("SUBSCRIBE", *channels)
        self._open.discard(connection)  # the channel's own: nobody rests while it is open
        try:
            await connection.send_packed_command([packed], check_health=False)
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, redis_errors.RedisError | OSError):
                raise transport_error(error, self.alias, sent=True) from error
            raise
        return AsyncNotices(connection, self.address, self.alias)

    def forget(self) -> set[AbstractConnection]:
        """See SyncTransport.forget()."""
        inherited, self._idle, self._open = self._open, deque(), set()
        return inherited
