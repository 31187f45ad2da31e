"""What only a real ZooKeeper shows: sessions that break or end, servers that die, identities."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from lockapp.core.options import EngineOptions
from lockapp.engines.zookeeper import ZooKeeperEngine, errands
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.contract.places import assert_no_litter
from tests.contract.zookeeper_place import ZooKeeperPlace
from tests.proxy import Fault, TcpProxy
from tests.timing import await_until, scaled, stopwatch, wait_until
from tests.zookeeper_servers import ZooKeeperServer

pytestmark = pytest.mark.needs("java")

Make = Callable[..., ZooKeeperEngine]


@pytest.fixture(autouse=True)
def short_session_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an idle session end soon, so that its threads are seen to end."""
    monkeypatch.setattr(errands, "LINGER_S", 0.2)


@pytest.fixture
def near(zookeeper_server: ZooKeeperServer, prefix: str) -> Iterator[ZooKeeperPlace]:
    """The shared server; at the end nothing may be left on it."""
    place = ZooKeeperPlace(zookeeper_server, prefix)
    yield place
    assert_no_litter(place)
    place.close()


@pytest.fixture
def network(zookeeper_server: ZooKeeperServer) -> Iterator[TcpProxy]:
    """A network to it that can fail."""
    with TcpProxy(zookeeper_server.port) as between:
        yield between


@pytest.fixture
def make(near: ZooKeeperPlace) -> Iterator[Make]:
    """Makes engines of the same locks, with numbers of their own."""
    made: list[ZooKeeperEngine] = []

    def engine(url: str = near.url, **options: Any) -> ZooKeeperEngine:
        given = {"prefix": near.prefix, "tombstone": 0.2, "connect_timeout": scaled(1), **options}
        made.append(ZooKeeperEngine(f"made{len(made)}", url, EngineOptions.parse(given)))
        return made[-1]

    yield engine
    for one in made:
        one.close()
    wait_until(lambda: all(one.session._thread is None for one in made), limit_s=scaled(8))


def through(network: TcpProxy) -> str:
    return network.url.replace("redis://", "zk://").rpartition("/")[0]


def end_session(engine: ZooKeeperEngine, near: ZooKeeperPlace) -> None:
    """Have the server end the engine's session: another client closes it."""
    other = KazooClient(near.url.removeprefix("zk://"), client_id=engine.session.client.client_id)
    other.start(scaled(10))
    other.stop()
    other.close()


def test_a_lease_whose_session_has_ended_is_lost_and_touches_nobody_elses(
    near: ZooKeeperPlace, make: Make
) -> None:
    """Known at once, told once; releasing it leaves the next holder alone."""
    engine = make()
    told: list[Lease] = []
    lease = Lock(engine, "order:1", ttl=20, on_lost=told.append).acquire()
    end_session(engine, near)
    taken = Lock(near.engine, "order:1", wait=scaled(5)).acquire()
    assert taken.fence > lease.fence
    wait_until(lambda: told == [lease], what="the loss to be told")
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert near.engine.show("order:1").holders[0].fence == taken.fence  # type: ignore[union-attr]
    taken.release()


def test_a_waiter_whose_session_has_ended_queues_again(near: ZooKeeperPlace, make: Make) -> None:
    """By itself, and gets the lock."""
    engine = make()
    held = Lock(near.engine, "order:1").acquire()
    got: list[Lease] = []
    waiting = threading.Thread(
        target=lambda: got.append(Lock(engine, "order:1", wait=scaled(20)).acquire())
    )
    waiting.start()
    wait_until(lambda: near.engine.show("order:1").waiter_count == 1)  # type: ignore[union-attr]
    end_session(engine, near)
    held.release()
    waiting.join()
    assert got[0].live
    got[0].release()


def test_nobody_vouches_for_a_lease_while_the_connection_is_broken(
    network: TcpProxy, make: Make, near: ZooKeeperPlace
) -> None:
    """SUSPENDED: check() refuses, and the lease is not lost; the same one again afterwards."""
    engine = make(through(network))
    lease = Lock(engine, "order:1", ttl=20).acquire()
    lease.check()
    network.refuse()
    wait_until(lambda: engine.doubt, what="the broken connection to be noticed")
    with pytest.raises(EngineUnavailable, match="suspended"):
        lease.check()
    assert not lease.lost
    network.heal()
    wait_until(lambda: not engine.doubt, what="the connection to be back")
    lease.check()
    lease.renew()
    assert near.engine.show("order:1").holders[0].fence == lease.fence  # type: ignore[union-attr]
    lease.release()


def test_a_holder_that_is_cut_off_knows_its_loss_before_another_is_granted(
    network: TcpProxy, make: Make, near: ZooKeeperPlace
) -> None:
    """By its own clock: the session ends later than the lease."""
    engine = make(through(network), session_timeout=1.2, ttl=0.9)
    lease = Lock(engine, "order:1").acquire()
    network.refuse()
    taken = Lock(near.engine, "order:1", wait=scaled(10)).acquire()
    assert lease.lost
    assert taken.fence > lease.fence
    network.heal()
    taken.release()


def test_down_is_not_busy_and_known_soon(network: TcpProxy, make: Make) -> None:
    """Within the connect timeout, and after that at once."""
    engine = make(through(network), connect_timeout=0.3)
    network.refuse()
    with stopwatch() as watch, pytest.raises(EngineUnavailable) as down:
        Lock(engine, "order:1", wait=30).acquire()
    assert down.value.reason == "connect"
    assert watch.seconds < scaled(2)
    with pytest.raises(EngineUnavailable) as down:
        Lock(engine, "order:1", wait=0).acquire()
    assert down.value.reason == "open"
    network.heal()


@pytest.mark.parametrize("wait", [0, 5])
def test_a_node_whose_making_was_not_answered_is_found_again(
    network: TcpProxy, make: Make, near: ZooKeeperPlace, wait: float
) -> None:
    """One node for one token, however often it is asked for; it holds."""
    engine = make(through(network))
    Lock(engine, "warm:up").acquire().release()
    network.inject(Fault.CUT_ON_REPLY, once=True)
    lease = Lock(engine, "order:1", wait=wait).acquire()
    state = near.engine.show("order:1")
    assert state is not None
    assert (len(state.holders), state.waiter_count) == (1, 0)
    assert state.holders[0].fence == lease.fence
    lease.release()


def test_who_gave_up_while_cut_off_does_not_stand_in_the_queue(
    network: TcpProxy, make: Make, near: ZooKeeperPlace
) -> None:
    """Its node goes as soon as the connection is back."""
    engine = make(through(network), connect_timeout=0.3, command_timeout=0.5)
    Lock(engine, "warm:up").acquire().release()
    held = Lock(near.engine, "order:1").acquire()
    network.inject(Fault.DROP_REPLIES)
    with pytest.raises((EngineUnavailable, NotAcquired)):
        Lock(engine, "order:1").acquire(wait=0)
    network.cut()
    network.heal()
    held.release()
    Lock(near.engine, "order:1", wait=scaled(5)).acquire().release()
    wait_until(lambda: near.litter() == [], what="the node to go")


def test_a_dead_process_keeps_its_locks_for_the_session_timeout_and_no_longer(
    make: Make, near: ZooKeeperPlace
) -> None:
    """The child is gone without a word."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        Lock(make(session_timeout=0.8, ttl=0.5), "order:1").acquire()
        os.write(writer, b".")
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    os.waitpid(pid, 0)
    Lock(near.engine, "order:1", wait=scaled(5)).acquire().release()


def test_who_took_a_lease_away_is_told_and_leaves_nothing_even_if_it_dies(
    make: Make, near: ZooKeeperPlace
) -> None:
    """As the process of a command does: it ends as soon as it has the answer."""
    lease = near.lock("order:1").acquire()
    pid = os.fork()
    if pid == 0:
        operator = make(session_timeout=0.8, ttl=0.5, tombstone=60)
        operator.force_release("order:1", lease.fence, actor="ann", reason="stuck")
        os._exit(0)
    os.waitpid(pid, 0)
    wait_until(lambda: lease.lost, what="the holder to hear of it")
    assert lease.lost_reason == "forced"
    with pytest.raises(LeaseLost, match="ann"):
        lease.check()
    wait_until(lambda: near.litter() == [], limit_s=10, what="the word for the holder to go")


async def test_tasks_that_hold_or_wait_need_no_threads(near: ZooKeeperPlace, make: Make) -> None:
    """Fifty of each in one loop: the session's threads are all there are."""
    engine, lock = make(), f"/{near.prefix}/locks/order:1"
    first = await Lock(engine, "order:1").aacquire()
    threads = threading.active_count()
    held = [await Lock(engine, f"held:{number}").aacquire() for number in range(50)]
    fences = [first.fence]

    async def wait_for_it() -> None:
        async with Lock(engine, "order:1", wait=scaled(30)) as lease:
            fences.append(lease.fence)

    waiting = [asyncio.create_task(wait_for_it()) for _ in range(50)]
    await await_until(lambda: len(near.client.get_children(lock)) == 51, limit_s=10)
    assert threading.active_count() <= threads
    for lease in (first, *held):
        await lease.arelease()
    await asyncio.gather(*waiting)
    assert fences == sorted(set(fences))
    await engine.aclose()


def test_an_empty_lock_that_a_dead_session_left_is_swept(near: ZooKeeperPlace) -> None:
    """Nobody sees it, and it goes when somebody looks."""
    with near.lock("order:2"):
        pass
    near.client.ensure_path(f"/{near.prefix}/locks/order:1")
    assert near.engine.show("order:1") is None
    assert near.engine.sweep() == 1
    assert near.litter() == []


def test_a_chroot_keeps_two_sites_apart(near: ZooKeeperPlace, make: Make) -> None:
    """The same prefix and name below different roots; one that is not there is refused."""
    near.client.ensure_path(f"/{near.prefix}-a")
    root = make(f"{near.url}/{near.prefix}-a")
    with Lock(root, "order:1"), near.lock("order:1"):
        assert near.client.exists(f"/{near.prefix}-a/{near.prefix}/locks/order:1")
    with pytest.raises(EngineUnavailable, match="chroot"):
        Lock(make(f"{near.url}/{near.prefix}-none"), "order:1").acquire()
    root.close()
    wait_until(lambda: root.session._thread is None, what="the session to end")
    near.client.delete(f"/{near.prefix}-a", recursive=True)


def test_nodes_of_a_digest_user_are_that_users_alone(
    near: ZooKeeperPlace, make: Make, prefix: str
) -> None:
    """Others neither read nor write them; the user does, and its locks work."""
    url = near.url.replace("zk://", "zk://ann:s%40cret@")
    own = make(url, prefix=f"{prefix}own")
    with Lock(own, "order:1") as lease:
        with pytest.raises(NoAuthError):
            near.client.get_children(f"/{prefix}own/locks")
        with pytest.raises(EngineUnavailable) as refusal:
            Lock(make(prefix=f"{prefix}own"), "order:1").acquire()
        assert refusal.value.reason == "refused"
        assert "s@cret" not in repr(own) + str(refusal.value)
        assert make(url, prefix=f"{prefix}own").show("order:1").holders[0].fence == lease.fence  # type: ignore[union-attr]


def test_a_server_that_keeps_sessions_for_less_time_is_refused(make: Make) -> None:
    """Or a holder would believe for longer than its node exists."""
    with pytest.raises(EngineUnavailable, match="maxSessionTimeout"):
        Lock(make(session_timeout=5000), "order:1").acquire()


def test_a_ttl_that_a_session_cannot_keep_is_refused_where_it_is_declared(make: Make) -> None:
    """Of a lock and of the settings; the words say what to change."""
    engine = make(session_timeout=4, ttl=3)
    with pytest.raises(ValueError, match="session_timeout"):
        Lock(engine, "order:1", ttl=3.1)
    with pytest.raises(ValueError, match="session_timeout"):
        make(session_timeout=4, ttl=5)


@pytest.mark.parametrize(
    "url", ["redis://h:1", "zk://", "zk://h:x", "zk://user@h:1", "zk://h:1?x=1", "zk://h h"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Where the engine is declared."""
    with pytest.raises(ValueError, match="ZooKeeper"):
        ZooKeeperEngine("none", url, EngineOptions())
