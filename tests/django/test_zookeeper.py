"""What rests on a real ZooKeeper and ends in the database: its events, and its fences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from kazoo.client import KazooClient

from lockapp import fenced_atomic, lock
from lockapp.audit.sink import EventSink
from lockapp.engines.procedures import Grant
from lockapp.engines.zookeeper import ZooKeeperEngine
from lockapp.exceptions import StaleFence
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.models import Fence, LockEvent, LockHold
from lockapp.querysets import LockEventQuerySet
from tests.timing import scaled, wait_until
from tests.zookeeper_servers import ZooKeeperServer

pytestmark = [pytest.mark.needs("java"), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def engine(
    settings: Any, zookeeper_server: ZooKeeperServer, prefix: str
) -> Iterator[ZooKeeperEngine]:
    """The default engine, on the shared server."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.zookeeper.ZooKeeperEngine",
            "LOCATION": zookeeper_server.url,
            "OPTIONS": {
                "prefix": prefix,
                "tombstone": 0.2,
                "connect_timeout": 10,
                "command_timeout": 10,
            },
        }
    }
    used = locks["default"]
    assert isinstance(used, ZooKeeperEngine)
    yield used
    locks.close_all()
    wait_until(lambda: used.session._thread is None, limit_s=10, what="the session to end")


def end_session(engine: ZooKeeperEngine) -> None:
    """Have the server end it: another client closes it."""
    other = KazooClient(engine.address.hosts, client_id=engine.session.client.client_id)
    other.start(scaled(10))
    other.stop()
    other.close()


def test_events_become_rows_and_holds(engine: ZooKeeperEngine) -> None:
    """By the sink's thread: a release, a lease that an operator takes away, one lost for ever."""
    with EventSink(interval=0.01) as sink:
        lock("order", 1).acquire().release()
        taken = lock("order", 2).acquire()
        engine.force_release("order:2", taken.fence, actor="ann", reason="stuck")
        wait_until(lambda: taken.lost, what="the holder to hear of it")
        lost = lock("order", 3).acquire()
        end_session(engine)
        wait_until(lambda: lost.lost, what="the loss of the session")
        assert sink.stop()
    ends = dict(LockHold.objects.values_list("name", "ended"))
    assert ends == {"order:1": "released", "order:2": "forced", "order:3": "expired"}
    fences = dict(LockHold.objects.values_list("name", "fence"))
    assert [fences["order:2"], fences["order:3"]] == [taken.fence, lost.fence]
    forced = LockEvent.objects.get(kind="forced")
    assert (forced.actor, forced.reason) == ("ann", "stuck")
    events = LockEvent.objects.all()
    assert isinstance(events, LockEventQuerySet)
    assert not events.gaps().exists()
    assert engine.read_events() == []


def test_a_holder_that_slept_through_its_end_does_not_commit(engine: ZooKeeperEngine) -> None:
    """The number of the transaction that made its node is smaller than the next one's."""
    first = lock("order", 1).acquire()
    with fenced_atomic(first):
        Group.objects.create(name="first")
    engine.force_release("order:1", first.fence, actor="ann")
    wait_until(lambda: first.lost, what="the holder to hear of it")
    second = lock("order", 1, wait=5).acquire()
    assert second.fence > first.fence
    with fenced_atomic(second):
        Group.objects.create(name="second")
    assert Fence.objects.get().fence == second.fence
    believed = Grant(first.fence, engine.now() + 60, True, False, 0.0)
    sleeper = Lease(engine, first.spec, "t", believed, object(), renew=False, scoped=True)
    with pytest.raises(StaleFence), fenced_atomic(sleeper):
        Group.objects.create(name="stale")
    assert set(Group.objects.values_list("name", flat=True)) == {"first", "second"}
    second.release()
