"""A master of a Cluster dies or hangs: those who wait, hold and listen go on with its replica."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from lockapp.exceptions import EngineUnavailable
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.clusters import Cluster, Node
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.timeout(180)  # servers are killed, frozen and started again

Make = Callable[..., RedisEngine]
NAMES = [f"order:{number}" for number in range(200)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three masters, each with a replica; to be harmed."""
    with Cluster() as made:
        yield made
        for node in made.nodes:
            if node.running:
                node.resume()


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Make]:
    """Makes engines of the Cluster, as processes of their own would have them."""
    made: list[RedisEngine] = []

    def of(**options: Any) -> RedisEngine:
        made.append(RedisEngine(f"e{len(made)}", cluster.url, EngineOptions.parse(options)))
        return made[-1]

    yield of
    for engine in made:
        for port in engine.ports:
            port.watchdog._undo.clear()  # for an hour it would try nodes that nobody brings back
        engine.close()
    # One that is on its tour of the shards tries each dead or frozen node before it ends.
    wait_until(lambda: not watchdogs(), limit_s=30, what="the watchdogs to end")


def watchdogs() -> list[threading.Thread]:
    return [it for it in threading.enumerate() if it.name.startswith("lockapp-watchdog")]


def base(name: str) -> str:
    return ShardKeys.of("lockapp", shard_of(name, CLUSTER_SHARDS)).base


def names_on(cluster: Cluster, node: Node) -> list[str]:
    """Return names of different shards that are on ``node``."""
    found = {base(name): name for name in NAMES if cluster.master_of(base(name)) is node}
    return list(found.values())


def listened_to(cluster: Cluster) -> Node | None:
    """Return the node that carries somebody's notice channel."""
    nodes = [node for node in cluster.masters if node.client.pubsub_channels("lockapp:*")]
    return nodes[0] if nodes else None


def moved(cluster: Cluster, name: str, old: Node) -> float:
    """Wait for a failover; return when a node first named the new master."""
    wait_until(
        lambda: cluster.master_of(base(name)) is not old,
        limit_s=30, every_s=0.01, what="a failover",
    )  # fmt: skip
    return time.monotonic()


def released(lease: Lease) -> bool:
    """Release it, unless the engine can't be asked at this moment."""
    try:
        lease.release()
    except EngineUnavailable:
        return False
    return True


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_waiters_and_holders_go_on_after_a_failover(
    cluster: Cluster, make: Make, harm: str
) -> None:
    """Nobody tells them: a second after the replica has taken over, waiters are there to be woken.

    A holder goes on holding what it held, and is told when it is taken away: the node that dies is
    the one that carried its notice channel. Locks of other nodes are taken and freed meanwhile.
    """
    engine = make()
    elsewhere = Lock(engine, NAMES[0], ttl=60).acquire()
    victim = wait_until(lambda: listened_to(cluster), what="the notice channel")
    kept_name, wanted, *_ = names_on(cluster, victim)
    others = [node for node in cluster.masters if node is not victim]
    kept = Lock(engine, kept_name, ttl=60).acquire()
    first = Lock(engine, wanted, ttl=60).acquire()
    waiters = [Lock(make(), wanted, ttl=5, wait=60) for _ in range(2)]
    taken: list[tuple[float, int]] = []

    def sync_waiter() -> None:
        with waiters[0] as lease:
            taken.append((time.monotonic(), lease.fence))

    async def async_waiter() -> None:
        async with waiters[1] as lease:
            taken.append((time.monotonic(), lease.fence))

    waiting: list[Future[None]] = []
    with ThreadPoolExecutor(2) as pool:
        waiting.append(pool.submit(sync_waiter))
        waiting.append(pool.submit(lambda: asyncio.run(async_waiter())))
        wait_until(lambda: (state := engine.show(wanted)) and state.waiter_count == 2)
        getattr(victim, harm)()
        for node in others:
            Lock(engine, names_on(cluster, node)[-1], wait=scaled(5)).acquire().release()
        moved(cluster, wanted, victim)
        wait_until(lambda: released(first), every_s=0.05, what="the release")
        at = time.monotonic()
        for each in waiting:
            each.result(scaled(20))
    assert max(when for when, _ in taken) - at < scaled(1)
    assert first.fence < min(fence for _, fence in taken)
    assert not kept.lost
    wait_until(lambda: (state := engine.show(kept_name)) and state.holders[0].fence == kept.fence)
    kept.renew()
    # The notice channel has moved, too: long before the next renewal the holder hears of this.
    wait_until(lambda: listened_to(cluster), limit_s=15, what="the channel to be remade")
    make().force_release(kept_name, kept.fence, actor="operator")
    wait_until(lambda: kept.lost, limit_s=4, what="the notice")
    with contextlib.suppress(EngineUnavailable):
        elsewhere.release()


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_leases_of_other_nodes_are_renewed_while_one_node_is_gone(
    cluster: Cluster, make: Make, harm: str
) -> None:
    """One that does not answer must not keep the watchdog from those that do."""
    engine = make(connect_timeout=scaled(0.5), command_timeout=scaled(0.5))
    victim, *others = cluster.masters
    gone = [Lock(engine, name, ttl=60).acquire() for name in names_on(cluster, victim)[:10]]
    for lease in gone:  # due now, and again and again
        lease.noticed = True
    names = [name for node in others for name in names_on(cluster, node)[:5]]
    ttl = scaled(4)
    kept = [Lock(engine, name, ttl=ttl).acquire() for name in names]
    begin = [lease.valid_until for lease in kept]
    getattr(victim, harm)()
    for lease in gone:
        engine.sync.watchdog.notice(lease.name)
    wait_until(
        lambda: all(lease.valid_until > at + ttl for lease, at in zip(kept, begin, strict=True)),
        limit_s=15, what="renewals",
    )  # fmt: skip
    assert not any(lease.lost for lease in kept)
    moved(cluster, gone[0].name, victim)
    for lease in kept + gone:
        wait_until(lambda lease=lease: released(lease), every_s=0.05, what="the release")


def test_who_comes_while_a_node_is_gone_is_told_so_at_once(cluster: Cluster, make: Make) -> None:
    """And once its replica is the master, is served: by those who knew the old one, too."""
    engine = make(connect_timeout=scaled(1), command_timeout=scaled(1))
    victim = cluster.masters[0]
    name = names_on(cluster, victim)[0]
    Lock(engine, name).acquire().release()
    victim.kill()
    with pytest.raises(EngineUnavailable):
        Lock(engine, name, wait=0).acquire()
    moved(cluster, name, victim)

    def served() -> bool:
        with contextlib.suppress(EngineUnavailable):
            Lock(engine, name).acquire().release()
            return True
        return False

    wait_until(served, limit_s=3, what="the new master to be found")
    assert not engine.circuit.is_open
    cluster.heal()
    Lock(make(), name).acquire().release()


def test_all_nodes_gone_is_unavailable(cluster: Cluster, make: Make) -> None:
    """To who knew them, and to who never found them."""
    engine = make(connect_timeout=scaled(1), command_timeout=scaled(1))
    Lock(engine, NAMES[0]).acquire().release()
    for node in cluster.nodes:
        node.kill()
    for known in (engine, make(connect_timeout=scaled(1))):
        with pytest.raises(EngineUnavailable) as told:
            Lock(known, NAMES[0], wait=0).acquire()
        assert told.value.reason in ("connect", "open")  # the watchdog may have been here before
