"""Masters of a Cluster are killed and frozen while processes contend, wait and renew."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockapp.engines.redis.keys import CLUSTER_SHARDS, ShardKeys, shard_of
from tests.clusters import Cluster, Node
from tests.soak.failovers import assert_only_what_may_be, contend
from tests.soak.worker import NAMES


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acks", [0, 1])
def test_masters_of_a_cluster_die_and_freeze_while_processes_contend(
    tmp_path: Path, acks: int
) -> None:
    """Without acknowledgements some overlaps are to be expected; with them there is none."""
    with Cluster() as cluster:

        def master(number: int) -> Node:
            shard = shard_of(NAMES[number % len(NAMES)], CLUSTER_SHARDS)
            return cluster.master_of(ShardKeys.of("soak", shard).base)

        stays = contend(cluster, master, tmp_path, acks)
    assert_only_what_may_be(stays, acks)
