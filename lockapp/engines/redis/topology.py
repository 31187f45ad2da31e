"""Which server of a Cluster has which slot: what CLUSTER SLOTS said, and what redirections add.

Pure. Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

Server = tuple[str, int]
"""Host and port."""
SLOTS = 16384
_redirected = re.compile(r"^(MOVED|ASK) \d+ (.*):(\d+)$")


@dataclass(frozen=True, slots=True)
class Topology:
    """Who has which slot. Nobody changes one: what is learnt makes another."""

    ranges: tuple[tuple[int, int, Server], ...] = ()  # first, last, master
    replicas: tuple[Server, ...] = ()
    moved: Mapping[int, Server] = field(default_factory=dict)  # slots that redirections named

    def server_of(self, slot: int) -> Server | None:
        """Return who has ``slot``, None when nobody is known to."""
        if slot in self.moved:
            return self.moved[slot]
        for first, last, server in self.ranges:
            if first <= slot <= last:
                return server
        return None

    @property
    def masters(self) -> tuple[Server, ...]:
        """All that have slots, each once."""
        named = (*(server for _, _, server in self.ranges), *self.moved.values())
        return tuple(dict.fromkeys(named))

    def with_moved(self, slot: int, server: Server) -> Topology:
        """Return the same, but that ``server`` has ``slot``."""
        return Topology(self.ranges, self.replicas, {**self.moved, slot: server})


def read_slots(reply: Sequence[Any], asked: Server) -> Topology:
    """Read what ``asked`` answered to CLUSTER SLOTS, undecoded.

    A server that does not know by which name it is reached leaves that out: it is the one by which
    it was asked.
    """
    ranges, replicas = [], []
    for first, last, *servers in reply:
        master, *others = [_server(each, asked) for each in servers]
        if master is not None:
            ranges.append((int(first), int(last), master))
        replicas += [each for each in others if each is not None]
    return Topology(tuple(sorted(ranges)), tuple(dict.fromkeys(replicas)))


def _server(entry: Sequence[Any], asked: Server) -> Server | None:
    host = (entry[0] or b"").decode()
    if host == "?":  # its name is not known yet
        return None
    return host or asked[0], int(entry[1])


class Redirection(NamedTuple):
    """Where a server says that a slot is."""

    server: Server
    only_once: bool  # ASK: for this request; else (MOVED) from now on


def redirection(error: object, asked: Server) -> Redirection | None:
    """Read an error reply of ``asked`` as a redirection; None if it is none.

    redis-py's own connections give such a reply a class, and a wire leaves it as it came.
    """
    if isinstance(error, redis_errors.AskError):
        once = not isinstance(error, redis_errors.MovedError)
        return Redirection((error.host or asked[0], error.port), once)
    found = _redirected.match(str(error)) if isinstance(error, redis_errors.RedisError) else None
    if found is None:
        return None
    return Redirection((found[2] or asked[0], int(found[3])), found[1] == "ASK")


def half_way(error: object) -> bool:
    """Whether an error reply says that a slot is being moved, and some of the keys have gone."""
    if isinstance(error, redis_errors.TryAgainError):
        return True
    return isinstance(error, redis_errors.RedisError) and str(error).startswith("TRYAGAIN")
