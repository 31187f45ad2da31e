"""Starts and stops the real ZooKeeper servers that the suite talks to: one, or an ensemble."""

from __future__ import annotations

import contextlib
import os
import socket
from types import TracebackType
from typing import ClassVar, Self

from kazoo.client import KazooClient

from tests.addresses import address_of
from tests.server_process import Server, free_port
from tests.timing import scaled

JAR = os.environ.get("LOCKAPP_TEST_ZOOKEEPER_JAR", "/usr/share/java/zookeeper.jar")
TICK_MS = 200
"""Sessions end in steps of this, two of them at least."""
# Little memory, no second compiler: a server for a few tests is up in a second that way.
JAVA = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(Server):
    """One server process on 127.0.0.1, alone or a member of an ensemble.

    What kill() leaves, start() reads again.

    Args:
        members: the `server.N=` lines of the ensemble; none for a server that is alone.
        number: which of them it is.
    """

    title: ClassVar[str] = "ZooKeeper"
    start_limit_s: ClassVar[float] = 30.0

    def __init__(self, members: dict[str, str] | None = None, number: int = 1) -> None:
        super().__init__()
        self._members = members or {}
        self._number = number

    @property
    def url(self) -> str:
        """The address."""
        return f"zk://127.0.0.1:{self.port}"

    def another_client(self) -> KazooClient:
        """Start a plain client for looking into the server from a test, which closes it."""
        client = KazooClient(f"127.0.0.1:{self.port}", timeout=60)
        client.start(scaled(10))
        return client

    def _command(self) -> list[str]:
        settings = {
            "tickTime": TICK_MS, "initLimit": 50, "syncLimit": 10, "dataDir": self.directory,
            "clientPort": self.port, "clientPortAddress": "127.0.0.1", "maxClientCnxns": 0,
            "admin.enableServer": "false", "maxSessionTimeout": 1_000_000, **self._members,
        }  # fmt: skip
        conf = self.directory / "zoo.cfg"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self.directory / "myid").write_text(str(self._number))
        java = [address_of("java"), *JAVA, "-Dzookeeper.forceSync=no", "-cp", JAR]
        return [*java, MAIN, str(conf)]

    def _answers(self) -> bool:
        return bool(self.mode())

    def mode(self) -> str:
        """Say what it is (standalone, leader, follower); empty while it serves nobody."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
        ):
            connection.settimeout(1)
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return answer.decode().partition("Mode: ")[2].split("\n")[0]
        return ""


class ZooKeeperEnsemble:
    """Three servers that elect a leader."""

    def __init__(self) -> None:
        members = {
            f"server.{number}": f"127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3)
        }
        self.servers = [ZooKeeperServer(members, number) for number in (1, 2, 3)]

    @property
    def url(self) -> str:
        """The address of all three."""
        return "zk://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def leader(self) -> ZooKeeperServer:
        """The one that leads at the moment."""
        return next(server for server in self.servers if server.mode() == "leader")

    def __enter__(self) -> Self:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.stop()
