"""A server that Sentinels watch over: whoever is the master now is asked for when one connects.

Theory of operation
-------------------
* Nobody keeps the master's address: each new connection asks a Sentinel, and the server that it
  names must say itself that it is a master. Sentinels are asked in turn, first the one that
  answered last.
* Whatever makes a transport close its connections (no answer, a broken one, READONLY) is so
  followed by asking the Sentinels again.
* While an answer takes longer than ``LOOK_S``, the Sentinels are asked whether the server is still
  the master: one that hangs breaks no connection, and those who wait for a grant would sleep on.
  The threads and tasks of a process share what one of them found.

What a failover can cost: replication is asynchronous. A lease that the old master granted and no
replica had yet is unknown to the new one, which grants the lock again; and a master that is cut
off, or was frozen, goes on granting until the Sentinels reach it. ``min_replicas_acked`` refuses
both: a lease counts only when so many replicas have it.

Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis import connection as sync_connection
from redis import exceptions as redis_errors
from redis.asyncio import connection as async_connection

from lockapp.core.run import run_sync
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.address import KEPT, Address
from lockapp.engines.redis.dial import AWAITING, BLOCKING, Dial
from lockapp.engines.redis.health import info
from lockapp.engines.redis.wire import LOOK_S

SCHEMES = {"sentinel": "redis", "redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""Scheme of a Sentinel URL → that of its servers."""
PORT = 26379
DOWN = {"s_down", "o_down"}

Server = tuple[str, int]


@dataclass(slots=True)
class Found:
    """What was learnt last; threads share it without a guard, each field is set at once."""

    server: Server | None = None
    looked_at: float = float("-inf")
    order: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class SentinelAddress(Address):
    """A service of some Sentinels. ``settings`` are its servers', without host and port."""

    service: str = ""
    sentinels: tuple[Address, ...] = ()
    found: Found = field(default_factory=Found, repr=False, compare=False)

    moves = True

    @classmethod
    def from_url(cls, url: str) -> SentinelAddress:
        """Read ``redis+sentinel://user:password@host:port,host:port/service/database``.

        User and password are the servers'. Sentinels that want to know who asks are told
        ``?sentinel_username=…&sentinel_password=…``. What else the query says is for both.

        Raises:
            ValueError: not such an address.
        """
        parts = urlsplit(url)
        scheme = SCHEMES.get(parts.scheme, "")
        who, _, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not scheme or not hosts or not service or "/" in database:
            raise ValueError("not redis+sentinel://host:port,host:port/service/database")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        login = {
            key.removeprefix("sentinel_"): query.pop(key)
            for key in ("sentinel_username", "sentinel_password")
            if key in query
        }
        common = f"?{urlencode(query)}" if query else ""
        who = f"{who}@" if who else ""
        server = Address.from_url(f"{scheme}://{who}localhost/{int(database or 0)}{common}")
        sentinels = []
        for host in hosts.split(","):
            asked = Address.from_url(f"{scheme}://{host}{common}")
            sentinels.append(Address(asked.kind, {"port": PORT, **asked.settings, **login}))
        return cls._of(server, unquote(service), sentinels)

    @classmethod
    def from_pool(cls, pool: Any) -> SentinelAddress:
        """Take the Sentinels, credentials and TLS of a redis-py SentinelConnectionPool only."""
        tls = issubclass(pool.connection_class, sync_connection.SSLConnection)
        settings = {
            key: value
            for key, value in pool.connection_kwargs.items()
            if key in KEPT or key.startswith("ssl")
        }
        server = cls._checked("SSLConnection" if tls else "Connection", settings)
        sentinels = [
            Address.from_pool(each.connection_pool) for each in pool.sentinel_manager.sentinels
        ]
        return cls._of(server, pool.service_name, sentinels)

    @classmethod
    def _of(cls, server: Address, service: str, sentinels: list[Address]) -> SentinelAddress:
        settings = _without(server.settings, "host", "port")
        # A Sentinel's user need not be allowed to give its connection a name.
        asked = (Address(each.kind, _without(each.settings, "client_name")) for each in sentinels)
        return cls(server.kind, settings, service, tuple(asked))

    def __str__(self) -> str:
        """Name Sentinels and service without secrets."""
        return (
            f"{','.join(map(_where, self.sentinels))}/{self.service}/{self.settings.get('db') or 0}"
        )

    @property
    def place(self) -> tuple[object, ...]:
        """See Address.place."""
        watching = frozenset(each.place[:2] for each in self.sentinels)
        return watching, self.service, int(self.settings.get("db") or 0)

    def open(self, limit_s: float) -> sync_connection.AbstractConnection:
        """Connect to the master. The Sentinels together have ``limit_s``, and it has as much.

        Raises:
            redis.exceptions.RedisError, OSError: no connection; nothing is left open.
        """
        return run_sync(self._search(BLOCKING, limit_s))  # type: ignore[no-any-return]

    async def open_async(self, limit_s: float) -> async_connection.AbstractConnection:
        """See open()."""
        return await self._search(AWAITING, limit_s)  # type: ignore[no-any-return]

    def left(self, connection: Any) -> bool:
        """See Address.left()."""
        server = self.found.server
        return server is not None and (connection.host, connection.port) != server

    def look(self, connection: Any) -> bool:
        """See Address.look()."""
        return run_sync(self._look(BLOCKING, connection))

    async def look_async(self, connection: Any) -> bool:
        """See Address.look()."""
        return await self._look(AWAITING, connection)

    @property
    def _order(self) -> tuple[Address, ...]:
        return self.found.order or self.sentinels

    async def _search(self, dial: Dial, limit_s: float) -> Any:
        """Ask one Sentinel after the other until one names a server that is a master."""
        failure: Exception | None = None
        tried: set[Server] = set()
        for sentinel in self._order:
            try:
                server = await self._named(dial, sentinel, limit_s / len(self.sentinels))
            except (redis_errors.RedisError, OSError) as error:
                if isinstance(error, redis_errors.RedisError):  # or the server's own, one reads
                    error.args = (f"Sentinel {_where(sentinel)}: {error}",)
                failure = failure or error
                continue
            if server in tried:
                continue
            tried.add(server)
            try:
                connection = await self._master(dial, server, limit_s)
            except (redis_errors.RedisError, OSError) as error:
                failure = error  # says more than that some Sentinel does not answer
                continue
            self.found.server = server
            self._prefer(sentinel)
            return connection
        assert failure is not None
        raise failure

    async def _named(self, dial: Dial, sentinel: Address, limit_s: float) -> Server:
        """Return whom a Sentinel takes for the master, unless it takes it for down."""
        connection = await dial.open(sentinel, limit_s)
        try:
            # The first names the successor before the failover is over, only the second is frank.
            words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
            named = await dial.ask(connection, limit_s, *words)
            if not named:
                raise redis_errors.ConnectionError(f"it watches no {self.service!r}")
            flat = await dial.ask(connection, limit_s, "SENTINEL", "MASTER", self.service)
        finally:
            await dial.close(connection)
        host, port = (each.decode() for each in named)
        known = {flat[at].decode(): flat[at + 1].decode() for at in range(0, len(flat), 2)}
        down = not DOWN.isdisjoint(known.get("flags", "").split(","))
        if down and (known.get("ip"), known.get("port")) == (host, port):
            raise redis_errors.ConnectionError(
                f"it says that {host}:{port} is down, and knows no other master yet"
            )
        return host, int(port)

    async def _master(self, dial: Dial, server: Server, limit_s: float) -> Any:
        """Connect to a server that says itself that it is a master."""
        host, port = server
        connection = await dial.open(
            Address(self.kind, {**self.settings, "host": host, "port": port}), limit_s
        )
        try:
            said = await dial.ask(connection, limit_s, "INFO", "replication")
            if info(said).get("role") != "master":
                raise redis_errors.ConnectionError(f"{host}:{port} is no master")
        except redis_errors.NoPermissionError:
            pass  # then the Sentinel's word must do
        except BaseException:
            await dial.close(connection)
            raise
        return connection

    def _prefer(self, sentinel: Address) -> None:
        others = tuple(each for each in self._order if each is not sentinel)
        self.found.order = (sentinel, *others)

    async def _look(self, dial: Dial, connection: Any) -> bool:
        now = boot_clock()
        if now - self.found.looked_at >= LOOK_S:
            self.found.looked_at = now
            for sentinel in self._order:
                try:
                    named = await self._named(dial, sentinel, LOOK_S / len(self.sentinels))
                except (redis_errors.RedisError, OSError):
                    continue
                self.found.server = named
                self._prefer(sentinel)
                break
        return self.left(connection)


def _where(sentinel: Address) -> str:
    return f"{sentinel.settings.get('host')}:{sentinel.settings.get('port')}"


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}
