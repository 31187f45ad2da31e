"""A connection on which answers may be outstanding: nobody has to wait for the slowest node.

A server answers in the order in which it was asked. So a connection whose last answer nobody has
waited for can be used again: what comes first then is the answer to the earlier question, and goes
to whoever asked it. That costs no new connection, and keeps two requests of one token in order.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Coroutine
from typing import Any

from hiredis import Reader
from redis import exceptions as redis_errors
from redis.connection import AbstractConnection

from lockapp.engines.redis.redlock.votes import UNANSWERED, Attempt
from lockapp.engines.redis.wire import READ_SIZE, _error_of, socket_of
from lockapp.exceptions import EngineError

MORE = object()


class Exchange:
    """What a step on one node awaits: a request to be sent. Its value is the reply."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __await__(self) -> Any:
        return (yield self)


class Part:
    """What one node is asked: a step that stops at each request and goes on with the reply."""

    __slots__ = ("at", "attempt", "lasting", "outcome", "sent_at", "step")

    def __init__(
        self,
        at: int,
        step: Coroutine[Any, Any, Any],
        attempt: Attempt | None = None,
        lasting: bool = False,
    ) -> None:
        """Prepare; nothing runs.

        Args:
            at: the node's index.
            step: the step.
            attempt: whose lock it may take.
            lasting: whether it is sent even when nobody waits for it any more.
        """
        self.at = at
        self.lasting = lasting
        self.step = step
        self.attempt = attempt
        self.sent_at = 0.0
        self.outcome: Any = UNANSWERED

    def go_on(self, reply: Any = None) -> bytes | None:
        """Run it to its next request and return that; None when it has its outcome."""
        try:
            if isinstance(reply, redis_errors.RedisError):
                asked = self.step.throw(reply)
            else:
                asked = self.step.send(reply)
        except StopIteration as end:
            self.outcome = end.value
        except EngineError as error:
            self.outcome = error
        else:
            return asked.packed  # type: ignore[no-any-return]
        return None

    def lose(self) -> None:
        """Take note that its answer will never be read. The request may still arrive."""
        self.step.close()
        if self.attempt is not None:
            self.attempt.lost.add(self.at)
            self.attempt.pending.pop(self.at, None)


class Line:
    """A connection to one node, and the parts whose answers are outstanding on it.

    Used by one thread at a time. After an exception of any method it must be dropped.
    """

    __slots__ = ("_reader", "_socket", "connection", "number", "owed", "used_at")

    def __init__(self, connection: AbstractConnection) -> None:
        """Take over a connection that is connected and has nothing under way."""
        self.connection = connection
        self._socket = sock = socket_of(connection)
        sock.setblocking(False)
        self.number: int = sock.fileno()
        self._reader = Reader(
            protocolError=redis_errors.InvalidResponse, replyError=_error_of, notEnoughData=MORE
        )
        self.owed: deque[Part] = deque()
        self.used_at = 0.0

    def send(self, part: Part, packed: bytes, now: float) -> None:
        """Send a request of ``part``; never waits.

        Raises:
            OSError: the connection broke, or takes no more: its server reads nothing.
        """
        part.sent_at = self.used_at = now
        attempt = part.attempt
        if attempt is not None:
            other = attempt.pending.get(part.at)
            if other is not None and other is not self:
                attempt.lost.add(part.at)
            attempt.pending[part.at] = self
        self.owed.append(part)
        if self._socket.send(packed) < len(packed):
            raise BlockingIOError("the server reads nothing")

    def read(self) -> tuple[Part, Any] | None:
        """Return the next reply and whose it is; None when there is none yet. Never waits.

        Raises:
            OSError, redis.exceptions.InvalidResponse: the connection broke.
        """
        while (reply := self._reader.gets()) is MORE:
            try:
                data = self._socket.recv(READ_SIZE)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if not self.owed:
            raise redis_errors.InvalidResponse("an answer to no question")
        return self.owed.popleft(), reply

    def go_on(self, part: Part, reply: Any, now: float) -> bool:
        """Go on with a part; whether it has come to its end.

        What has more to ask (the server did not know the script) asks that, also when nobody waits
        for it; unless it would take what has been given back already.

        Raises:
            OSError: as :meth:`send`.
        """
        packed, attempt = part.go_on(reply), part.attempt
        if packed is not None:
            if attempt is None or not attempt.over:
                self.send(part, packed, now)
                return False
            part.step.close()
        if attempt is not None and attempt.pending.get(part.at) is self:
            del attempt.pending[part.at]
        return True

    def catch_up(self, now: float) -> None:
        """Read what has come meanwhile, for those who no longer wait for it.

        Raises:
            OSError, redis.exceptions.InvalidResponse: the connection broke.
        """
        while said := self.read():
            self.go_on(*said, now)

    def disown(self) -> None:
        """Tell those who are owed an answer that none will come."""
        while self.owed:
            self.owed.popleft().lose()
