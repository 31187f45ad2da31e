"""Locks on three masters that share nothing."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

from lockapp.core.options import EngineOptions
from lockapp.engines.base import Engine
from lockapp.engines.redis import RedlockEngine
from lockapp.exceptions import EngineUnavailable
from tests.contract.places import LASTING, Place
from tests.servers import RedisServer
from tests.timing import wait_until


class Masters:
    """Independent servers, started and stopped together."""

    def __init__(self, count: int = 3) -> None:
        self.servers = [RedisServer() for _ in range(count)]

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [server.url for server in self.servers]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self.servers:
            if server.running:
                server.resume()
            server.stop()


class RedlockPlace(Place):
    """A prefix on all of them; with fences that grow, or there would be less to promise."""

    kind = "redlock"
    shows_deadlines = False
    """Each node has one of its own, a millisecond beside the others'."""

    def __init__(self, masters: Masters, prefix: str) -> None:
        self.masters = masters
        super().__init__(prefix)

    def another_engine(self, **options: Any) -> Engine:
        return super().another_engine(**{"two_phase_fencing": True, **options})

    def make_engine(self, alias: str, options: EngineOptions) -> Engine:
        return RedlockEngine(alias, self.masters.urls, options)

    def key(self, of: str) -> str:
        """Spell a key of the prefix."""
        return f"{self.prefix}:{{0}}:{of}"

    def raw(self, name: str) -> object:
        lock = self.key(f"lock:{name}")
        return [
            (
                server.client.hgetall(lock),
                server.client.pexpiretime(lock),
                server.client.zscore(self.key("held"), name),
            )
            for server in self.masters.servers
        ]

    def litter(self) -> list[str]:
        try:
            self.engine.sweep()
        except EngineUnavailable as down:
            return [str(down)]
        # Nobody waits for the slowest node to have given back what it has.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._litter(), limit_s=1)
        return self._litter()

    def _litter(self) -> list[str]:
        found: set[Any] = set()
        for server in self.masters.servers:
            found.update(server.client.scan_iter(f"{self.prefix}:*", count=1000))
        return sorted(key for key in found if key.rsplit(":", 1)[-1] not in LASTING)

    def listening(self) -> bool:
        servers = self.masters.servers
        return any(server.client.pubsub_channels(f"{self.prefix}:*") for server in servers)

    def following(self) -> int:
        raise NotImplementedError("no flights")

    def landings(self) -> list[str]:
        raise NotImplementedError("no flights")

    def lose_fence(self) -> None:
        # One may still have to be told of the lock.
        assert sum(server.client.delete(self.key("fence")) for server in self.masters.servers)

    def lose_everything(self) -> None:
        for server in self.masters.servers:
            server.client.flushdb()

    def break_audit(self) -> None:
        raise NotImplementedError("events are kept in this process")

    def mend_audit(self) -> None:
        raise NotImplementedError("events are kept in this process")

    def requests(self) -> int:
        return sum(
            value["calls"]
            for server in self.masters.servers
            for name, value in server.client.info("commandstats").items()
            if name.removeprefix("cmdstat_") in ("evalsha", "eval")
        )
