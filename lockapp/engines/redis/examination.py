"""What an operator wants to know of a server: all that endangers locks on it, asked in one visit.

On a connection of its own, within the connect and command timeouts. Nothing is changed on the
server. What a real lock meets there is not tried here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from redis import exceptions as redis_errors

from lockapp.core.options import EngineOptions
from lockapp.engines.health import TRIPS, Examination, Problem, judge_trips
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.health import ask, info, judge, together, unreachable
from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys
from lockapp.engines.redis.topology import SLOTS

FULL = 0.9
"""Of memory or connections: how much of the limit is worth a word."""
CLOCKS_APART_S = 2.0
UNSWEPT_S = 60
"""A lease that ran out is reclaimed by the next one who wants the lock, or by a collector."""


def examine(
    address: Address, options: EngineOptions, clock: Callable[[], float] = time.time
) -> Examination:
    """Ask the server, or each master of a Cluster.

    Args:
        address: where it is.
        options: the engine's: timeouts, and how fast it must answer.
        clock: this host's, in seconds since the epoch.
    """
    try:
        members = address.members(options.connect_timeout_ms / 1000)
    except (redis_errors.RedisError, OSError) as error:
        return Examination([unreachable(address, error)])
    seen = [(member, _examined(member, options, clock)) for member in members]
    trips = [each.round_trip_ms for _, each in seen if each.round_trip_ms is not None]
    return Examination(
        together([(member, each.problems) for member, each in seen]),
        ", ".join(dict.fromkeys(each.version for _, each in seen if each.version)),
        max(trips, default=None),
    )


def _examined(address: Address, options: EngineOptions, clock: Callable[[], float]) -> Examination:
    found = Examination()
    try:
        connection = address.open(options.connect_timeout_ms / 1000)
        try:
            _visit(address, connection, options, clock, found)
        finally:
            connection.disconnect()
    except (redis_errors.RedisError, OSError) as error:
        found.problems.insert(0, unreachable(address, error))
    return found


def _visit(
    address: Address,
    connection: Any,
    options: EngineOptions,
    clock: Callable[[], float],
    found: Examination,
) -> None:
    count = CLUSTER_SHARDS if address.in_cluster else 1
    shards = [ShardKeys.of(options.prefix, shard) for shard in range(count)]
    keys = shards[0]
    refused = list(_refused(connection, keys))
    if "INFO" not in refused:
        facts = info(ask(connection, "INFO"))
        found.version = facts.get("valkey_version") or facts.get("redis_version", "")
        found.problems += judge(facts, facts)
        found.problems += judge_state(facts, _saves(connection))
        found.problems += judge_replicas(facts, options)
        if facts.get("cluster_enabled") == "1" and not address.in_cluster:
            found.problems.append(Problem("cluster", ""))
        elif address.in_cluster:
            found.problems += _judge_coverage(connection)
    ahead_s = 0.0
    if "TIME" not in refused:
        trips = [_trip(connection, clock) for _ in range(TRIPS)]
        trip_s, ahead_s = min(trips)
        found.round_trip_ms = trip_s * 1000
        found.problems += judge_trips(max(trips)[0], options)
        if abs(ahead_s) > CLOCKS_APART_S:
            which = "ahead of" if ahead_s > 0 else "behind"
            found.problems.append(Problem("clock", f"{abs(ahead_s):.1f} s {which} this host's"))
    since_ms = int((clock() + ahead_s - UNSWEPT_S) * 1000)
    with suppress(redis_errors.ResponseError):  # not allowed, or of a cluster: both are told
        expired = sum(
            ask(connection, "ZCOUNT", each.held, "-inf", str(since_ms))
            for each in shards
            if address.has(each.base)
        )
        if expired:
            found.problems.append(Problem("unswept", str(expired)))
    try:  # the last, since a connection that has subscribed is good for nothing else
        ask(connection, "SUBSCRIBE", f"{keys.notice}nobody")
    except redis_errors.NoPermissionError:
        refused.append("SUBSCRIBE")  # holders hear of what befalls them at their next renewal only
    if refused:
        found.problems.append(Problem("permission", ", ".join(dict.fromkeys(refused))))


def _refused(connection: Any, keys: ShardKeys) -> Iterator[str]:
    """Yield the commands that this user may not give. Those given here change nothing."""
    nobodys = keys.inbox("nobody")
    for command in (
        ("INFO", "server"), ("TIME",), ("PING",),
        ("EVALSHA", "0" * 40, "0"), ("EVAL", "return 1", "0"),
        ("ZCARD", keys.held), ("ZRANGE", keys.held, "0", "0"), ("ZCOUNT", keys.held, "0", "0"),
        ("GET", keys.number), ("HMGET", keys.meta, "format"),
        ("BLPOP", nobodys, "0.001"), ("XRANGE", keys.events, "-", "+", "COUNT", "1"),
        ("XREVRANGE", keys.events, "+", "-", "COUNT", "1"),
        ("XTRIM", keys.events, "MINID", "~", "0"),
    ):  # fmt: skip
        try:
            ask(connection, *command)
        except redis_errors.NoPermissionError:
            yield command[0]
        except redis_errors.ResponseError:
            continue  # such as NOSCRIPT: allowed


def judge_state(facts: dict[str, str], saves: bool | None) -> Iterator[Problem]:
    """Judge what INFO said about the server's state.

    Args:
        facts: INFO's.
        saves: whether it writes snapshots; None: not known.
    """
    if facts.get("role") == "slave":
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        yield Problem("replica", primary)
    keeps_log = facts.get("aof_enabled") == "1"
    checked = ("aof_last_write_status",) if keeps_log else ("rdb_last_bgsave_status",)
    for failed in [each for each in checked if facts.get(each, "ok") != "ok"]:
        yield Problem("unsaved", f"{failed}: {facts[failed]}")
    for kind, used, limit in (
        ("memory", "used_memory", "maxmemory"),
        ("clients", "connected_clients", "maxclients"),
    ):
        of = int(facts.get(limit, 0))
        if of and int(facts.get(used, 0)) > of * FULL:
            yield Problem(kind, f"{facts[used]} of {of}")
    if not keeps_log:
        yield Problem("snapshots", "") if saves is not False else Problem("forgets", "")


def _judge_coverage(connection: Any) -> Iterator[Problem]:
    served = SLOTS
    with suppress(redis_errors.ResponseError):  # not allowed
        served = int(info(ask(connection, "CLUSTER", "INFO")).get("cluster_slots_ok", 0))
    if served < SLOTS:
        yield Problem("uncovered", f"{SLOTS - served} of {SLOTS} slots")


def judge_replicas(facts: dict[str, str], options: EngineOptions) -> Iterator[Problem]:
    """Judge whether there are as many replicas as a lease must have reached."""
    connected = int(facts.get("connected_slaves", 0))
    if connected < options.min_replicas_acked and facts.get("role") == "master":
        yield Problem("replicas", f"{connected} of {options.min_replicas_acked}")


def _saves(connection: Any) -> bool | None:
    try:
        said = ask(connection, "CONFIG", "GET", "save")
    except redis_errors.ResponseError:  # not allowed, or a hosted server without it
        return None
    return bool(said[1]) if len(said) == 2 else None


def _trip(connection: Any, clock: Callable[[], float]) -> tuple[float, float]:
    """Return how long an answer took, and how far the server's clock is ahead of this host's."""
    began, asked_at = time.perf_counter(), clock()
    seconds, micros = ask(connection, "TIME")
    took_s = time.perf_counter() - began
    return took_s, int(seconds) + int(micros) / 1e6 - (asked_at + took_s / 2)
