"""Fixtures of the contract: the place (engine), the people (front)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockapp import watchdog, watchdog_thread
from lockapp.engines.base import Engine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.zookeeper import errands
from tests.clusters import Cluster
from tests.contract.cluster_place import ClusterPlace
from tests.contract.fronts import People
from tests.contract.journal import Journal
from tests.contract.places import (
    MemoryPlace,
    Place,
    RedisPlace,
    assert_no_litter,
)
from tests.contract.redlock_place import Masters, RedlockPlace
from tests.contract.sentinel_place import SentinelPlace
from tests.contract.zookeeper_place import ZooKeeperPlace
from tests.proxy import TcpProxy
from tests.sentinels import Watched
from tests.servers import RedisServer
from tests.timing import scaled

Far = Callable[..., RedisEngine]
MakePlace = Callable[[Callable[[str], Any], str], Place]


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an idle watchdog end soon, so that its thread is seen to end."""
    monkeypatch.setattr(watchdog, "LINGER_S", 0.03)
    monkeypatch.setattr(errands, "LINGER_S", 0.5)


LACKS = {
    "zookeeper": {
        "claims": "a waiter whose session lives is not passed over",
        "fences_of_time": "a fence is the number of ZooKeeper's transaction",
        "flights": "supports_flights is False: a single flight is refused",
        "own_log": "its events are kept in the log that the memory engine keeps, tested there",
        "long_lives": "a ttl above three quarters of the session's timeout is refused",
    },
    "redlock": {
        "claims": "nobody queues, so nothing is handed over",
        "queue": "who waits asks again after a random pause, and whoever comes first gets it",
        "same_fence": "asked again, a token goes through both phases again and gets a larger fence",
        "sharing": "shares of a limit can't be counted by majorities: refused at declaration",
        "flights": "supports_flights is False: a single flight is refused",
        "own_log": "its events are kept in the log that the memory engine keeps, tested there",
    },
}
"""What an engine does not offer, by the word of a test's mark `offers`."""


@pytest.fixture(scope="session")
def watched() -> Iterator[Watched]:
    """A master with a replica and a Sentinel that sees no failure."""
    with Watched(replicas=1, sentinels=1, down_after_s=60) as service:
        yield service


@pytest.fixture(scope="session")
def masters() -> Iterator[Masters]:
    """Three masters that share nothing."""
    with Masters() as servers:
        yield servers


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters with a replica each, that see no failure."""
    with Cluster(timeout_s=60) as made:
        yield made


PLACES: dict[str, MakePlace] = {
    "redis": lambda get, prefix: RedisPlace(get("redis_server"), prefix),
    "memory": lambda get, prefix: MemoryPlace(prefix),
    "sentinel": lambda get, prefix: SentinelPlace(get("watched"), prefix),
    "redlock": lambda get, prefix: RedlockPlace(get("masters"), prefix),
    "cluster": lambda get, prefix: ClusterPlace(get("cluster"), prefix),
    "zookeeper": lambda get, prefix: ZooKeeperPlace(get("zookeeper_server"), prefix),
}
"""Every kind of lock server there is, made from the fixtures that it needs."""

CHOSEN = os.environ.get("LOCKAPP_TEST_PLACES", "")
"""Kinds of lock server that every test of the contract runs on, separated by commas."""
USUAL = ("redis", "memory")
"""Where everything runs unless others are chosen."""
SELDOM = ("sentinel",)
"""Where only the promises of `EVERYWHERE` run then. CI has a stage for all, but on Redlock."""
EVERYWHERE = frozenset(
    f"test_{promise}"
    for promise in ("exclusion", "tokens", "loss", "renewal", "waiting", "fencing")
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each promise shown at every place that makes it."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "place" not in metafunc.fixturenames or "place" in given:
        return
    module = metafunc.module.__name__.rpartition(".")[2]
    places = CHOSEN.split(",") if CHOSEN else [*USUAL, *(SELDOM if module in EVERYWHERE else ())]
    metafunc.parametrize("place", places, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, prefix: str) -> Iterator[Place]:
    """A lock server of every kind; at the end nothing may be left on it."""
    for mark in request.node.iter_markers("offers"):
        if lacking := LACKS.get(request.param, {}).get(mark.args[0]):
            pytest.skip(f"{request.param}: {lacking}")
    yield from _used(request, PLACES[request.param](request.getfixturevalue, prefix))


@pytest.fixture
def redis_place(
    request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str
) -> Iterator[RedisPlace]:
    """The shared Redis server, for what only a server of its own process can show."""
    yield from _used(request, RedisPlace(redis_server, prefix))


@pytest.fixture
def memory_place(request: pytest.FixtureRequest, prefix: str) -> Iterator[MemoryPlace]:
    """A server in this process."""
    yield from _used(request, MemoryPlace(prefix))


FAR_TIMEOUTS = {"connect_timeout": scaled(1), "command_timeout": scaled(1)}
"""Waited for at each fault without a word, and so short; but longer than a busy machine gives a
test no turn, which would be a fault that nobody has put there."""


@pytest.fixture
def far_place(
    request: pytest.FixtureRequest, redis_server: RedisServer, proxy: TcpProxy, prefix: str
) -> Iterator[RedisPlace]:
    """The shared Redis server behind a network that can fail (`proxy`)."""
    made = RedisPlace(redis_server, prefix, proxy.url)
    made.engine = made.another_engine(**FAR_TIMEOUTS)
    for used in _used(request, made):
        yield used
        proxy.heal()


@pytest.fixture
def far(proxy: TcpProxy, redis_place: RedisPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    """Makes engines behind a network that can fail, with short timeouts."""
    monkeypatch.setattr(watchdog_thread, "REPORT_AGAIN_S", 0.05)
    place = RedisPlace(redis_place.server, redis_place.prefix, proxy.url)

    def make(**options: Any) -> RedisEngine:
        made = place.another_engine(**{**FAR_TIMEOUTS, **options})
        assert isinstance(made, RedisEngine)
        return made

    yield make
    proxy.heal()
    place.close()


def _used(request: pytest.FixtureRequest, place: Place) -> Iterator:
    yield place
    if not request.node.get_closest_marker("keeps_keys"):
        assert_no_litter(place)
    place.close()


@pytest.fixture
def engine(place: Place) -> Engine:
    """The place's first engine."""
    return place.engine


@pytest.fixture(params=["sync", "async"])
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    """Contenders of either front: `ann, bob = people("ann", "bob")`."""
    made = People(request.param)
    yield made
    made.close()


@pytest.fixture
def journal() -> Journal:
    """An empty journal."""
    return Journal()
