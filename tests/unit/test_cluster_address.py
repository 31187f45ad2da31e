"""Addresses of a Cluster: read, shown, compared."""

from __future__ import annotations

import pytest

from lockapp.core.options import UnfitLocation
from lockapp.engines.redis.cluster import ClusterAddress
from lockapp.engines.redis.location import address_of


def read(url: str) -> ClusterAddress:
    address = address_of(url)
    assert isinstance(address, ClusterAddress)
    return address


def test_an_address_names_some_nodes() -> None:
    """The login in front is for all of them, and is not shown; a port may be left out."""
    address = read("redis+cluster://app:s%40cret@one:7000,two:7001,three")
    assert str(address) == "one:7000,two:7001,three:6379"
    node = address.node(("two", 7001))
    known = node.settings
    assert (known["host"], known["port"]) == ("two", 7001)
    assert (known["username"], known["password"]) == ("app", "s@cret")
    assert "s@cret" not in f"{address!r}{address}{node!r}{node}"


def test_tls_is_for_all_nodes() -> None:
    """Also for those that are not named yet."""
    node = read("rediss+cluster://one?ssl_ca_certs=/ca.pem").node(("two", 6379))
    assert node.kind == "SSLConnection"
    assert node.settings["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize("url", ["redis+cluster://", "redis+cluster://one:x", "cluster://one"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """When it is read, not when somebody wants a lock."""
    with pytest.raises(ValueError, match=r"."):
        address_of(url)


@pytest.mark.parametrize("url", ["redis+cluster://one/1", "redis+cluster://one?db=2"])
def test_a_numbered_database_is_refused(url: str) -> None:
    """It is likely that somebody relies on it to keep two sites apart."""
    with pytest.raises(UnfitLocation, match="no numbered databases"):
        address_of(url)
    assert str(read("redis+cluster://one/0")) == "one:6379"


def test_one_place_is_one_place_however_it_is_written() -> None:
    """In whatever order the nodes stand. Texts that name other nodes can't be told."""
    place = read("redis+cluster://one,two:7000").place
    assert read("rediss+cluster://:word@two:7000,one:6379").place == place
    assert read("redis+cluster://one,two").place != place
    assert address_of("redis://one:6379/0").place != place
