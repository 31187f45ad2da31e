"""RedlockEngine: a mutex on the majority of several independent Redis or Valkey masters.

What it cannot promise: a node that restarts without its data forgets its leases, and with a bare
majority on such a node two may hold one lock until the first one's next renewal. A node that lost
its data should stay away for one maximum ttl. Waiting is asking again: nobody comes first. Without
``two_phase_fencing`` its fences tell leases apart and do not grow by promise.
"""

from __future__ import annotations

from typing import ClassVar

from lockapp.core.options import EngineOptions, UnfitOptions
from lockapp.core.ports import EnginePort
from lockapp.core.values import LockSpec
from lockapp.engines.base import Engine
from lockapp.engines.health import Examination, Problem
from lockapp.engines.process_log import log_of
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.async_transport import AsyncTransport
from lockapp.engines.redis.circuit import Circuit
from lockapp.engines.redis.examination import examine
from lockapp.engines.redis.health import problems
from lockapp.engines.redis.redlock.attempts import Attempts
from lockapp.engines.redis.redlock.fan import Fan
from lockapp.engines.redis.redlock.node import Masters, NodeSteps, addresses_of, node_options
from lockapp.engines.redis.redlock.node_transport import NodeTransport
from lockapp.engines.redis.redlock.steps import RedlockSteps
from lockapp.engines.redis.redlock.task_fan import TaskFan
from lockapp.engines.redis.scripts import build_all


def _named(address: Address, problem: Problem) -> Problem:
    detail = problem.detail
    return problem if str(address) in detail else problem._replace(detail=f"{address}: {detail}")


class RedlockEngine(Engine):
    """Locks on several Redis (7.0 and later) or Valkey (8 and later) servers that share nothing."""

    supports_events: ClassVar[bool] = False
    supports_flights: ClassVar[bool] = False
    events_in_process: ClassVar[bool] = True
    takes_several_locations: ClassVar[bool] = True
    location_form: ClassVar[str] = (
        "a list of an odd number, three at least, of addresses of different servers: "
        '["redis://user:password@host:6379/0", "rediss://…", "unix:///path?db=0"]'
    )

    def __init__(
        self, alias: str, location: list[str] | tuple[str, ...], options: EngineOptions
    ) -> None:
        """See Engine.

        Args:
            location: ``redis://``, ``rediss://`` or ``unix://`` addresses of three, five or more
                servers.

        Raises:
            ValueError: they are not such a list: an even number, too few, or one twice.
        """
        self.addresses = addresses_of(location, alias)
        self.address = Masters(self.addresses)
        self.scripts = build_all()
        self.supports_fencing = options.two_phase_fencing
        super().__init__(alias, location, options)

    def _start(self) -> None:
        super()._start()
        self.names = [str(address) for address in self.addresses]
        self.circuits = [Circuit(f"{self.alias} ({name})", self.options) for name in self.names]
        self.attempts = Attempts(log_of(*self.names, self.options.prefix), self.options)

    def vet(self, spec: LockSpec) -> None:
        """See Engine. What several may hold at once no majority can count."""
        if spec.limit != 1:
            raise UnfitOptions(
                f"lock engine {self.alias!r} (Redlock) offers locks that one holds, and neither "
                "semaphores nor read/write locks: shares of a limit can't be counted by majorities,"
                " and nobody queues. Use an engine on one server for these, with using=…"
            )

    def problems(self) -> list[Problem]:
        """See Engine. Of each node, by its address."""
        return [
            _named(address, problem)
            for address in self.addresses
            for problem in problems(address, self.options)
        ]

    def examine(self) -> Examination:
        """See Engine. Of each node, one after the other."""
        seen = [(address, examine(address, self.options)) for address in self.addresses]
        trips = [it.round_trip_ms for _, it in seen if it.round_trip_ms is not None]
        return Examination(
            [_named(address, problem) for address, it in seen for problem in it.problems],
            ", ".join(sorted({it.version for _, it in seen if it.version})),
            max(trips, default=None),
        )

    def make_sync_port(self) -> EnginePort:
        """See Engine."""
        transports = [
            NodeTransport(address, self.options, self.alias, circuit)
            for address, circuit in zip(self.addresses, self.circuits, strict=True)
        ]
        steps = self._steps(transports)
        return self._port(Fan(steps, self.alias), steps, transports)

    def make_async_port(self) -> EnginePort:
        """See Engine."""
        transports = [
            AsyncTransport(address, self.options, self.alias, circuit)
            for address, circuit in zip(self.addresses, self.circuits, strict=True)
        ]
        steps = self._steps(transports)
        return self._port(TaskFan(steps, self.names, self.alias, self._inherit), steps, transports)

    def _steps(self, transports: list[NodeTransport] | list[AsyncTransport]) -> list[NodeSteps]:
        options = node_options(self.options)
        return [NodeSteps(each, options, self.scripts, self.alias) for each in transports]

    def _port(
        self,
        nodes: Fan | TaskFan,
        steps: list[NodeSteps],
        transports: list[NodeTransport] | list[AsyncTransport],
    ) -> EnginePort:
        port = RedlockSteps(
            nodes, steps, self.options, self.alias, self.attempts, self.addresses[0].seen
        )
        for transport in transports:
            transport.on_connect = lambda: port.watchdog.wake()
        return port
