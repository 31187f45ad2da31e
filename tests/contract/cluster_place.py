"""Locks in a Cluster."""

from __future__ import annotations

from collections.abc import Iterator

from lockapp.core.options import EngineOptions
from lockapp.core.values import EventRecord
from lockapp.engines.base import Engine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from lockapp.exceptions import EngineUnavailable
from tests.clusters import Cluster, Node
from tests.contract.places import LASTING, Place


class ClusterPlace(Place):
    """A prefix in a Cluster, in all its shards."""

    kind = "cluster"

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.cluster = cluster
        super().__init__(prefix)

    def make_engine(self, alias: str, options: EngineOptions) -> Engine:
        return RedisEngine(alias, self.cluster.url, options)

    def events(self, name: str | None = None) -> list[EventRecord]:
        shards = range(CLUSTER_SHARDS) if name is None else [shard_of(name, CLUSTER_SHARDS)]
        found = [event for shard in shards for event in self.engine.read_events(shard, count=10**5)]
        found.sort(key=lambda event: (event.at_us, event.shard, event.number))
        return [event for event in found if name in (None, event.name)]

    def raw(self, name: str) -> object:
        keys = ShardKeys.of(self.prefix, shard_of(name, CLUSTER_SHARDS))
        lock, queue, waiters = keys.of_name(name)
        client = self.cluster.master_of(lock).client
        return (
            client.hgetall(lock),
            client.pexpiretime(lock),
            client.zrange(queue, 0, -1, withscores=True),
            client.hgetall(waiters),
            client.zscore(keys.held, name),
        )

    def litter(self) -> list[str]:
        try:
            self.engine.sweep()
        except EngineUnavailable as down:
            return [str(down)]
        return sorted(key for _, key in self._keys() if key.rsplit(":", 1)[-1] not in LASTING)

    def lose_fence(self) -> None:
        assert self._delete(":fence")

    def lose_everything(self) -> None:
        self._delete("")

    def break_audit(self) -> None:
        for shard in range(CLUSTER_SHARDS):
            key = ShardKeys.of(self.prefix, shard).events
            self.cluster.master_of(key).client.set(key, "not a stream")

    def mend_audit(self) -> None:
        self._delete(":events")

    def requests(self) -> int:
        return sum(
            value["calls"]
            for node in self.cluster.masters
            for name, value in node.client.info("commandstats").items()
            if name.removeprefix("cmdstat_") in ("evalsha", "eval", "blpop")
        )

    def shard(self, name: str = "order:1") -> int:
        return shard_of(name, CLUSTER_SHARDS)

    def listening(self) -> bool:
        channels = f"{self.prefix}:*"
        return any(node.client.pubsub_channels(channels) for node in self.cluster.masters)

    def following(self) -> int:
        return sum(node.blocked("xread") for node in self.cluster.masters)

    def landings(self) -> list[str]:
        return [key for _, key in self._keys() if ":flight:" in key]

    def _keys(self) -> Iterator[tuple[Node, str]]:
        for node in self.cluster.masters:
            for key in node.client.scan_iter(f"{self.prefix}:*", count=1000):
                yield node, key

    def _delete(self, ending: str) -> int:
        found = [(node, key) for node, key in self._keys() if key.endswith(ending)]
        return sum(node.client.delete(key) for node, key in found)
