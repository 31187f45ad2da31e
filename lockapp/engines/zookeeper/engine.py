"""ZooKeeperEngine: locks of a ZooKeeper ensemble, through kazoo (extra ``zookeeper``).

What it cannot promise: a lease does not outlive its process, since its node goes with the session.
A process that dies keeps its locks until ``session_timeout`` has passed, whatever their ttl. An
ensemble that is replaced by an empty one starts its fencing tokens again.
"""

from __future__ import annotations

from typing import ClassVar

from lockapp.core.options import EngineOptions, UnfitOptions
from lockapp.core.ports import EnginePort
from lockapp.core.values import LockSpec
from lockapp.engines.base import Engine
from lockapp.engines.health import USELESS, Examination, Problem
from lockapp.engines.process_log import log_of
from lockapp.engines.zookeeper.address import Address
from lockapp.engines.zookeeper.examination import examine
from lockapp.engines.zookeeper.ports import AsyncZooKeeperPort, SyncZooKeeperPort
from lockapp.engines.zookeeper.session import Session

SESSIONS_SHARE = 0.75
"""A lease may last so much of a session's timeout. The rest is for what a server has heard and its
leader has not yet: by default a server that is cut off notices it within 10 s (``syncLimit``)."""


class ZooKeeperEngine(Engine):
    """Locks on one ZooKeeper ensemble (3.5 and later)."""

    supports_events: ClassVar[bool] = False
    supports_flights: ClassVar[bool] = False
    leases_outlive_process: ClassVar[bool] = False
    events_in_process: ClassVar[bool] = True
    location_form: ClassVar[str] = "zk://user:password@host:2181,host:2181/chroot"

    def __init__(self, alias: str, location: str, options: EngineOptions) -> None:
        """See Engine.

        Args:
            location: ``zk://host:port,host:port/chroot``; with ``user:password@`` in front of the
                hosts the nodes belong to that user (digest scheme) and nobody else reads them.

        Raises:
            ValueError: not such an address, or a ttl that a session can't keep.
        """
        if not isinstance(location, str):
            raise ValueError("a cache does not say where a ZooKeeper is")
        self.address = Address.from_url(location)
        self.longest_ttl_ms = int(options.session_timeout_ms * SESSIONS_SHARE)
        super().__init__(alias, location, options)
        self.vet(LockSpec("ttl", options.ttl_ms, 0))

    def _start(self) -> None:
        super()._start()
        log = log_of(self.address.hosts, self.address.chroot, self.options.prefix)
        self.session = Session(self.address, self.options, self.alias, log)

    def vet(self, spec: LockSpec) -> None:
        """See Engine. A lease has to end before the session of a silent process can."""
        if spec.ttl_ms > self.longest_ttl_ms:
            raise UnfitOptions(
                f"ttl is {spec.ttl_ms / 1000:g} s, and lock engine {self.alias!r} keeps a lease "
                f"for {self.longest_ttl_ms / 1000:g} s at most: three quarters of its option "
                "session_timeout; shorten ttl (leases are renewed), or raise session_timeout "
                "and the server's maxSessionTimeout"
            )

    @property
    def doubt(self) -> str:
        """See Engine. While the connection is broken the session may be over."""
        return "the connection to ZooKeeper is suspended" if self.session.suspended else ""

    def problems(self) -> list[Problem]:
        """See Engine."""
        return [each for each in self.examine().problems if each.kind in USELESS]

    def examine(self) -> Examination:
        """See Engine."""
        return examine(self.address, self.options)

    def make_sync_port(self) -> EnginePort:
        """See Engine."""
        return SyncZooKeeperPort(self.session, self.options, self.alias)

    def make_async_port(self) -> EnginePort:
        """See Engine."""
        return AsyncZooKeeperPort(self.session, self.options, self.alias)
