"""MemoryEngine: the promises of a lock server, kept within one process.

For development and tests. **It does not exclude other processes**, and so no second worker of
the same site: it is refused in production, unless OPTIONS["single_process"] says that one is all
there is.
"""

from __future__ import annotations

from typing import ClassVar

from lockapp.core.options import EngineOptions
from lockapp.core.ports import EnginePort
from lockapp.engines.base import Engine
from lockapp.engines.memory.ports import AsyncMemoryPort, SyncMemoryPort
from lockapp.engines.memory.server import MemoryServer


class MemoryEngine(Engine):
    """Locks among the threads and event loops of this process.

    Guarantee: engines of one location and prefix share their locks, whatever their alias.
    A forked child starts with none: what its parent holds binds only the parent.
    """

    shared_between_processes: ClassVar[bool] = False
    events_in_process: ClassVar[bool] = True

    def __init__(
        self, alias: str, location: str | MemoryServer | None, options: EngineOptions
    ) -> None:
        """See Engine.

        Args:
            location: any text, to tell servers of one process apart; or a server of one's own.

        Raises:
            ValueError: something else, such as the address of a real server.
        """
        location = location or ""
        if isinstance(location, str) and "://" in location:
            raise ValueError(f"a memory engine has no address; {location.partition('://')[0]}:// "
                             "belongs to another ENGINE")  # fmt: skip
        if isinstance(location, str):
            self.server = server_at(location, options.prefix)
        elif isinstance(location, MemoryServer):
            self.server = location
        else:
            raise ValueError(f"a memory engine's location is a word, not {location!r}")
        self.now = self.server.now
        super().__init__(alias, location, options)

    def make_sync_port(self) -> EnginePort:
        """See Engine."""
        return SyncMemoryPort(self.server, self.options, self.alias)

    def make_async_port(self) -> EnginePort:
        """See Engine."""
        return AsyncMemoryPort(self.server, self.options, self.alias)


_SERVERS: dict[tuple[str, str], MemoryServer] = {}


def put_server(location: str, prefix: str, server: MemoryServer | None) -> None:
    """Have a location served by ``server``; None forgets the one that it has."""
    if server is None:
        _SERVERS.pop((location, prefix), None)
    else:
        _SERVERS[location, prefix] = server


def server_at(location: str, prefix: str) -> MemoryServer:
    """Return this process's server for a location: the same for every engine that names it."""
    # setdefault is atomic: two threads that come first get the same one.
    return _SERVERS.get((location, prefix)) or _SERVERS.setdefault(
        (location, prefix), MemoryServer()
    )
