"""Exchanges with a Cluster: each goes to the node that has its slot, by that node's own transport.

Written once for threads and tasks. A redirection means that nothing was done, so that it is
followed at once; so is the news that another node has taken the place of one that can't be
reached. While a slot is moved key by key no step can be done (TRYAGAIN): a caller takes that for a
slow server, up to the command timeout. Whatever else fails is the caller's to ask again, as on one
server: also a slot that nobody has just now (CLUSTERDOWN).

Each node has a circuit breaker of its own: one that is gone must not close the way to the others.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redis import exceptions as redis_errors
from redis.crc import key_slot

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.circuit import SILENT, Circuit
from lockapp.engines.redis.cluster import ClusterAddress
from lockapp.engines.redis.errors import transport_error
from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import SyncTransport, _nothing, twin_of
from lockapp.engines.redis.topology import Server, half_way, redirection
from lockapp.exceptions import EngineUnavailable

if TYPE_CHECKING:
    from lockapp.engines.redis.async_transport import AsyncTransport

    Node = SyncTransport | AsyncTransport

T = TypeVar("T")

REDIRECTIONS = 5
"""Followed for one request; more are a Cluster whose nodes do not agree yet."""
HALF_WAY_S = 0.02
"""How soon a slot that is being moved key by key is asked for again."""
FIRST_S = 0.005
"""How often who comes while somebody asks for the first time looks whether the answer is in."""
SHUNNED_S = (0.05, 0.25)
"""After a failure the watchdog leaves a node alone for as long as that took, within these bounds:
it has others to ask, and its next dozen questions would be the same failure again."""


class Circuits:
    """The circuit breakers of one engine in one process: one for each node, one for the search."""

    def __init__(self, make: Callable[[], Circuit]) -> None:
        self._make = make
        self.search = make()
        self._of: dict[Server, Circuit] = {}

    def of(self, server: Server) -> Circuit:
        """Return a node's."""
        found = self._of.get(server)
        return found or self._of.setdefault(server, self._make())

    def keep(self, masters: Sequence[Server]) -> None:
        """Forget the others: others have their slots, so that their outage is over for locks."""
        for server in [each for each in self._of if each not in masters]:
            self._of.pop(server).worked()


class Route:
    """The way to one slot, whoever has it."""

    __slots__ = ("_cluster", "_slot")

    def __init__(self, cluster: ClusterTransport, slot: int) -> None:
        self._cluster = cluster
        self._slot = slot

    async def script(
        self, script: Script, arguments: tuple[str, ...], first: Words = NONE, acks: int = 0
    ) -> Any:
        """See SyncTransport.script()."""
        return await self._cluster.routed(
            self._slot, lambda node, asking: node.script(script, arguments, first, acks, asking)
        )

    async def command(self, *arguments: Any, block_s: float = 0.0) -> Any:
        """See SyncTransport.command()."""
        return await self._cluster.routed(
            self._slot,
            lambda node, asking: node.command(*arguments, block_s=block_s, asking=asking),
        )


class ClusterTransport:
    """A transport to all nodes of a Cluster; of a kind, blocking or not."""

    def __init__(
        self,
        kind: type[Node],
        address: ClusterAddress,
        options: EngineOptions,
        alias: str,
        circuits: Circuits,
    ) -> None:
        """Prepare; nothing is connected."""
        self.kind = kind
        self.address = address
        self.options = options
        self.alias = alias
        self.circuits = circuits
        self.now = kind.now
        self.sleep = kind.sleep
        self.on_connect: Callable[[], None] = _nothing
        self._refusable = True
        self._nodes: dict[Server, tuple[Node, Node]] = {}  # each with its twin for the watchdog
        self._routes: dict[str, Route] = {}
        self._shunned: dict[Server, float] = {}

    def unrefused(self) -> Self:
        """See SyncTransport.unrefused()."""
        twin = twin_of(self)
        twin._refusable = False
        twin._routes = {}
        return twin

    def at(self, base: str) -> Route:
        """Return the way to the keys that begin with ``base``, which has the hash tag."""
        route = self._routes.get(base)
        if route is None:
            route = self._routes[base] = Route(self, key_slot(base.encode()))
        return route

    async def routed(self, slot: int, ask: Callable[[Node, bool], Awaitable[T]]) -> T:
        """Ask the node that has ``slot``, and follow where it sends.

        Raises:
            EngineUnavailable, ScriptError.
        """
        server, asking = await self._server_of(slot), False
        until = self.now() + self.options.command_timeout_ms / 1000 * self._refusable
        redirections = 0
        while True:
            began = self.now()
            try:
                self._hesitate(server)
                return await ask(self._node(server), asking)
            except EngineUnavailable as error:
                if named := redirection(error.__cause__, server):
                    server, asking = named
                    redirections += 1
                    if redirections > REDIRECTIONS:
                        raise
                    if not asking:
                        self.address.moved(slot, server)
                    continue
                self._doubt(server, error, began)
                if half_way(error.__cause__) and self.now() < until:
                    await self.sleep(HALF_WAY_S)
                    server, asking = await self._server_of(slot), False
                    continue
                if error.reason not in ("connect", "open"):
                    raise
                failed, server = server, await self._server_of(slot)
                redirections += 1
                if server == failed or redirections > REDIRECTIONS:
                    raise  # nobody has its place yet
                asking = False

    async def command(self, *arguments: Any, block_s: float = 0.0) -> Any:
        """Give a command that is of no slot to every master; return what the last one says.

        Raises:
            EngineUnavailable: one of them could not be asked.
        """
        reply = None
        await self._refresh()
        for server in self.address.known.topology.masters:
            began = self.now()
            try:
                reply = await self._node(server).command(*arguments, block_s=block_s)
            except EngineUnavailable as error:
                self._doubt(server, error, began)
                raise
        return reply

    async def listen(self, channels: Sequence[str]) -> Any:
        """Subscribe at one of the masters: what is published at one all others tell, too.

        Raises:
            EngineUnavailable: at none of them.
        """
        await self._refresh()
        masters = self.address.known.topology.masters
        first = os.getpid() % len(masters)  # not all processes at the same one
        failure: EngineUnavailable | None = None
        for server in masters[first:] + masters[:first]:
            began = self.now()
            try:
                self._hesitate(server)
                return await self._node(server).listen(channels)
            except EngineUnavailable as error:
                self._doubt(server, error, began)
                failure = error
        assert failure is not None
        raise failure

    async def rest(self) -> bool:
        """See SyncTransport.rest()."""
        return all([await plain.rest() for plain, _ in list(self._nodes.values())])

    def forget(self) -> list[Any]:
        """See SyncTransport.forget()."""
        return [plain.forget() for plain, _ in self._nodes.values()]

    def _node(self, server: Server) -> Node:
        pair = self._nodes.get(server)
        if pair is None:
            address, circuit = self.address.node(server), self.circuits.of(server)
            plain = self.kind(address, self.options, self.alias, circuit)
            plain.on_connect = self.on_connect
            pair = self._nodes.setdefault(server, (plain, plain.unrefused()))
        return pair[0] if self._refusable else pair[1]

    async def _server_of(self, slot: int) -> Server:
        await self._refresh()
        server = self.address.known.topology.server_of(slot)
        if server is None:
            raise EngineUnavailable(
                f"lock engine {self.alias!r}: no node of the Cluster has slot {slot}",
                alias=self.alias,
                reason="transient",
            )
        return server

    async def _refresh(self) -> None:
        known = self.address.known
        while self.address.is_first_asked:  # not all at once that come when a process starts
            await self.sleep(FIRST_S)
        if not known.topology.ranges and self._refusable:
            self.circuits.search.admit()
        try:
            if not await self.address.refresh(
                self.kind.dial, self.options.connect_timeout_ms / 1000
            ):
                return
        except (redis_errors.RedisError, OSError) as error:
            failure = transport_error(error, self.alias, sent=False)
            raise self.circuits.search.failed(failure) from error
        self.circuits.search.worked()
        masters = known.topology.masters
        self.circuits.keep(masters)
        for server in [each for each in self._nodes if each not in masters]:
            if await self._nodes[server][0].rest():
                self._nodes.pop(server, None)

    def _doubt(self, server: Server, error: EngineUnavailable, began: float) -> None:
        if error.reason == "refused":
            return
        silent = error.reason in SILENT
        self.address.doubt(server if silent else None)
        now = self.now()
        if silent and not self._refusable and self._shunned.get(server, 0.0) <= now:
            least, most = SHUNNED_S
            self._shunned[server] = now + min(max(now - began, least), most)

    def _hesitate(self, server: Server) -> None:
        """Don't let the watchdog wait once more for a node that it has just waited for."""
        if not self._refusable and self._shunned.get(server, 0.0) > self.now():
            raise EngineUnavailable(
                f"lock engine {self.alias!r}: {server[0]}:{server[1]} did not answer a moment ago",
                alias=self.alias,
                reason="connect",
            )
