"""A clock that tests set ahead: a ttl passes without anybody sleeping."""

from __future__ import annotations

import weakref
from datetime import timedelta

from lockapp.core.duration import to_ms
from lockapp.engines.base import Engine
from lockapp.engines.clock import boot_clock, steady_clock_us
from lockapp.engines.memory.engine import MemoryEngine
from lockapp.engines.memory.hands import ring_waiters, spare_waiters
from lockapp.engines.memory.server import MemoryServer
from lockapp.handler import locks
from lockapp.testing.renewer import anoted, noted, refuse_in_loop


class SteppableClock:
    """The clock of memory engines: goes on as clocks do, and is set ahead by :meth:`advance`.

    Give it to :class:`~lockapp.testing.override_engine`.
    """

    def __init__(self) -> None:
        self._steady_us = steady_clock_us()
        self._ahead_ms = 0
        self._servers: weakref.WeakSet[MemoryServer] = weakref.WeakSet()

    def now(self) -> float:
        """The time of those who hold and wait, in seconds since some fixed moment."""
        return boot_clock() + self._ahead_ms / 1000

    def epoch_us(self) -> int:
        """The server's time, in microseconds since 1970."""
        return self._steady_us() + self._ahead_ms * 1000

    def make_server(self) -> MemoryServer:
        """Make a memory server that goes by this clock."""
        server = MemoryServer(self.epoch_us, self.now)
        self._servers.add(server)
        return server

    def advance(self, seconds: float | timedelta) -> None:
        """Let so many seconds have passed, as if this process had been frozen meanwhile.

        Leases that had less to live are lost, also those that are renewed in the background: a
        frozen process renews nothing. When this returns, their ``on_lost`` has been called. Waiters
        are woken: they get what has become free, in their order, or give up if their time is over.

        Raises:
            TypeError, ValueError: no time, or one that goes back.
            RuntimeError: called in an event loop; use :meth:`aadvance` there.
        """
        refuse_in_loop()
        self._jump(to_ms(seconds, "seconds"))
        for engine in self._engines():
            noted(engine, lambda engine=engine: _all_noted(engine))  # type: ignore[misc]

    async def aadvance(self, seconds: float | timedelta) -> None:
        """See advance()."""
        self._jump(to_ms(seconds, "seconds"))
        for engine in self._engines():
            await anoted(engine, lambda engine=engine: _all_noted(engine))  # type: ignore[misc]

    def _jump(self, ahead_ms: int) -> None:
        servers = list(self._servers)
        for server in servers:
            spare_waiters(server, ahead_ms)
        self._ahead_ms += ahead_ms
        for server in servers:
            ring_waiters(server)

    def _engines(self) -> list[Engine]:
        return [
            engine
            for engine in locks.all(initialized_only=True)
            if isinstance(engine, MemoryEngine) and engine.server in self._servers
        ]


def _all_noted(engine: Engine) -> bool:
    return all(lease.live for lease in engine.leases if lease.held)
