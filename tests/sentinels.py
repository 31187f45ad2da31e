"""A master, its replicas and the Sentinels that watch over them, on free loopback ports."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

import redis

from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until

SERVICE = "lockapp"
REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class Sentinel(RedisServer):
    """One Sentinel; it knows the others and the replicas from the start."""

    def __init__(self, number: int, down_after_s: float, **options: Any) -> None:
        super().__init__(**options)
        self.id = f"{number:040x}"
        self.down_after_ms = round(scaled(down_after_s) * 1000)
        self.port = free_port()
        self.watched: list[RedisServer] = []
        self.fellows: list[Sentinel] = []

    def _lines(self) -> list[str]:
        """What stands in its file at first."""
        at = "127.0.0.1"
        master, *replicas = self.watched
        return [
            f"port {self.port}", f"bind {at}", f"dir {self.directory}",
            f"sentinel myid {self.id}",
            f"sentinel monitor {SERVICE} {at} {master.port} {(len(self.fellows) + 1) // 2 + 1}",
            f"sentinel down-after-milliseconds {SERVICE} {self.down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 5000",
            *(f"sentinel known-replica {SERVICE} {at} {each.port}" for each in replicas),
            *(f"sentinel known-sentinel {SERVICE} {at} {each.port} {each.id}"
              for each in self.fellows),
        ]  # fmt: skip

    def _command(self) -> list[str]:
        conf = self.directory / "sentinel.conf"
        if not conf.exists():  # a Sentinel keeps what it has learnt there
            conf.write_text("\n".join(self._lines()) + "\n")
        return [self.binary, str(conf), "--sentinel"]


class Watched:
    """One service: ``servers[0]`` begins as its master.

    Args:
        replicas: how many.
        sentinels: how many; all but the smallest half must agree.
        down_after_s: how long a master is silent before a Sentinel takes it for down (scaled).
    """

    def __init__(self, replicas: int = 2, sentinels: int = 3, down_after_s: float = 1.0) -> None:
        self.servers = [self._make_server() for _ in range(replicas + 1)]
        self.sentinels = [self._make_sentinel(n + 1, down_after_s) for n in range(sentinels)]

    def _make_server(self) -> RedisServer:
        return RedisServer(*REPLICATION)

    def _make_sentinel(self, number: int, down_after_s: float) -> Sentinel:
        return Sentinel(number, down_after_s)

    @property
    def url(self) -> str:
        """The address as `redis+sentinel://…/service/0`."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    @property
    def master(self) -> RedisServer:
        """Whom the first Sentinel takes for the master."""
        _, port = self.sentinels[0].client.execute_command(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE
        )
        return next(each for each in self.servers if each.port == int(port))

    @property
    def replicas(self) -> list[RedisServer]:
        """The others."""
        master = self.master
        return [each for each in self.servers if each is not master]

    def start(self) -> Self:
        """Start all; return when replicas have caught up and every Sentinel sees all."""
        first, *others = self.servers
        first.start()
        for each in others:
            self._follow(each, first)
        for each in self.sentinels:
            each.watched = self.servers
            each.fellows = [other for other in self.sentinels if other is not each]
        for each in self.sentinels:
            each.start()
        self.settle()
        return self

    def stop(self) -> None:
        """Kill all."""
        for each in (*self.sentinels, *self.servers):
            each.stop()

    def settle(self) -> None:
        """Wait until one master is known to all Sentinels and all other servers replicate it."""
        wait_until(self._whole, every_s=0.05, limit_s=30, what="the service to be whole")

    def heal(self) -> None:
        """Bring back what was frozen or killed, as replicas of the present master."""
        for each in self.servers:
            if each.running:
                each.resume()
        master = self.master
        for each in self.servers:
            if not each.running:
                self._follow(each, master)
            elif each is not master and each.client.role()[0] == "master":
                each.client.replicaof("127.0.0.1", master.port)
        self.settle()

    def _follow(self, server: RedisServer, master: RedisServer) -> None:
        server.arguments = (*REPLICATION, "--replicaof", f"127.0.0.1 {master.port}")
        server.start()

    def _whole(self) -> bool:
        with contextlib.suppress(redis.RedisError, StopIteration):
            views = [each.client.sentinel_master(SERVICE) for each in self.sentinels]
            ports = {view["port"] for view in views}
            calm = all(view["flags"] == "master" for view in views)
            met = all(
                view["num-other-sentinels"] == len(self.sentinels) - 1
                and view["num-slaves"] == len(self.servers) - 1
                for view in views
            )
            return len(ports) == 1 and calm and met and self._reached(ports.pop())
        return False

    def _reached(self, port: int) -> bool:
        """Whether all others have what is written to the master now.

        One that calls itself connected may still have to say so before it is sent anything.
        """
        others = len(self.servers) - 1
        master = next(each for each in self.servers if each.port == port)
        with master.client.client() as connection:
            connection.set("settled", 1, px=1000)
            return int(connection.wait(others, 100)) == others

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
