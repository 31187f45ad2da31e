"""A Redis or Valkey Cluster: several masters, each with some of the slots and so of the shards.

Theory of operation
-------------------
* Who has which slot is asked of one node after the other (CLUSTER SLOTS), first the one that
  answered last, and kept for all threads and tasks of the process. Any node will do to begin with.
* It is asked again after a node did not answer, broke off or spoke of a change, at most every
  ``RELEARN_S``; and when what is known is older than ``OLD_S``, since who only waits for notices
  would not notice that their node is gone.
* While an answer takes longer than ``LOOK_S``, the others are asked whether the node still has
  slots: one that hangs breaks no connection, and those who wait for a grant would sleep on.

What a failover can cost is what it costs behind Sentinels: see :mod:`.sentinel`. A master that was
frozen or cut off grants until the others reach it, or until ``cluster-node-timeout`` has passed
without a majority.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis import connection as sync_connection
from redis import exceptions as redis_errors
from redis.asyncio import connection as async_connection
from redis.crc import key_slot

from lockapp.core.options import UnfitLocation
from lockapp.core.run import run_sync
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.dial import AWAITING, BLOCKING, Dial
from lockapp.engines.redis.topology import Server, Topology, read_slots
from lockapp.engines.redis.wire import LOOK_S

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""Scheme of a Cluster's URL → that of its nodes."""
RELEARN_S = 0.25
"""So soon, at the earliest, are nodes asked again who has which slot."""
OLD_S = 10.0
"""So long is what was learnt believed unasked."""


@dataclass(slots=True)
class Known:
    """What was learnt last; threads share it without a guard, each field is set at once."""

    topology: Topology = field(default_factory=Topology)
    learnt_at: float = float("-inf")
    not_before: float = float("-inf")  # when somebody may ask again
    doubted: Server | None = None  # whom to ask last: it did not answer
    stale: bool = False
    answered: Server | None = None  # who answered last


@dataclass(frozen=True, slots=True)
class ClusterAddress(Address):
    """Some nodes of a Cluster. ``settings`` are those of all nodes, without host and port."""

    seeds: tuple[Server, ...] = ()
    known: Known = field(default_factory=Known, repr=False, compare=False)

    moves = True

    @classmethod
    def from_url(cls, url: str) -> ClusterAddress:
        """Read ``redis+cluster://user:password@host:port,host:port``.

        User, password and what the query says are for all nodes.

        Raises:
            ValueError: not such an address, or with a database other than 0: a Cluster has no more.
        """
        parts = urlsplit(url)
        scheme = SCHEMES.get(parts.scheme, "")
        who, at, hosts = parts.netloc.rpartition("@")
        if not scheme or not hosts:
            raise ValueError("not redis+cluster://host:port,host:port")
        seeds, common = [], {}
        for host in hosts.split(","):
            node = Address.from_url(urlunsplit((scheme, who + at + host, "", parts.query, "")))
            common = {k: v for k, v in node.settings.items() if k not in ("host", "port", "db")}
            where = node.settings
            seeds.append((str(where.get("host") or "localhost"), int(where.get("port") or 6379)))
        if parts.path.strip("/") not in ("", "0") or node.settings.get("db"):
            raise UnfitLocation(
                "a Cluster has no numbered databases: leave the number out, and keep locks "
                "apart by OPTIONS['prefix']"
            )
        return cls(node.kind, common, tuple(dict.fromkeys(seeds)))

    def __str__(self) -> str:
        """Name the nodes that were given, without secrets."""
        return ",".join(f"{host}:{port}" for host, port in self.seeds)

    @property
    def place(self) -> tuple[object, ...]:
        """See Address.place. Two texts that name other nodes of one Cluster are not told."""
        return frozenset(self.node(seed).place for seed in self.seeds), "cluster"

    def node(self, server: Server) -> NodeAddress:
        """Return the address of one node."""
        host, port = server
        return NodeAddress(self.kind, {**self.settings, "host": host, "port": port}, self)

    def members(self, limit_s: float) -> Sequence[Address]:
        """See Address.members(). Asked for anew each time."""
        run_sync(self.learn(BLOCKING, limit_s))
        return [self.node(server) for server in self.known.topology.masters]

    def open(self, limit_s: float) -> sync_connection.AbstractConnection:
        """Connect to some master.

        Raises:
            redis.exceptions.RedisError, OSError: no connection; nothing is left open.
        """
        return self.members(limit_s)[0].open(limit_s)

    async def open_async(self, limit_s: float) -> async_connection.AbstractConnection:
        """See open()."""
        await self.learn(AWAITING, limit_s)
        return await self.node(self.known.topology.masters[0]).open_async(limit_s)

    def doubt(self, server: Server | None) -> None:
        """Have it asked again who has which slot, soon; of ``server``, which failed, last."""
        self.known.doubted, self.known.stale = server, True

    def moved(self, slot: int, server: Server) -> None:
        """Take note of a redirection. Where one slot has gone, others may have, too."""
        self.known.topology = self.known.topology.with_moved(slot, server)
        self.known.stale = True

    def has_slots(self, server: Server) -> bool:
        """Whether a node is not known to have lost all its slots."""
        masters = self.known.topology.masters
        return not masters or server in masters

    async def refresh(self, dial: Dial, limit_s: float) -> bool:
        """Ask again who has which slot if that is due; say whether it was.

        Of several callers one asks, and the others go on with what is known. Who knows nothing yet
        has nothing to go on with.

        Raises:
            redis.exceptions.RedisError, OSError: nobody answers, and nothing is known.
        """
        known, now = self.known, boot_clock()
        if known.topology.ranges and (
            now < known.not_before or not (known.stale or now - known.learnt_at > OLD_S)
        ):
            return False
        known.not_before = now + 2 * limit_s
        pause_s = RELEARN_S
        try:
            await self.learn(dial, limit_s)
        except (redis_errors.RedisError, OSError):
            if not known.topology.ranges:
                raise
            pause_s += boot_clock() - now  # nobody answers: callers pay for it half of the time
        finally:
            known.not_before = boot_clock() + (pause_s if known.topology.ranges else 0)
        return True

    @property
    def is_first_asked(self) -> bool:
        """Whether nothing is known yet, and somebody is finding out."""
        return not self.known.topology.ranges and boot_clock() < self.known.not_before

    async def learn(self, dial: Dial, limit_s: float) -> None:
        """Ask one node after the other who has which slot, until one answers.

        Raises:
            redis.exceptions.RedisError, OSError: none does.
        """
        failure: Exception | None = None
        nodes = list(self._order())
        for server in nodes:
            try:
                topology = await self._told(dial, server, max(limit_s / len(nodes), LOOK_S))
            except (redis_errors.RedisError, OSError) as error:
                failure = failure or error
                continue
            known = self.known
            known.topology, known.answered = topology, server
            known.stale, known.learnt_at = False, boot_clock()
            return
        assert failure is not None
        raise failure

    def _order(self) -> Iterator[Server]:
        known = self.known
        first = [known.answered] if known.answered else []
        nodes = (*first, *known.topology.masters, *known.topology.replicas, *self.seeds)
        for server in dict.fromkeys(nodes):
            if server != known.doubted:
                yield server
        if known.doubted in nodes:
            yield known.doubted

    async def _told(self, dial: Dial, server: Server, limit_s: float) -> Topology:
        node = self.node(server)
        connection = await dial.open(node, limit_s)
        try:
            said = await dial.ask(connection, limit_s, "CLUSTER", "SLOTS")
            topology = read_slots(said, server)
        except redis_errors.ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            raise redis_errors.ConnectionError(f"{node} is no node of a Cluster") from error
        finally:
            await dial.close(connection)
        if not topology.ranges:
            raise redis_errors.ConnectionError(f"{node} knows of no slots")
        return topology

    async def lost(self, dial: Dial, server: Server) -> bool:
        """Find out whether a node that lets somebody wait has lost all its slots."""
        known, now = self.known, boot_clock()
        if now >= known.not_before:
            known.not_before = now + 2 * LOOK_S
            known.doubted = server
            try:
                await self.learn(dial, LOOK_S)
            except (redis_errors.RedisError, OSError):
                pass
            finally:
                known.not_before = boot_clock() + LOOK_S
        return not self.has_slots(server)


@dataclass(frozen=True, slots=True)
class NodeAddress(Address):
    """One node of a Cluster."""

    cluster: ClusterAddress = field(repr=False, compare=False)

    moves = True
    in_cluster = True

    @property
    def server(self) -> Server:
        """Host and port."""
        return self.settings["host"], self.settings["port"]

    def has(self, key: str) -> bool:
        """See Address.has()."""
        return self.cluster.known.topology.server_of(key_slot(key.encode())) == self.server

    def left(self, connection: Any) -> bool:
        """See Address.left(): that it has no slots any more."""
        return not self.cluster.has_slots(self.server)

    def look(self, connection: Any) -> bool:
        """See Address.look()."""
        return run_sync(self.cluster.lost(BLOCKING, self.server))

    async def look_async(self, connection: Any) -> bool:
        """See Address.look()."""
        return await self.cluster.lost(AWAITING, self.server)
