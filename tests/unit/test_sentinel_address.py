"""Addresses of servers that Sentinels watch over: read, shown, compared."""

from __future__ import annotations

import pytest

from lockapp.engines.redis.address import Address
from lockapp.engines.redis.location import address_of
from lockapp.engines.redis.sentinel import SentinelAddress

URL = "redis+sentinel://app:s%40cret@one:26379,two:26380,three/my%2Dmaster/3"


def test_an_address_names_sentinels_service_and_database() -> None:
    """The login in front is the servers'; a Sentinel's port may be left out."""
    address = address_of(URL)
    assert isinstance(address, SentinelAddress)
    assert str(address) == "one:26379,two:26380,three:26379/my-master/3"
    known = address.settings
    assert (known["username"], known["password"], known["db"]) == ("app", "s@cret", 3)
    assert "host" not in known
    assert all("password" not in each.settings for each in address.sentinels)
    assert "s@cret" not in f"{address!r}{address}"


def test_sentinels_have_a_login_of_their_own() -> None:
    """Said in the query, and not passed on to the servers."""
    address = address_of("sentinel://one/m?sentinel_username=app&sentinel_password=w%26")
    assert isinstance(address, SentinelAddress)
    (sentinel,) = address.sentinels
    assert (sentinel.settings["username"], sentinel.settings["password"]) == ("app", "w&")
    assert "password" not in address.settings
    assert str(address).endswith("/m/0")


def test_tls_is_for_both() -> None:
    """With what vouches for it."""
    address = address_of("rediss+sentinel://one/m/0?ssl_ca_certs=/ca.pem")
    assert isinstance(address, SentinelAddress)
    for each in (address, *address.sentinels):
        assert each.kind == "SSLConnection"
        assert each.settings["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:26379",
        "redis+sentinel://one:26379/",
        "redis+sentinel:///m/0",
        "redis+sentinel://one/m/x",
        "redis+sentinel://one/m/0/1",
        "redis+sentinel://one:x/m/0",
        "sentinels://one/m/0",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """When it is read, not when somebody wants a lock."""
    with pytest.raises(ValueError, match=r"."):
        address_of(url)


def test_one_place_is_one_place_however_it_is_written() -> None:
    """In whatever order its Sentinels stand; another service or database is another."""
    place = address_of("sentinel://one,two/m/0").place
    assert address_of("redis+sentinel://:word@two:26379,one/m").place == place
    assert address_of("sentinel://one,two/n/0").place != place
    assert address_of("sentinel://one,two/m/1").place != place
    assert Address.from_url("redis://one:26379/0").place != place
