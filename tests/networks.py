"""A network of a test's own: network namespaces on one switch, whose cables can be pulled.

Nothing outside of it is touched: the switch and every node are namespaces without a name, and each
lives as long as a process of ours in it. They end with the test process, however that ends. Works
for root, with `ip` (Debian's iproute2), where the kernel lets namespaces be made.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.servers import RedisServer
from tests.timing import wait_until

SUBNET = "10.213.77"
"""Exists inside these namespaces only."""


class Namespace:
    """A network namespace; it exists until close(), or until this process has ended."""

    def __init__(self) -> None:
        # `cat` ends when the other end of its pipe is closed.
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_until(
            lambda: self._keeper.poll() is not None or self._is_made(),
            limit_s=10, what="a namespace",
        )  # fmt: skip
        if self._keeper.poll() is not None:
            said = self._keeper.communicate()[1].decode(errors="replace").strip()
            raise OSError(f"no network namespace can be made here: {said}")
        self.ip("link", "set", "lo", "up")

    def _is_made(self) -> bool:
        with contextlib.suppress(OSError):
            namespaces = (Path(f"/proc/{who}/ns/net").readlink() for who in ("self", self.pid))
            return next(namespaces) != next(namespaces)
        return False

    @property
    def pid(self) -> int:
        """A process in it."""
        return self._keeper.pid

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs this one in it, under the process id it is started with."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]

    def run(self, *command: str) -> None:
        """Run a command in it."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def ip(self, *words: str) -> None:
        """Run `ip` in it."""
        self.run("ip", *words)

    def close(self) -> None:
        """Let it go; processes that are still in it keep it."""
        self._keeper.kill()
        self._keeper.communicate()


class Node(Namespace):
    """A host on the switch."""

    def __init__(self, switch: Namespace, number: int) -> None:
        super().__init__()
        self.address = f"{SUBNET}.{number}"
        self._switch = switch
        self._port = f"port{number}"
        switch.ip(
            "link", "add", self._port, "type", "veth",
            "peer", "name", "eth0", "netns", str(self.pid),
        )  # fmt: skip
        switch.ip("link", "set", self._port, "master", "switch", "up")
        self.ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def cut(self) -> None:
        """Pull its cable: nothing goes in or out, and nobody is told; connections stay open."""
        self._switch.ip("link", "set", self._port, "down")

    def mend(self) -> None:
        """Put it in again."""
        self._switch.ip("link", "set", self._port, "up")

    def mute(self, other: Node) -> None:
        """Lose all that it sends to ``other``, which goes on being heard."""
        self.ip("route", "add", "blackhole", f"{other.address}/32")

    def unmute(self, other: Node) -> None:
        """End that."""
        self.ip("route", "del", "blackhole", f"{other.address}/32")


class Network:
    """The switch and its nodes. Context manager."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._count = 0

    def join(self) -> Node:
        """Add a host."""
        self._count += 1
        node = Node(self._switch, self._count)
        self._open.callback(node.close)
        return node

    def __enter__(self) -> Self:
        self._switch = Namespace()
        self._open.callback(self._switch.close)
        self._switch.ip("link", "add", "switch", "type", "bridge")
        self._switch.ip("link", "set", "switch", "up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()


class NodeServer(RedisServer):
    """A Redis server on a node. Tests look into it through its unix socket, cable or not."""

    def __init__(self, node: Node, *arguments: str) -> None:
        super().__init__(*arguments)
        self.node = node
        self.port = 6379

    @property
    def url(self) -> str:
        return f"redis://{self.node.address}:{self.port}/0"

    @property
    def client(self) -> redis.Redis:
        if self._client is None:
            path = f"{self.directory}/socket"
            self._client = redis.Redis(unix_socket_path=path, decode_responses=True)
        return self._client

    def _command(self) -> list[str]:
        open_to_all = ("--bind", self.node.address, "--protected-mode", "no")
        return self.node.inside(*super()._command(), *open_to_all)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False


@functools.cache
def why_no_networks() -> str:
    """Return why none can be made here; empty when they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]} on PATH"
    try:
        with Network() as network:
            network.join()
    except (OSError, AssertionError) as error:
        return str(error)
    return ""
