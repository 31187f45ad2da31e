"""RedisEngine: one Redis or Valkey server, the master of those that Sentinels watch, or a Cluster.

What it cannot promise: a server that restarts without its data, or becomes master without all of
it, has forgotten who held what, and grants again; each holder learns it at its next renewal, and
its fencing token tells the two apart. ``min_replicas_acked`` has no lease count before replicas
have it. The server must not evict keys (``maxmemory-policy noeviction``).
"""

from __future__ import annotations

from typing import Any

from lockapp.core.breaker import LONGEST_COOL_DOWN_S
from lockapp.core.options import EngineOptions
from lockapp.core.ports import EnginePort
from lockapp.engines.base import Engine
from lockapp.engines.health import Examination, Problem
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.async_transport import AsyncTransport
from lockapp.engines.redis.circuit import Circuit
from lockapp.engines.redis.cluster import ClusterAddress
from lockapp.engines.redis.cluster_transport import Circuits, ClusterTransport
from lockapp.engines.redis.examination import examine
from lockapp.engines.redis.health import problems
from lockapp.engines.redis.keys import CLUSTER_SHARDS
from lockapp.engines.redis.location import address_of
from lockapp.engines.redis.scripts import build_all
from lockapp.engines.redis.steps import RedisSteps
from lockapp.engines.redis.sync_transport import SyncTransport

COOL_DOWN_S = 0.25
"""So long, at most, are Sentinels not asked who is the master now."""


class RedisEngine(Engine):
    """Locks on one Redis (7.0 and later) or Valkey (8 and later) server."""

    supports_replica_acks = True

    def __init__(self, alias: str, location: str | Address, options: EngineOptions) -> None:
        """See Engine.

        Args:
            location: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or
                ``redis+cluster://``; or an Address taken from elsewhere (a django-redis cache).

        Raises:
            ValueError: not such an address.
        """
        self.address = location if isinstance(location, Address) else address_of(location)
        self.scripts = build_all()
        super().__init__(alias, location, options)

    def _start(self) -> None:
        super()._start()
        # A child's own: closed. Where another server takes over soon, soon is when to ask again.
        longest_s = COOL_DOWN_S if self.address.moves else LONGEST_COOL_DOWN_S
        self._circuits = Circuits(
            lambda: Circuit(self.alias, self.options, self.observe, longest_s)
        )

    @property
    def circuit(self) -> Circuit:
        """The circuit breaker of the server; of a Cluster, that of the search for its nodes."""
        return self._circuits.search

    @property
    def shards(self) -> int:
        """See Engine."""
        return CLUSTER_SHARDS if isinstance(self.address, ClusterAddress) else 1

    def problems(self) -> list[Problem]:
        """See Engine."""
        return problems(self.address, self.options)

    def examine(self) -> Examination:
        """See Engine."""
        return examine(self.address, self.options)

    def make_sync_port(self) -> EnginePort:
        """See Engine."""
        return self._port(self._transport(SyncTransport))

    def make_async_port(self) -> EnginePort:
        """See Engine."""
        return self._port(self._transport(AsyncTransport))

    def _transport(self, kind: type[SyncTransport | AsyncTransport]) -> Any:
        if isinstance(self.address, ClusterAddress):
            return ClusterTransport(kind, self.address, self.options, self.alias, self._circuits)
        return kind(self.address, self.options, self.alias, self.circuit)

    def _port(self, transport: Any) -> EnginePort:
        port = RedisSteps(transport, self.options, self.scripts, self.alias, self.shards)
        transport.on_connect = lambda: port.watchdog.wake()
        return port
