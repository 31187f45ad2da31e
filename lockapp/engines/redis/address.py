"""Where a Redis server is, and how a connection to it is made. redis-py does the rest.

redis-py's own defaults are wrong for locks (ten retries with back-off: a SET whose reply was lost
is sent again and answers "exists" although it is ours; 4 s to learn that a server is down), so
every connection gets our timeouts and no retries: each step is idempotent by token, and it is
the procedures that ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import connection as sync_connection
from redis.asyncio import connection as async_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry


class _Disconnects:
    _writer: Any  # redis-py's stream; it has no public way

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close it at once, if that is still possible.

        TLS would take leave of the server first, and for its answer a loop that ends has no time
        and a server that hangs none at all: the connection would stay open.

        A task that is dropped together with its event loop can await no more: redis-py's error
        would take the place of the GeneratorExit that ends the task.
        """
        with contextlib.suppress(RuntimeError):
            if self._writer is not None:
                self._writer.transport.abort()
            await super().disconnect(*args, **kwargs)  # type: ignore[misc]

    def break_off(self) -> None:
        """Have whoever waits for an answer see a broken connection."""
        if self._writer is not None:
            self._writer.transport.abort()


class _Tcp(_Disconnects, async_connection.Connection):
    pass


class _Tls(_Disconnects, async_connection.SSLConnection):
    pass


class _Unix(_Disconnects, async_connection.UnixDomainSocketConnection):
    pass


ASYNC_CLASS = {"Connection": _Tcp, "SSLConnection": _Tls, "UnixDomainSocketConnection": _Unix}
KEPT = frozenset(
    ("host", "port", "path", "db", "username", "password", "credential_provider",
     "socket_keepalive", "socket_keepalive_options", "socket_type", "client_name")
)  # fmt: skip
"""What of a foreign pool's settings makes a difference to where and as whom we connect."""

_PARAMETERS = inspect.signature(sync_connection.AbstractConnection.__init__).parameters
NAMELESS: dict[str, None] = (
    {"driver_info": None}
    if "driver_info" in _PARAMETERS
    else {"lib_name": None, "lib_version": None}
)
"""Saves a round trip (CLIENT SETINFO) per connection; newer redis-py warns of the older names."""
BLOCKING_ONLY = frozenset(
    inspect.signature(sync_connection.SSLConnection.__init__).parameters
) - frozenset(inspect.signature(async_connection.SSLConnection.__init__).parameters)
"""What redis-py's blocking connections can check of a certificate and its asynchronous can not."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server, the identity to use there, and TLS. Contains secrets: never shown."""

    kind: str  # name of the connection class: Connection, SSLConnection, UnixDomainSocketConnection
    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Read ``redis://``, ``rediss://`` or ``unix://``.

        Raises:
            ValueError: not such an address.
        """
        settings = dict(sync_connection.parse_url(url))
        kind = settings.pop("connection_class", sync_connection.Connection).__name__
        return cls._checked(kind, settings)

    @classmethod
    def from_pool(cls, pool: Any) -> Address:
        """Take the address, credentials and TLS of a redis-py pool, and nothing else of it."""
        settings = {
            key: value
            for key, value in pool.connection_kwargs.items()
            if key in KEPT or key.startswith("ssl")
        }
        return cls._checked(pool.connection_class.__name__, settings)

    @classmethod
    def _checked(cls, kind: str, settings: dict[str, Any]) -> Address:
        if kind not in ASYNC_CLASS:
            raise ValueError(
                f"a lock engine can't use a {kind}; give a redis://, rediss:// or unix:// address"
            )
        settings.setdefault("client_name", "lockapp")
        for name in BLOCKING_ONLY.intersection(settings):  # a pool has them all, most not in use
            if not settings[name]:
                del settings[name]
        return cls(kind, settings)

    def __str__(self) -> str:
        """Name the server without its secrets."""
        known = self.settings
        where = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        return f"{where}/{known.get('db', 0)}"

    @property
    def place(self) -> tuple[object, ...]:
        """Which database of which server it is, as far as the text tells; to be compared."""
        known = self.settings
        database = int(known.get("db") or 0)
        if known.get("path"):
            return known["path"], database
        host = str(known.get("host") or "localhost").lower().rstrip(".")
        loopback = host in ("localhost", "::1") or host.startswith("127.")
        return "localhost" if loopback else host, int(known.get("port") or 6379), database

    def open(self, limit_s: float) -> sync_connection.AbstractConnection:
        """Return a blocking connection, ready for commands.

        Its reads are limited as the handshake was: a server that accepts and says nothing costs
        ``limit_s``. Who goes on to use it sets the limit that commands have (``Wire``).

        Raises:
            redis.exceptions.RedisError, OSError: no connection; nothing is left open.
        """
        made: type[Any] = getattr(sync_connection, self.kind)
        settings = {
            **self.settings,
            "socket_timeout": limit_s,
            "socket_connect_timeout": limit_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "health_check_interval": 0,
        }
        connection: sync_connection.AbstractConnection = made(**settings)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    async def open_async(self, limit_s: float) -> async_connection.AbstractConnection:
        """Return an asynchronous connection, ready for commands and without timeouts of its own.

        With ``socket_timeout`` set, redis-py wraps writes in ``asyncio.wait_for``, which on
        CPython 3.11 swallows a cancellation that arrives as the write completes: a coroutine that
        nobody waits for would go on to take the lock. Timeouts are ``asyncio.timeout`` blocks here
        and in the transport.

        Raises:
            redis.exceptions.RedisError, OSError: no connection; nothing is left open.
        """
        made: type[Any] = ASYNC_CLASS[self.kind]
        settings = {
            **self.settings,
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "retry": AsyncRetry(NoBackoff(), 0),
            "protocol": 2,
            "health_check_interval": 0,
        }
        connection: async_connection.AbstractConnection = made(**settings)
        try:
            async with asyncio.timeout(limit_s):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    moves = False
    """Whether another server may take the place of the one that was found."""
    in_cluster = False
    """Whether it is meant to be a node of a Cluster."""

    def members(self, limit_s: float) -> Sequence[Address]:
        """Return the address of each server that keeps locks: of a Cluster, those of its masters.

        Raises:
            redis.exceptions.RedisError, OSError: nobody says which they are.
        """
        return (self,)

    def has(self, key: str) -> bool:
        """Whether ``key`` is kept there, as far as is known."""
        return True

    def left(self, connection: Any) -> bool:
        """Whether it is known that ``connection`` goes to a server that locks have moved from."""
        return False

    def look(self, connection: Any) -> bool:
        """Find out; see :meth:`left`. Only called of an address that moves; never raises."""
        return False

    async def look_async(self, connection: Any) -> bool:
        """See look()."""
        return False
