"""Connections to one node of several, whose answers are read by whoever asked all of them.

Only a *connection* is made in a thread of its own, which ends with it: finding the server, TLS and
login are redis-py's and block, and one node that lets people wait must not keep anybody from the
others. Of a node whose connection nobody waits for any more, no other one is made before that
attempt is over; unless there is no majority without it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import Any

from redis import exceptions as redis_errors

from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.errors import server_error, transport_error
from lockapp.engines.redis.redlock.line import Exchange, Line, Part
from lockapp.engines.redis.redlock.votes import Attempt
from lockapp.engines.redis.request import NONE, Words, command, request
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import IDLE, SyncTransport
from lockapp.exceptions import EngineError, EngineUnavailable

LOOK_AFTER_S = 1.0
"""A connection that was idle for so long is looked at before it is used: its server may have
restarted."""


class NodeTransport(SyncTransport):
    """Connections to one node, for all threads of one process."""

    _idle: deque[Any]
    _dial: Dial | None = None  # a connection that is being made and that nobody waits for

    async def script(
        self,
        script: Script,
        arguments: tuple[str, ...],
        first: Words = NONE,
        acks: int = 0,
        asking: bool = False,
    ) -> Any:
        """See Transport. Stops where a request is to be sent; a :class:`Fan` goes on from there."""
        try:
            try:
                return await Exchange(request(script.by_sha, first, arguments))
            except redis_errors.NoScriptError:
                return await Exchange(request(script.by_text, first, arguments))
        except redis_errors.ResponseError as error:
            raise server_error(error, self.alias, script) from error

    async def command(self, *arguments: Any, block_s: float = 0.0, asking: bool = False) -> Any:
        """See Transport."""
        try:
            return await Exchange(command(*arguments))
        except redis_errors.ResponseError as error:
            raise server_error(error, self.alias, None) from error

    def take(self, at: int, attempt: Attempt | None, now: float) -> Line | None:
        """Take a connection that is there; the one on which ``attempt`` has something under way."""
        wanted = None if attempt is None else attempt.pending.get(at)
        if wanted is not None:
            with contextlib.suppress(ValueError):  # another thread uses it
                self._idle.remove(wanted)
                if self._good(wanted, now):
                    return wanted  # type: ignore[no-any-return]
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if self._good(line, now):
                return line  # type: ignore[no-any-return]

    def _good(self, line: Line, now: float) -> bool:
        """Whether a connection can be used; it is dropped if not."""
        if not line.owed and now - line.used_at < LOOK_AFTER_S:
            return True
        try:
            line.catch_up(now)
        except (redis_errors.RedisError, OSError) as error:
            self.broke(line, error)
        except BaseException:
            self._drop(line)
            raise
        else:
            if not line.owed or now - line.owed[0].sent_at < self.options.command_timeout_ms / 1000:
                return True
            self.broke(line, TimeoutError("timed out"))
        return False

    def give(self, line: Line) -> None:
        """Put a connection back; answers may still come on it."""
        if len(self._idle) < IDLE:
            self._idle.append(line)
        else:
            self._drop(line)

    def broke(self, line: Line, error: Exception) -> EngineError:
        """Drop a connection and the idle ones, which are no better; return what to say."""
        self._drop(line)
        self._drop_idle()
        return self.circuit.failed(transport_error(error, self.alias, sent=True))

    def _drop(self, wire: Any) -> None:
        super()._drop(wire)
        wire.disown()

    def connect(self) -> Line:
        """Connect, whatever the circuit breaker says; for a :class:`Dial`, which was admitted.

        Raises:
            EngineError: no connection.
        """
        try:
            connection = self.address.open(self.options.connect_timeout_ms / 1000)
        except (redis_errors.RedisError, OSError) as error:
            raise self.circuit.failed(transport_error(error, self.alias, sent=False)) from error
        self._open.add(connection)
        self.circuit.worked()
        self.on_connect()
        return Line(connection)

    def begin_dial(self, part: Part, packed: bytes, *, needed: bool) -> Dial:
        """Begin to connect, in order to send ``packed``.

        Raises:
            EngineUnavailable: the circuit breaker is open; or it is being tried, and not
                ``needed``. Then it is sent afterwards if it is to be.
        """
        if self._dial is not None and not needed and self._dial.send_later(part, packed):
            raise EngineUnavailable(
                f"{self.alias}: no connection yet", alias=self.alias, reason="connect"
            )
        if self._refusable:
            self.circuit.admit()
        return Dial(self)

    def leave(self, dial: Dial, part: Part, packed: bytes) -> None:
        """Wait no longer for a connection; when it is there it is for whoever comes next.

        What gives back is sent even then. What takes is not: nobody would give it back.
        """
        self._dial = dial
        dial.leave(part, packed)


class Dial:
    """One attempt to connect, in a thread of its own."""

    def __init__(self, node: NodeTransport) -> None:
        """Begin."""
        self._node = node
        self._guard = threading.RLock()
        self._left = self._over = False
        self._later: list[tuple[Part, bytes]] = []
        self.line: Line | None = None
        self.error: EngineError | None = None
        self.bell, self._ringer = socket.socketpair()
        name = f"lockapp-dial-{node.alias}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:  # the interpreter ends, and starts no more threads
            self._run()

    def _run(self) -> None:
        try:
            line = self._node.connect()
        except EngineError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - of whatever kind: whoever waits is told
            self.error = transport_error(OSError(str(error)), self._node.alias, sent=False)
        else:
            self.line = line
        with self._guard:
            self._over = True
            if self._left:
                self._hand_on()
        with contextlib.suppress(OSError):  # nobody listens any more
            self._ringer.send(b".")
        self._ringer.close()

    def leave(self, part: Part, packed: bytes) -> None:
        """Let the connection go to whoever comes next, when ``part`` has been sent if need be."""
        with self._guard:
            self._left = True
            if part.lasting:
                self._later.append((part, packed))
            else:
                part.step.close()
            if self._over:
                self._hand_on()
        self.bell.close()

    def send_later(self, part: Part, packed: bytes) -> bool:
        """Have ``part`` sent when there is a connection, if need be; False if it is over."""
        with self._guard:
            if self._over:
                return False
            if part.lasting:
                self._later.append((part, packed))
            else:
                part.step.close()
            return True

    def _hand_on(self) -> None:
        line, self.line = self.line, None
        later, self._later = self._later, []
        if line is None:
            for part, _ in later:
                part.step.close()
            return
        try:
            for part, packed in later:
                line.send(part, packed, boot_clock())
        except OSError as error:
            self._node.broke(line, error)
        else:
            self._node.give(line)
