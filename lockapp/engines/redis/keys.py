"""The one place that spells keys.

``P:{s}:lock:<name>`` and its siblings; ``{s}`` is the shard and, in a Cluster, the hash tag: all
keys of a shard share a slot, so that every script may touch all of them. Names come encoded from
``lockapp.naming`` and contain no braces.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

FORMAT = "1"
"""Version of the layout of keys and records. A server that stores another one is refused."""
CLUSTER_SHARDS = 64
"""How many shards there are in a Cluster: more than it has masters, and few enough to list."""


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys that all locks of one shard share, in the order of the scripts' KEYS."""

    shared: tuple[str, str, str, str, str, str]
    """held, fence, events, number, counts, grant prefix"""
    base: str

    @classmethod
    def of(cls, prefix: str, shard: int) -> ShardKeys:
        """Spell the shared keys of a shard."""
        base = f"{prefix}:{{{shard}}}:"
        return cls(
            (
                f"{base}held",
                f"{base}fence",
                f"{base}events",
                f"{base}number",
                f"{base}counts",
                f"{base}grant:",
            ),
            base,
        )

    @property
    def held(self) -> str:
        """The index of held names, by earliest deadline."""
        return self.shared[0]

    @property
    def events(self) -> str:
        """The event stream."""
        return self.shared[2]

    @property
    def number(self) -> str:
        """The last event number."""
        return self.shared[3]

    @property
    def counts(self) -> str:
        """Statistics per family."""
        return self.shared[4]

    @property
    def meta(self) -> str:
        """Format version and shard count, to be verified."""
        return f"{self.base}meta"

    def lock(self, name: str) -> str:
        """The hash of one lock."""
        return f"{self.base}lock:{name}"

    def inbox(self, token: str) -> str:
        """Where a waiter finds its grant."""
        return self.shared[5] + token

    @property
    def notice(self) -> str:
        """Prefix of the channels on which processes are told what happened to their leases."""
        return f"{self.base}notice:"

    def flight(self, name: str) -> str:
        """The stream on which the followers of a single flight block."""
        return f"{self.base}flight:{name}"

    def of_name(self, name: str) -> tuple[str, str, str]:
        """The lock, queue and waiters keys of one name."""
        base = self.base
        return f"{base}lock:{name}", f"{base}queue:{name}", f"{base}waiters:{name}"


def shard_of(name: str, shards: int) -> int:
    """Return which shard a name lives in: the same in every process, for ever."""
    if shards == 1:
        return 0
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards
