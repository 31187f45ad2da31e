"""A connection's socket used directly: one request out, one reply in, with hiredis alone.

redis-py finds the server, opens the socket, speaks TLS, logs in and chooses the database. Its way
of sending and reading one reply costs more than the system calls it makes, and a hand-over pays it
three times; so from there on the bytes go directly. A connection is used either through its wire
or through redis-py, never both: each reads ahead for itself.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from hiredis import Reader
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

READ_SIZE = 65536
LOOK_S = 0.5
"""So long may an answer take before it is asked whether the server is still the one to ask."""
_MORE = object()


def _kernel_waits(sock: Any, timeout_s: float) -> bool:
    """Leave it to the kernel to limit reads and writes, if it can; say whether it does.

    Python's own timeouts cost a poll() before each read and each write. Not for TLS, which has
    its own idea of a read that would block, nor where sockets are green (gevent): those never
    block in the kernel. Windows has another form of this option.
    """
    if os.name != "posix" or isinstance(sock, ssl.SSLSocket):
        return False
    sock.settimeout(None)
    if not os.get_blocking(sock.fileno()):
        sock.settimeout(timeout_s)
        return False
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return True


def _error_of(message: str) -> redis_errors.ResponseError:
    """Make an error reply an exception that keeps the server's words."""
    if message.startswith("NOSCRIPT"):
        return redis_errors.NoScriptError(message)
    return redis_errors.ResponseError(message)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection, None when it is closed. redis-py has no public way."""
    return connection._sock


class Wire:
    """A connection, for exchanges that block."""

    __slots__ = ("_look", "_poll", "_reader", "_socket", "_timeout_s", "connection")

    def __init__(
        self,
        connection: AbstractConnection,
        timeout_s: float,
        look: Callable[[Any], bool] | None = None,
    ) -> None:
        """Take over a connection that is connected and has nothing under way.

        Args:
            connection: who closes the socket.
            timeout_s: how long to wait for the server, sending or reading.
            look: called every ``LOOK_S`` while an answer keeps waiting; says whether another
                server has taken this one's place.
        """
        self.connection = connection
        self._timeout_s = timeout_s
        self._look = look
        self._socket = sock = socket_of(connection)
        sock.settimeout(timeout_s)
        self._poll = select.poll() if _kernel_waits(sock, timeout_s) else None
        if self._poll:
            self._poll.register(sock, select.POLLIN)
        self._reader = Reader(
            protocolError=redis_errors.InvalidResponse, replyError=_error_of, notEnoughData=_MORE
        )

    def ask(self, request: bytes, block_s: float = 0.0) -> Any:
        """Send a packed request and return the reply; an error reply is returned, not raised.

        Args:
            request: one command.
            block_s: how much longer than usual the server may take over it by design.

        Raises:
            OSError: the connection broke, or another server has taken this one's place
                (ConnectionError); or it was silent too long (TimeoutError).
            redis.exceptions.InvalidResponse: what came is not the protocol.

        After any exception the connection must not be used again: a reply may be on its way.
        """
        receive, reader = self._socket.recv, self._reader
        try:
            self._socket.sendall(request)
            if block_s or self._poll or self._look:
                self._wait(block_s + self._timeout_s)
            while (reply := reader.gets()) is _MORE:
                data = receive(READ_SIZE)
                if not data:
                    raise ConnectionError("the server closed the connection")
                reader.feed(data)
        except BlockingIOError:  # the kernel's way to say that the time is over
            raise TimeoutError("timed out") from None
        return reply

    def _wait(self, limit_s: float) -> None:
        """Wait until the reply begins.

        By poll() where the kernel limits reads: it keeps its deadline however many signals arrive,
        and a read begins anew after each (a profiler's timer would keep it waiting for ever).
        """
        step_s = min(limit_s, LOOK_S) if self._look else limit_s
        while limit_s > 0:
            if self._comes(min(step_s, limit_s)):
                return
            limit_s -= step_s
            if self._look and self._look(self.connection):
                raise ConnectionError("another server has taken this one's place")
        raise TimeoutError("timed out")

    def _comes(self, limit_s: float) -> bool:
        """Whether the reply begins within so long."""
        if self._poll:
            return bool(self._poll.poll(limit_s * 1000))
        self._socket.settimeout(limit_s)
        try:
            data = self._socket.recv(READ_SIZE)
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(self._timeout_s)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._reader.feed(data)
        return True
