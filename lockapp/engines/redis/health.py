"""What a server's own settings mean for locks: asked from the server; nothing is changed there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from redis import exceptions as redis_errors

from lockapp.core.options import EngineOptions
from lockapp.engines.health import Problem
from lockapp.engines.redis.address import Address

OLDEST = (7, 0)
"""The oldest server whose scripts can do what ours need: flags, and TIME before a write."""

_version = re.compile(r"(\d+)\.(\d+)")


def problems(address: Address, options: EngineOptions) -> list[Problem]:
    """Ask each server on a connection of its own, within the connect and command timeouts."""
    try:
        members = address.members(options.connect_timeout_ms / 1000)
    except (redis_errors.RedisError, OSError) as error:
        return [unreachable(address, error)]
    return together([(member, _problems(member, options)) for member in members])


def _problems(address: Address, options: EngineOptions) -> list[Problem]:
    try:
        connection = address.open(options.connect_timeout_ms / 1000)
        try:
            server = info(ask(connection, "INFO", "server"))
            memory = info(ask(connection, "INFO", "memory"))
        finally:
            connection.disconnect()
    except (redis_errors.RedisError, OSError) as error:
        return [unreachable(address, error)]
    return judge(server, memory)


def unreachable(address: Address, error: Exception) -> Problem:
    """Say that a server could not be asked."""
    return Problem("unreachable", f"{address}: {type(error).__name__}: {error}")


def together(found: Sequence[tuple[Address, Sequence[Problem]]]) -> list[Problem]:
    """Return what was found at some servers, each kind once, with whom it is said of."""
    if len(found) == 1:
        return list(found[0][1])
    kinds: dict[str, list[str]] = {}
    for address, problems in found:
        for kind, detail in problems:
            named = detail if kind == "unreachable" else f"{detail} ({address})".strip()
            kinds.setdefault(kind, []).append(named)
    return [Problem(kind, "; ".join(details)) for kind, details in kinds.items()]


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
