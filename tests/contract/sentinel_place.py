"""Locks behind a Sentinel."""

from __future__ import annotations

from typing import Any

from lockapp.engines.base import Engine
from tests.contract.places import RedisPlace
from tests.sentinels import Watched


class SentinelPlace(RedisPlace):
    """A prefix on a server that a Sentinel watches over; a lease counts when its replica has it."""

    kind = "sentinel"

    def __init__(self, watched: Watched, prefix: str) -> None:
        super().__init__(watched.servers[0], prefix, watched.url)

    def another_engine(self, **options: Any) -> Engine:
        return super().another_engine(**{"min_replicas_acked": 1, **options})
