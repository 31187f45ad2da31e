"""What a server's own settings mean for locks: asked from the server; nothing is changed there."""

from __future__ import annotations

import re
from typing import Any

from redis import exceptions as redis_errors

from lockapp.core.options import EngineOptions
from lockapp.engines.health import Problem
from lockapp.engines.redis.address import Address

OLDEST = (7, 0)
"""The oldest server whose scripts can do what ours need: flags, and TIME before a write."""

_version = re.compile(r"(\d+)\.(\d+)")


def problems(address: Address, options: EngineOptions) -> list[Problem]:
    """Ask the server on a connection of its own, within the connect and command timeouts."""
    try:
        connection = address.open(options.connect_timeout_ms / 1000)
        try:
            server = info(ask(connection, "INFO", "server"))
            memory = info(ask(connection, "INFO", "memory"))
        finally:
            connection.disconnect()
    except (redis_errors.RedisError, OSError) as error:
        return [Problem("unreachable", f"{address}: {type(error).__name__}: {error}")]
    return judge(server, memory)


def judge(server: dict[str, str], memory: dict[str, str]) -> list[Problem]:
    """Judge what INFO said."""
    found = []
    # Valkey calls itself compatible with Redis 7.2 here, whatever its own version.
    said = server.get("redis_version", "")
    version = _version.match(said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        found.append(Problem("version", said or "unknown"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        limit = memory.get("maxmemory_human", "")
        # Without a limit nothing is evicted today; the day somebody sets one, locks vanish.
        found.append(Problem("eviction", f"{policy}, maxmemory {limit}".removesuffix(" ")))
    return found


def ask(connection: Any, *command: str) -> Any:
    """Give one command on a connection of redis-py's; return its reply, undecoded."""
    connection.send_command(*command)
    return connection.read_response(disable_decoding=True)


def info(reply: bytes) -> dict[str, str]:
    """Read INFO's reply."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
