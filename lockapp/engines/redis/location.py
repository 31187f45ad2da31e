"""Reads where locks are kept: on one server, on one that Sentinels watch over, or in a Cluster."""

from __future__ import annotations

from typing import Any

from lockapp.engines.redis import cluster, sentinel
from lockapp.engines.redis.address import Address


def address_of(url: str) -> Address:
    """Read any address that locks can be kept at.

    Raises:
        ValueError: it is none.
    """
    scheme = url.partition("://")[0]
    if scheme in sentinel.SCHEMES:
        return sentinel.SentinelAddress.from_url(url)
    if scheme in cluster.SCHEMES:
        return cluster.ClusterAddress.from_url(url)
    return Address.from_url(url)


def address_of_pool(pool: Any) -> Address:
    """Take the address of a redis-py pool, and nothing else of it.

    Raises:
        ValueError: its connections are of a kind that no lock engine can use.
    """
    watched = hasattr(pool, "sentinel_manager")
    return sentinel.SentinelAddress.from_pool(pool) if watched else Address.from_pool(pool)
