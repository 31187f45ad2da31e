"""Blocking connections: one exchange at a time on each, never two callers waiting for one.

A connection is taken out of the idle ones before the send and put back only after the whole
reply was read. Whatever interrupts an exchange (a timeout, Ctrl-C, SoftTimeLimitExceeded between
send and read) closes the connection: reused, it would answer every later question with the
answer to the one before.

There is no upper bound on connections and so no waiting for one: a waiter blocks a connection
for seconds, and a release must never queue behind it.

Who would need a new connection while the circuit breaker is open is refused, except the watchdog:
it has a twin of the transport (:meth:`SyncTransport.unrefused`) with the same connections.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from lockapp.core.options import EngineOptions
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.circuit import Circuit
from lockapp.engines.redis.dial import BLOCKING
from lockapp.engines.redis.errors import demoted, server_error, transport_error, unacked
from lockapp.engines.redis.notices import SyncNotices
from lockapp.engines.redis.request import ASKING, NONE, Words, command, grants, request
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.wire import Wire

IDLE = 64
"""Idle connections kept; more are closed when their exchange is over."""


T = TypeVar("T")


def _nothing() -> None:
    """Do nothing."""


def twin_of(it: T) -> T:
    """Return a copy that shares all that ``it`` has.

    Not by ``copy``: that imports, and a watchdog may still be made while the interpreter ends.
    """
    twin = object.__new__(type(it))
    vars(twin).update(vars(it))
    return twin


class SyncTransport:
    """Exchanges with one server, for all threads of one process."""

    def __init__(
        self, address: Address, options: EngineOptions, alias: str, circuit: Circuit | None = None
    ) -> None:
        """Prepare; nothing is connected.

        Args:
            address: the server.
            options: the engine's.
            alias: the engine's, for messages.
            circuit: shared by all transports of an engine and process; by default its own.
        """
        self.address = address
        self.options = options
        self.alias = alias
        self.circuit = circuit or Circuit(alias, options)
        self._refusable = True
        self._idle: deque[Wire] = deque()
        # Idle or in use. Weak, since a signal may strike where no `try` reaches, and a connection
        # dropped there must not count as used for ever; its finaliser closes it.
        self._open: weakref.WeakSet[AbstractConnection] = weakref.WeakSet()
        self.on_connect: Callable[[], None] = _nothing

    now = staticmethod(boot_clock)
    dial = BLOCKING

    def unrefused(self) -> Self:
        """Return a twin with the same connections that may always try to connect.

        For the watchdog: what it renews and undoes can't wait, and so it is what notices first
        that the server is back.
        """
        twin = twin_of(self)
        twin._refusable = False
        return twin

    def at(self, base: str) -> Self:
        """Return what reaches the server with the keys that begin with ``base``: all are on one."""
        return self

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    async def script(
        self,
        script: Script,
        arguments: tuple[str, ...],
        first: Words = NONE,
        acks: int = 0,
        asking: bool = False,
    ) -> Any:
        """Run a step: EVALSHA, and EVAL when the server does not know it (any more).

        Args:
            script: the step.
            arguments: the number of keys, the keys, and what else it takes.
            first: those of them that are packed already.
            acks: how many replicas must have what it gives or prolongs.
            asking: whether it follows a redirection of a Cluster that holds for this once.

        Raises:
            EngineUnavailable, ScriptError.
        """
        try:
            try:
                return self._exchange(request(script.by_sha, first, arguments), 0, acks, asking)
            except redis_errors.NoScriptError:
                return self._exchange(request(script.by_text, first, arguments), 0, acks, asking)
        except redis_errors.ResponseError as error:
            raise server_error(error, self.alias, script) from error

    async def command(self, *arguments: Any, block_s: float = 0.0, asking: bool = False) -> Any:
        """Run a command that may take ``block_s`` seconds by design.

        Raises:
            EngineUnavailable, ScriptError.
        """
        try:
            return self._exchange(command(*arguments), block_s, 0, asking)
        except redis_errors.ResponseError as error:
            raise server_error(error, self.alias, None) from error

    def _exchange(self, packed: bytes, block_s: float, acks: int, asking: bool) -> Any:
        try:
            wire = self._idle.pop()
        except IndexError:
            look = self.address.look if self.address.moves else None
            wire = Wire(self._connect(), self.options.command_timeout_ms / 1000, look)
        acked: Any = acks
        try:
            if asking:
                wire.ask(ASKING)
            reply = wire.ask(packed, block_s)
            if acks and grants(reply):
                wait_ms = self.options.command_timeout_ms
                acked = wire.ask(command("WAIT", acks, wait_ms), wait_ms / 1000)
        except (redis_errors.RedisError, OSError) as error:
            self._drop(wire)
            self._drop_idle()  # they are no better: asking again must not meet one of them
            raise self.circuit.failed(transport_error(error, self.alias, sent=True)) from error
        except BaseException:
            self._drop(wire)
            raise
        if demoted(reply):
            self._drop(wire)
            self._drop_idle()
        elif len(self._idle) < IDLE:
            self._idle.append(wire)
        else:
            self._drop(wire)
        if acks and not (isinstance(acked, int) and acked >= acks):
            raise unacked(self.alias, acked, acks)
        if isinstance(reply, redis_errors.ResponseError):
            try:
                raise reply
            finally:
                del (
                    reply
                )  # or a cycle of it and this frame keeps all frames below alive, and leases
        return reply

    def _connect(self) -> AbstractConnection:
        if self._refusable:
            self.circuit.admit()
        try:
            connection = self.address.open(self.options.connect_timeout_ms / 1000)
        except (redis_errors.RedisError, OSError) as error:
            raise self.circuit.failed(transport_error(error, self.alias, sent=False)) from error
        self._open.add(connection)
        self.circuit.worked()
        self.on_connect()
        return connection

    def _drop(self, wire: Wire) -> None:
        self._open.discard(wire.connection)
        wire.connection.disconnect()

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):  # other threads take from it, too
            while True:
                self._drop(self._idle.pop())

    async def rest(self) -> bool:
        """Close the idle connections; return whether none is left open."""
        self._drop_idle()
        # Looked at, not counted: where a signal struck in its finaliser, one that is gone counts.
        return not set(self._open)

    async def listen(self, channels: Sequence[str]) -> SyncNotices:
        """Subscribe to channels on a connection of its own.

        Raises:
            EngineUnavailable.
        """
        connection = self._connect()
        packed = command("SUBSCRIBE", *channels)
        self._open.discard(connection)  # the channel's own: nobody rests while it is open
        try:
            connection.send_packed_command([packed], check_health=False)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis_errors.RedisError | OSError):
                raise transport_error(error, self.alias, sent=True) from error
            raise
        return SyncNotices(connection, self.address, self.alias)

    def forget(self) -> set[AbstractConnection]:
        """Give up the connections without touching the wire: after a fork they are the parent's.

        Returns them, for the caller to keep: closing them here could disturb nobody, but a
        finaliser that speaks would.
        """
        inherited, self._idle, self._open = set(self._open), deque(), weakref.WeakSet()
        return inherited
