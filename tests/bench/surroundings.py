"""What measurements run on: servers, cores, and a crew of processes that is started once."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import redis

from tests.bench.contestants import CONTESTANTS, Maker, Place
from tests.bench.crew import Crew
from tests.servers import RedisServer


class Surroundings:
    """A server, lock files, and what the machine is. A context manager; ends all it started.

    Args:
        say: is told what is being done at the moment.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.say = say
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._ends = ExitStack()
        self._crew: Crew | None = None

    def __enter__(self) -> Self:
        directory = self._ends.enter_context(tempfile.TemporaryDirectory())
        self.server = self._ends.enter_context(RedisServer())
        self.place = Place(self.server.url, directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pin(None, None, self.server)
        self._ends.close()

    @property
    def client(self) -> redis.Redis:
        """A client of the server, for statistics."""
        return self.server.client

    @property
    def machine(self) -> str:
        """The machine in one line, without what names it."""
        info = self.client.info("server")
        # Valkey calls itself so, and gives the version of Redis that it is compatible with as well.
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version") or info.get("redis_version", "?")
        cores = len(self.cores) or os.cpu_count() or 1
        return (
            f"{platform.system()} on {platform.machine()}, {cores} core{'s' * (cores > 1)}, "
            f"{platform.python_implementation()} {platform.python_version()}, "
            f"redis-py {redis.__version__}, server {name} {version} on loopback"
        )

    def join(self, key: str) -> Maker:
        """Join a contestant in this process."""
        return CONTESTANTS[key].join(self.place)

    def another_server(self) -> RedisServer:
        """Start a server beside the first; it ends with the surroundings."""
        return self._ends.enter_context(RedisServer())

    def crew(self, size: int) -> Crew:
        """Return a crew of at least ``size`` processes; started the first time, then kept."""
        if self._crew is None or self._crew.size < size:
            self.say(f"starting {size} processes")
            self._crew = self._ends.enter_context(Crew(size, self.place))
        return self._crew

    def arrangements(self) -> list[tuple[str, int | None, int | None]]:
        """Return how client and server can be put on cores: title, client's core, server's core."""
        if not self.cores:
            return [("any core", None, None)]
        found: list[tuple[str, int | None, int | None]] = [
            ("one core", self.cores[0], self.cores[0])
        ]
        if len(self.cores) > 1:
            found.append(("two cores", self.cores[0], self.cores[1]))
        return found

    def pin(self, client: int | None, server: int | None, *servers: RedisServer) -> None:
        """Put this thread, and servers, on one core each; None for all cores again."""
        if self.cores:
            os.sched_setaffinity(0, self.cores if client is None else {client})
            for it in servers:
                os.sched_setaffinity(it.pid, self.cores if server is None else {server})
