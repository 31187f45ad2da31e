"""Locks on ZooKeeper."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from kazoo.exceptions import NoNodeError

from lockapp.core.options import EngineOptions
from lockapp.engines.base import Engine
from lockapp.engines.zookeeper.engine import ZooKeeperEngine
from lockapp.engines.zookeeper.names import Paths
from tests.contract.places import Place
from tests.zookeeper_servers import ZooKeeperServer


class ZooKeeperPlace(Place):
    """A prefix on a real server, of which a session lasts longer than any test."""

    kind = "zookeeper"
    shows_deadlines = False

    def __init__(self, server: ZooKeeperServer, prefix: str, url: str = "") -> None:
        self.server = server
        self.client = server.another_client()
        self.url = url or server.url
        super().__init__(prefix)

    def close(self) -> None:
        super().close()
        self.client.stop()
        self.client.close()

    def another_engine(self, **options: Any) -> Engine:
        return super().another_engine(**{"session_timeout": 90, **options})

    def make_engine(self, alias: str, options: EngineOptions) -> Engine:
        return ZooKeeperEngine(alias, self.url, options)

    def raw(self, name: str) -> object:
        lock = Paths(self.prefix).lock(name)
        with contextlib.suppress(NoNodeError):
            found = {}
            for node in self.client.get_children(lock):
                data, stat = self.client.get(f"{lock}/{node}")
                about = json.loads(data)
                about.pop("granted_ms", None)  # noted by the holder a moment after its grant
                found[node] = about, stat.czxid
            return found
        return None

    def litter(self) -> list[str]:
        paths = Paths(self.prefix)
        found = []
        for parent in (paths.locks, paths.ended):
            with contextlib.suppress(NoNodeError):
                found += [f"{parent}/{node}" for node in self.client.get_children(parent)]
        return sorted(found)

    def lose_fence(self) -> None:
        raise NotImplementedError("ZooKeeper counts its transactions itself")

    def lose_everything(self) -> None:
        with contextlib.suppress(NoNodeError):
            self.client.delete(Paths(self.prefix).locks, recursive=True)

    def break_audit(self) -> None:
        raise NotImplementedError("events are kept in this process")

    def mend_audit(self) -> None:
        raise NotImplementedError("events are kept in this process")

    def requests(self) -> int:
        raise NotImplementedError("counted by the test")

    def listening(self) -> bool:
        assert isinstance(self.engine, ZooKeeperEngine)
        return bool(self.engine.session.listening)

    def following(self) -> int:
        raise NotImplementedError("no flights")

    def landings(self) -> list[str]:
        raise NotImplementedError("no flights")
