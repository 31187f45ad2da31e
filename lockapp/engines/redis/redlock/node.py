"""One node of several: a server of its own, whose steps are those of the single-server engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis import connection as sync_connection
from redis import exceptions as redis_errors
from redis.asyncio import connection as async_connection

from lockapp.core.options import EngineOptions
from lockapp.core.run import run_sync
from lockapp.core.values import Gone, Granted
from lockapp.engines.redis import replies
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.dial import AWAITING, BLOCKING, Dial
from lockapp.engines.redis.health import info
from lockapp.engines.redis.steps import RedisSteps
from lockapp.exceptions import EngineMisconfigured

KEPT_EVENTS = 1000
"""Entries kept in a node's own event stream, about: for who looks into what went wrong there. The
events of the locks are those of the processes that hold them."""


@dataclass(frozen=True, slots=True)
class NodeAddress(Address):
    """A server that must not be one of the others. Who connects asks it who it is."""

    alias: str = ""
    seen: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Address → run id of the server last found there; shared by all nodes of an engine."""

    def open(self, limit_s: float) -> sync_connection.AbstractConnection:
        """See Address.open().

        Raises:
            EngineMisconfigured: another address leads to the same server.
        """
        connection = Address.open(self, limit_s)
        run_sync(self._identify(BLOCKING, connection, limit_s))
        return connection

    async def open_async(self, limit_s: float) -> async_connection.AbstractConnection:
        """See open()."""
        connection = await Address.open_async(self, limit_s)
        await self._identify(AWAITING, connection, limit_s)
        return connection

    async def _identify(self, dial: Dial, connection: Any, limit_s: float) -> None:
        try:
            said = info(await dial.ask(connection, limit_s, "INFO", "server"))
            self._compare(said.get("run_id", ""))
        except redis_errors.NoPermissionError:
            pass  # then the addresses must do
        except BaseException:
            await dial.close(connection)
            raise

    def _compare(self, run_id: str) -> None:
        self.seen[str(self)] = run_id
        refuse_twice(self.seen, self.alias)


def refuse_twice(seen: dict[str, str], alias: str) -> None:
    """Do nothing if each address leads to another server, as far as is known.

    Raises:
        EngineMisconfigured: two lead to one.
    """
    known = list(seen.items())
    if len({run_id for _, run_id in known}) == len(known):
        return
    servers: dict[str, str] = {}
    for address, run_id in known:
        other = servers.setdefault(run_id, address)
        if other != address:
            raise EngineMisconfigured(
                f"lock engine {alias!r}: {other} and {address} are the same server, which would "
                "count twice; Redlock needs independent ones",
                alias=alias,
            )


class Masters:
    """Where all nodes are: see Engine.address."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    def __str__(self) -> str:
        """Name the servers without their secrets."""
        return ", ".join(map(str, self._addresses))

    @property
    def place(self) -> tuple[object, ...]:
        """See Address.place."""
        return (frozenset(each.place for each in self._addresses),)


class NodeSteps(RedisSteps):
    """The steps of one node."""

    async def deadlines(self, count: int) -> tuple[int, list[tuple[str, int]]]:
        """Return how many names are held here, and those that end first, with when (ms)."""
        held = self.shards[0].held
        total = await self.transport.command("ZCARD", held)
        flat = await self.transport.command("ZRANGE", held, 0, count - 1, "WITHSCORES")
        found = [(replies.text(flat[at]), int(flat[at + 1])) for at in range(0, len(flat), 2)]
        return total, found

    async def accept(self, name: str, token: str, fence: int) -> Granted | Gone:
        """See :class:`~lockapp.engines.redis.redlock.votes.Node`."""
        shard = self.shard(name)
        reply = await self.transport.script(
            self._scripts["accept"], ("2", shard.lock(name), shard.shared[1], token, str(fence))
        )
        if reply[0] == b"GRANTED":
            return Granted(reply[1], reply[2], reply[3])
        return Gone(reply[1], replies.text(reply[2]), replies.text(reply[3]))


def node_options(options: EngineOptions) -> EngineOptions:
    """Return an engine's options as each of its nodes has them."""
    return replace(options, event_cap=min(options.event_cap, KEPT_EVENTS))


def addresses_of(location: Any, alias: str) -> tuple[NodeAddress, ...]:
    """Read the addresses of the nodes.

    Raises:
        ValueError: not a list of addresses, an even number or fewer than three, or one twice.
    """
    if isinstance(location, str) or not isinstance(location, list | tuple):
        raise ValueError("not a list of addresses")
    if len(location) < 3 or len(location) % 2 == 0:
        raise ValueError(f"an odd number of servers, three at least, and not {len(location)}")
    plain = [Address.from_url(url) for url in location]
    twice = list(_twice(plain))
    if twice:
        raise ValueError(f"{twice[0]} is there twice")
    seen: dict[str, str] = {}
    return tuple(NodeAddress(it.kind, it.settings, alias, seen) for it in plain)


def _twice(addresses: list[Address]) -> Iterator[Address]:
    """Yield those whose server is that of an earlier one, whatever the database."""
    servers = set()
    for address in addresses:
        server = address.place[:-1]
        if server in servers:
            yield address
        servers.add(server)
