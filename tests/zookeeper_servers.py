"""Starts and stops the real ZooKeeper servers that the suite talks to: one, or an ensemble.

Each listens on free loopback ports, keeps its files in a temporary directory, and is killed by the
process id that was started here: by `stop()`, or by a watcher when the test process itself dies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient

from tests.addresses import address_of
from tests.servers import ServerFailed, free_port
from tests.timing import scaled

JAR = os.environ.get("LOCKAPP_TEST_ZOOKEEPER_JAR", "/usr/share/java/zookeeper.jar")
TICK_MS = 200
"""Sessions end in steps of this, two of them at least."""
START_LIMIT_S = 30.0
# Little memory, no second compiler: a server for a few tests is up in a second that way.
JAVA = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer:
    """One server process on 127.0.0.1, alone or a member of an ensemble.

    Use as a context manager, or call start() and stop(). Its port stays the same over restart().

    Args:
        members: the `server.N=` lines of the ensemble; none for a server that is alone.
        number: which of them it is.
    """

    def __init__(self, members: dict[str, str] | None = None, number: int = 1) -> None:
        self.port = 0
        self._members = members or {}
        self._number = number
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address."""
        return f"zk://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def another_client(self) -> KazooClient:
        """Start a plain client for looking into the server from a test, which closes it."""
        client = KazooClient(f"127.0.0.1:{self.port}", timeout=60)
        client.start(scaled(10))
        return client

    def launch(self) -> None:
        """Start the process; it may take a while to answer."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="lockapp-zookeeper-", dir="/tmp"))
            self.port = free_port()
        settings = {
            "tickTime": TICK_MS, "initLimit": 50, "syncLimit": 10, "dataDir": self._directory,
            "clientPort": self.port, "clientPortAddress": "127.0.0.1", "maxClientCnxns": 0,
            "admin.enableServer": "false", "maxSessionTimeout": 1_000_000, **self._members,
        }  # fmt: skip
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        (self._directory / "zoo.cfg").write_text("".join(lines))
        (self._directory / "myid").write_text(str(self._number))
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [address_of("java"), *JAVA, "-Dzookeeper.forceSync=no", "-cp", JAR, MAIN,
                 str(self._directory / "zoo.cfg")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        # The watcher's `read` ends when this process is gone and its end of the pipe with it.
        script = 'read -r line; kill -9 "$1"; rm -rf "$2"'
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", str(self._process.pid), str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until it serves requests.

        Raises:
            ServerFailed: it ended, or did not within START_LIMIT_S seconds (scaled).
        """
        end = time.monotonic() + scaled(START_LIMIT_S)
        while time.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
                raise ServerFailed(f"ZooKeeper ended at start:\n{self.log()[-2000:]}")
            if self.mode():
                return
            time.sleep(0.02)
        raise ServerFailed(f"ZooKeeper did not answer in time:\n{self.log()[-2000:]}")

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

    def start(self) -> Self:
        """Start and wait until it serves requests.

        Raises:
            ServerFailed: it does not.
        """
        self.launch()
        self.wait_until_ready()
        return self

    def stop(self) -> None:
        """Kill the server and remove its directory; quiet when it has stopped already."""
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """Kill the process as a crash would; start() brings it back with its data."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            # First, so that it can never kill a process that got the same id later.
            watcher.kill()
            watcher.wait()
            assert watcher.stdin is not None
            watcher.stdin.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what the server has logged."""
        path = (self._directory or Path("/nowhere")) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


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
