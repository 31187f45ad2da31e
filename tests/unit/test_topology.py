"""Who has which slot: what CLUSTER SLOTS says, and what redirections add."""

from __future__ import annotations

import pytest
from redis import exceptions as redis_errors
from redis.crc import key_slot

from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from lockapp.engines.redis.topology import (
    SLOTS,
    Redirection,
    Topology,
    half_way,
    read_slots,
    redirection,
)

A, B, C = ("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000)
REPLY = [
    [8192, 16383, [b"10.0.0.2", 7000, b"id-b", []]],
    [0, 8191, [b"10.0.0.1", 7000, b"id-a", []], [b"10.0.0.3", 7000, b"id-c"]],
]


def test_each_slot_has_a_master() -> None:
    """Replicas are known, and have none."""
    topology = read_slots(REPLY, A)
    assert [topology.server_of(slot) for slot in (0, 8191, 8192, 16383)] == [A, A, B, B]
    assert topology.masters == (A, B)
    assert topology.replicas == (C,)


def test_slots_that_nobody_has() -> None:
    """A request for one of them must not go anywhere."""
    topology = read_slots(REPLY[:1], B)
    assert topology.server_of(8191) is None
    assert Topology().server_of(0) is None
    assert Topology().masters == ()


def test_a_server_without_a_name_is_the_one_that_was_asked() -> None:
    """One whose name is unknown is as good as none."""
    reply = [[0, 1, [None, 7001, b"x"]], [2, 3, [b"", 7002, b"y"]], [4, 5, [b"?", 7003, b"z"]]]
    topology = read_slots(reply, ("proxy", 7000))
    assert topology.masters == (("proxy", 7001), ("proxy", 7002))
    assert topology.server_of(4) is None


def test_a_slot_that_has_moved() -> None:
    """Is looked for where the redirection said, and is no other slot's affair."""
    before = read_slots(REPLY, A)
    after = before.with_moved(100, C)
    assert (after.server_of(100), after.server_of(101)) == (C, A)
    assert after.masters == (A, B, C)
    assert before.server_of(100) == A


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis_errors.ResponseError("MOVED 3999 10.0.0.3:7000"), Redirection(C, False)),
        (redis_errors.ResponseError("ASK 3999 10.0.0.3:7000"), Redirection(C, True)),
        (redis_errors.MovedError("3999 10.0.0.3:7000"), Redirection(C, False)),
        (redis_errors.AskError("3999 10.0.0.3:7000"), Redirection(C, True)),
        (redis_errors.ResponseError("MOVED 1 :7001"), Redirection(("10.0.0.1", 7001), False)),
        (redis_errors.MovedError("1 :7001"), Redirection(("10.0.0.1", 7001), False)),
        (redis_errors.ResponseError("MOVED 1 ::1:7001"), Redirection(("::1", 7001), False)),
        (redis_errors.ResponseError("TRYAGAIN Multiple keys request"), None),
        (redis_errors.ResponseError("ERR MOVED 1 a:1"), None),
        (TimeoutError("MOVED 1 a:1"), None),
        (None, None),
    ],
)
def test_redirections(error: object, expected: Redirection | None) -> None:
    """As a wire leaves them, and as redis-py's own connections raise them."""
    assert redirection(error, A) == expected


def test_a_slot_that_is_being_moved() -> None:
    """Told by both kinds of connection."""
    assert half_way(redis_errors.ResponseError("TRYAGAIN Multiple keys request during rehashing"))
    assert half_way(redis_errors.TryAgainError("Multiple keys request during rehashing"))
    assert not half_way(redis_errors.ResponseError("CLUSTERDOWN Hash slot not served"))
    assert not half_way(None)


@pytest.mark.parametrize("name", ["order:1", "a{b}c", "{}", "}{", "{0}", "{{x}}:{y", "é{1}"])
@pytest.mark.parametrize("prefix", ["lockapp", "site/a:b-c_d.e"])
def test_all_keys_of_a_name_are_in_the_slot_of_its_shard(name: str, prefix: str) -> None:
    """Whatever braces are in it: the tag comes first, and a prefix has none."""
    keys = ShardKeys.of(prefix, shard_of(name, CLUSTER_SHARDS))
    every = [*keys.shared, *keys.of_name(name), keys.inbox("t"), keys.flight(name), keys.meta]
    assert len({key_slot(key.encode()) for key in (keys.base, *every)}) == 1


def test_shards_are_spread_over_the_slots() -> None:
    """So that of three masters with a third of the slots each none has nearly all shards."""
    bases = [ShardKeys.of("lockapp", shard).base for shard in range(CLUSTER_SHARDS)]
    slots = [key_slot(base.encode()) for base in bases]
    assert len(set(slots)) == CLUSTER_SHARDS
    thirds = [sum(slot * 3 // SLOTS == third for slot in slots) for third in range(3)]
    assert min(thirds) >= CLUSTER_SHARDS // 4


def test_names_are_spread_over_the_shards() -> None:
    """And a name has the same shard for ever."""
    found = [shard_of(f"order:{number}", CLUSTER_SHARDS) for number in range(10_000)]
    assert set(found) == set(range(CLUSTER_SHARDS))
    assert max(found.count(shard) for shard in range(CLUSTER_SHARDS)) < 250
    assert shard_of("order:1", CLUSTER_SHARDS) == found[1]
