"""A Cluster as a site's lock server: examined, collected and verified on all nodes."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from lockapp.audit.collector import collect
from lockapp.checks import check_deployed
from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.models import EventCursor, LockEvent, LockHold
from tests.clusters import Cluster
from tests.timing import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """Of this module alone; its slots move."""
    with Cluster(timeout_s=60) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: Cluster, settings: Any, prefix: str) -> Iterator[Cluster]:
    """What keeps this site's locks."""
    options = {"prefix": prefix, "ttl": 300, "connect_timeout": 10, "command_timeout": 10}
    settings.LOCKAPP = {"default": {"LOCATION": shared_cluster.url, "OPTIONS": options}}
    yield shared_cluster
    locks.close_all()
    for node in shared_cluster.masters:
        node.config(maxmemory_policy="noeviction")


def said_by(*arguments: str) -> Any:
    out = io.StringIO()
    with contextlib.suppress(CommandError):  # by its exit code it says that it found something
        call_command("lockapp", *arguments, "--json", stdout=out, stderr=out)
    return json.loads(out.getvalue())


def use_locks(count: int) -> None:
    for number in range(count):
        Lock(locks["default"], f"order:{number}").acquire().release()


def test_doctor_visits_every_master(cluster: Cluster) -> None:
    """What is true of all is told once, and what is wrong with one names it."""
    assert [each["kind"] for each in said_by("doctor")["findings"]] == ["forgets"]
    one = cluster.masters[1]
    one.config(maxmemory_policy="allkeys-lru")
    findings = {each["kind"]: each["text"] for each in said_by("doctor")["findings"]}
    assert list(findings) == ["eviction", "forgets"]
    assert f"127.0.0.1:{one.port}" in findings["eviction"]
    assert f"127.0.0.1:{cluster.masters[0].port}" not in findings["eviction"]


def test_doctor_counts_what_nobody_reclaims_in_all_shards(cluster: Cluster, prefix: str) -> None:
    """Each master is asked for its own shards."""
    for number in range(3):
        key = ShardKeys.of(prefix, number).held
        cluster.master_of(key).client.zadd(key, {"order:1": 1})
    findings = {each["kind"]: each["text"] for each in said_by("doctor")["findings"]}
    masters = {cluster.master_of(ShardKeys.of(prefix, number).held).port for number in range(3)}
    assert all(str(port) in findings["unswept"] for port in masters)
    locks["default"].sweep()
    assert "unswept" not in [each["kind"] for each in said_by("doctor")["findings"]]


def test_the_check_before_deployment_asks_every_master(cluster: Cluster) -> None:
    """One that may evict locks is enough."""
    assert check_deployed() == []
    cluster.masters[2].config(maxmemory_policy="allkeys-lru")
    (message,) = check_deployed()
    assert message.id == "lockapp.W006"
    assert str(cluster.masters[2].port) in message.msg


def test_a_server_that_is_no_node_is_told(settings: Any, redis_url: str) -> None:
    """The address is one of a Cluster, and the server stands alone."""
    settings.LOCKAPP = {"default": {"LOCATION": redis_url.replace("redis:", "redis+cluster:")[:-2]}}
    (finding,) = said_by("doctor")["findings"]
    assert finding["kind"] == "unreachable"
    assert "is no node of a Cluster" in finding["text"]


def test_events_of_all_shards_are_collected_and_make_one_history(cluster: Cluster) -> None:
    """Each shard has a cursor; verify walks all of them. Twice is once."""
    use_locks(100)
    engine = locks["default"]
    used = {shard_of(f"order:{number}", CLUSTER_SHARDS) for number in range(100)}
    assert len(used) > 30
    assert collect(engine).stored == 200
    assert collect(engine).stored == 0
    assert LockEvent.objects.count() == 200
    assert LockHold.objects.count() == 100
    assert EventCursor.objects.count() == CLUSTER_SHARDS
    assert said_by("verify")["faults"] == []


def test_a_shard_that_moves_takes_its_stream_along(cluster: Cluster, prefix: str) -> None:
    """The collector goes on where it was, on another server; nothing twice, nothing missed."""
    use_locks(1)
    engine = locks["default"]
    collect(engine)
    base = ShardKeys.of(prefix, shard_of("order:0", CLUSTER_SHARDS)).base
    origin = cluster.master_of(base)
    slot = int(origin.ask("KEYSLOT", base))
    cluster.move(slot, next(each for each in cluster.masters if each is not origin))
    use_locks(1)
    wait_until(lambda: collect(engine).stored == 0)
    ours = LockEvent.objects.filter(name="order:0").exclude(kind="gap")
    assert [event.kind for event in ours.order_by("pk")] == ["acquired", "released"] * 2
