"""A Cluster in use: shards on several nodes, and slots that move meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from lockapp.core.options import EngineOptions
from lockapp.engines.redis import cluster as cluster_module
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from lockapp.exceptions import EngineMisconfigured, EngineUnavailable, NotAcquired
from lockapp.lock import Lock
from lockapp.primitives import MultiLock
from tests.clusters import Cluster, Node
from tests.contract.fronts import People
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.timeout(180)  # servers are killed, frozen and started again

Make = Callable[..., RedisEngine]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of this module alone, since slots move in it; nothing fails."""
    with Cluster(timeout_s=60) as made:
        yield made


@pytest.fixture
def make(cluster: Cluster, prefix: str) -> Iterator[Make]:
    """Makes engines of the Cluster, as processes of their own would have them."""
    made: list[RedisEngine] = []

    def of(url: str = "", **options: Any) -> RedisEngine:
        given = {"prefix": prefix, "connect_timeout": 10, "command_timeout": 10, **options}
        engine = RedisEngine(f"e{len(made)}", url or cluster.url, EngineOptions.parse(given))
        made.append(engine)
        return engine

    yield of
    for engine in made:
        engine.close()


@pytest.fixture(params=["sync", "async"])
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    """Contenders of either front."""
    made = People(request.param)
    yield made
    made.close()


def keys_of(engine: RedisEngine, name: str) -> ShardKeys:
    return ShardKeys.of(engine.options.prefix, shard_of(name, CLUSTER_SHARDS))


def slot_of(engine: RedisEngine, name: str) -> int:
    return key_slot(keys_of(engine, name).base.encode())


def names_on(cluster: Cluster, engine: RedisEngine) -> dict[Node, str]:
    """Return a name for each master, whose shard is there."""
    found: dict[Node, str] = {}
    for number in range(200):
        name = f"order:{number}"
        found.setdefault(cluster.master_of(keys_of(engine, name).base), name)
    assert len(found) == 3
    return found


def test_any_node_will_do_to_begin_with(cluster: Cluster, make: Make, people: People) -> None:
    """A replica, too; and one that does not answer is passed over."""
    ann = people("ann")
    for place in (cluster.nodes[5].url, f"redis://127.0.0.1:1,{cluster.nodes[0].url[8:]}"):
        engine = make(place.replace("redis://", "redis+cluster://"))
        for name in names_on(cluster, engine).values():
            ann.release(ann.acquire(Lock(engine, name)))


def test_the_number_of_shards_is_stored(cluster: Cluster, make: Make, prefix: str) -> None:
    """Who counts otherwise would look for a lock elsewhere, and find it free."""
    engine = make()
    Lock(engine, "order:1").acquire().release()
    meta = ShardKeys.of(prefix, 0).meta
    client = cluster.master_of(meta).client
    assert client.hgetall(meta) == {"format": "1", "shards": "64"}
    client.hset(meta, "shards", "32")
    with pytest.raises(EngineMisconfigured, match=r"32 shard\(s\)"):
        Lock(make(), "order:1").acquire()


def test_locks_of_several_nodes_are_listed_in_one_order(make: Make, people: People) -> None:
    """Earliest deadline first, page by page, each lock once."""
    engine, ann = make(), people("ann")
    names = [f"order:{number}" for number in range(40)]
    leases = [ann.acquire(Lock(engine, name, ttl=100 + n)) for n, name in enumerate(names)]
    for size in (7, 13, 40, 100):
        pages = [engine.snapshot(offset, size) for offset in range(0, 40, size)]
        assert [lock.name for page in pages for lock in page.locks] == names
        assert {page.total for page in pages} == {40}
    assert engine.snapshot(40, 7).locks == ()
    for lease in leases:
        ann.release(lease)


def test_a_multilock_over_several_nodes_is_all_or_none(
    cluster: Cluster, make: Make, people: People
) -> None:
    """What was taken before the one that is not to be had is given back."""
    engine = make()
    ann, bob = people("ann", "bob")
    names = [*names_on(cluster, engine).values()]
    last = max(names)
    held = ann.acquire(Lock(engine, last))
    with pytest.raises(NotAcquired):
        bob.acquire(MultiLock(Lock(engine, name, wait=0) for name in names))
    wait_until(lambda: [lock.name for lock in engine.snapshot().locks] == [last])
    waiting = bob.start_acquire(MultiLock(Lock(engine, name, wait=20) for name in names))
    wait_until(lambda: (state := engine.show(last)) and state.waiter_count)
    ann.release(held)
    lease = waiting.result(scaled(20))
    assert sorted(lock.name for lock in engine.snapshot().locks) == sorted(names)
    bob.release(lease)
    assert engine.snapshot().total == 0


def test_leases_that_ran_out_are_reclaimed_on_every_node(
    cluster: Cluster, make: Make, people: People
) -> None:
    """By whoever sweeps."""
    engine, ann = make(), people("ann")
    names = names_on(cluster, engine).values()
    leases = [ann.acquire(Lock(engine, name, ttl=0.2, renew=False)) for name in names]
    wait_until(lambda: all(lease.lost for lease in leases))
    swept = []
    wait_until(lambda: swept.append(make().sweep()) or engine.snapshot().total == 0)
    kinds = [event.kind for n in range(64) for event in engine.read_events(n)]
    assert sorted(kinds) == ["acquired"] * 3 + ["expired"] * 3


def test_a_holder_hears_of_what_happens_on_another_node(cluster: Cluster, make: Make) -> None:
    """A process has one channel, at one node: the others pass on what is told."""
    engine, operator = make(), make()
    leases = [Lock(engine, name, ttl=600).acquire() for name in names_on(cluster, engine).values()]
    channels = f"{engine.options.prefix}:*"
    wait_until(lambda: any(node.client.pubsub_channels(channels) for node in cluster.masters))
    assert sum(len(node.client.pubsub_channels(channels)) for node in cluster.masters) == 1
    for lease in leases:
        operator.force_release(lease.name, lease.fence, actor="operator")
    wait_until(lambda: all(lease.lost for lease in leases), what="the notices")


# ------------------------------------------------------------------ slots that move


def other(cluster: Cluster, node: Node) -> Node:
    return next(each for each in cluster.masters if each is not node)


@pytest.mark.parametrize("how", ["move", "move_whole"])
def test_a_slot_that_has_moved_is_followed(
    cluster: Cluster, make: Make, people: People, how: str
) -> None:
    """By holders and waiters who know nothing of it: held is held, and handed over in order."""
    engine = make()
    ann, bob = people("ann", "bob")
    lease = ann.acquire(Lock(engine, "order:1", ttl=60))
    waiting = bob.start_acquire(Lock(engine, "order:1", wait=30))
    wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count)
    slot = slot_of(engine, "order:1")
    origin = cluster.master_of_slot(slot)
    try:
        getattr(cluster, how)(slot, other(cluster, origin))
    except ResponseError as error:
        ann.release(lease)
        bob.release(waiting.result(scaled(20)))
        pytest.skip(f"this server moves slots key by key only: {error}")
    assert cluster.master_of_slot(slot) is not origin
    ann.renew(lease)
    ann.release(lease)
    handed = waiting.result(scaled(20))
    assert handed.fence > lease.fence
    bob.release(handed)
    wait_until(lambda: engine.snapshot().total == 0)
    known = engine.address.known.topology  # type: ignore[attr-defined]
    assert known.server_of(slot) == ("127.0.0.1", cluster.master_of_slot(slot).port)


def test_while_a_slot_is_half_way_its_locks_wait_and_are_not_lost(
    cluster: Cluster, make: Make, people: People
) -> None:
    """Its keys are on two nodes, so that no step can be done on either; others go on.

    A waiter asks again and again, by ASK where its inbox is missed. Others are told that nobody
    can be asked, if that lasts longer than an answer may take.
    """
    engine = make(command_timeout=scaled(1))
    ann, bob, cid = people("ann", "bob", "cid")
    lease = ann.acquire(Lock(engine, "order:1", ttl=60))
    waiting = bob.start_acquire(Lock(engine, "order:1", wait=60))
    wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count)
    slot = slot_of(engine, "order:1")
    origin = cluster.master_of_slot(slot)
    to = other(cluster, origin)
    cluster.begin_move(slot, to)
    origin.client.migrate(
        "127.0.0.1", to.port, [keys_of(engine, "order:1").lock("order:1")], 0, 5000
    )
    for step in (lambda: ann.renew(lease), lambda: cid.acquire(Lock(engine, "order:1", wait=0))):
        with pytest.raises(EngineUnavailable) as told:
            step()
        assert told.value.reason == "transient"
    elsewhere = names_on(cluster, engine)[next(n for n in cluster.masters if n not in (origin, to))]
    ann.release(ann.acquire(Lock(engine, elsewhere)))
    cluster.move_keys(slot, origin, to)
    cluster.end_move(slot, origin, to)
    ann.renew(lease)
    ann.release(lease)
    bob.release(waiting.result(scaled(20)))
    wait_until(lambda: engine.snapshot().total == 0)


def test_one_key_is_asked_for_where_it_may_be(cluster: Cluster, make: Make, people: People) -> None:
    """ASK: the node that gives a slot away sends on who asks for what it has not."""
    engine, ann = make(), people("ann")
    slot = slot_of(engine, "order:1")
    origin = cluster.master_of_slot(slot)
    to = other(cluster, origin)
    cluster.begin_move(slot, to)
    keys = keys_of(engine, "order:1")
    to.client.connection_pool.reset()
    with to.client.client() as connection:
        connection.execute_command("ASKING")
        connection.rpush(keys.inbox("token"), f"{2**41} 7")
    grant = ann.step(engine, lambda port: port.wait_grant("order:1", "token", 5))
    assert grant.fence == 7
    assert engine.address.known.topology.server_of(slot) == ("127.0.0.1", origin.port)  # type: ignore[attr-defined]
    cluster.move_keys(slot, origin, to)
    cluster.end_move(slot, origin, to)


def test_contenders_go_on_while_slots_move(cluster: Cluster, make: Make) -> None:
    """One section at a time, tokens grow, and nobody fails who waits."""
    engines = [make(ttl=scaled(5)) for _ in range(3)]
    inside, fences, overlaps = threading.Lock(), [], []
    stop = threading.Event()

    def contend(engine: RedisEngine) -> None:
        while not stop.is_set():
            lease = Lock(engine, "order:1", wait=30).acquire()
            if not inside.acquire(blocking=False):
                overlaps.append(lease.fence)
            else:
                fences.append(lease.fence)
                inside.release()
            lease.release()

    threads = [threading.Thread(target=contend, args=(each,)) for each in engines]
    for thread in threads:
        thread.start()
    slot = slot_of(engines[0], "order:1")
    try:
        for _ in range(4):
            seen = len(fences)
            cluster.move(slot, other(cluster, cluster.master_of_slot(slot)))
            wait_until(lambda seen=seen: len(fences) > seen + 5, limit_s=20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert overlaps == []
    assert fences == sorted(set(fences))


def test_who_has_which_slot_is_asked_seldom(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once at first, and once more when it has changed, however many find out."""
    engine = make()
    asked: list[int] = []
    learn = cluster_module.ClusterAddress.learn
    monkeypatch.setattr(
        cluster_module.ClusterAddress,
        "learn",
        lambda *given: asked.append(1) or learn(*given),
    )
    names = [*names_on(cluster, engine).values()]
    for _ in range(3):
        for name in names:
            Lock(engine, name).acquire().release()
    assert len(asked) == 1
    slot = slot_of(engine, names[0])
    cluster.move(slot, other(cluster, cluster.master_of_slot(slot)))
    for _ in range(3):
        for name in names:
            Lock(engine, name).acquire().release()
    assert len(asked) <= 2


def test_a_crowd_asks_once_who_has_which_slot(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that come when a process starts wait for the first answer."""
    asked: list[int] = []
    learn = cluster_module.ClusterAddress.learn

    async def slowly(*given: Any) -> None:
        asked.append(1)
        await asyncio.sleep(0.1)
        await learn(*given)

    monkeypatch.setattr(cluster_module.ClusterAddress, "learn", slowly)
    engine = make()

    async def one(number: int) -> None:
        async with Lock(engine, f"order:{number}"):
            pass

    async def crowd() -> None:
        await asyncio.gather(*(one(number) for number in range(50)))
        await engine.aclose()

    asyncio.run(crowd())
    assert len(asked) == 1
