"""Cables are pulled while processes on several hosts contend; the history is judged.

In network namespaces, where they can be made: unlike a proxy, a cut network answers nothing, breaks
no connection, and does so to one direction alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.engine import RedisEngine
from tests.history import Stay, judge, read_log
from tests.networks import Network, Node, NodeServer, why_no_networks
from tests.proxy import TcpProxy
from tests.servers import RedisServer
from tests.soak.worker import OPTIONS, command
from tests.timing import scaled, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
HOSTS, EACH = 2, 2
"""Hosts with lockers, and how many processes on each."""
LIFE_S = OPTIONS["ttl"]
TIMEOUTS = {"connect_timeout": scaled(1), "command_timeout": scaled(1)}


class Lockers:
    """The contending processes, some on each host."""

    def __init__(self, location: str, directory: Path, hosts: list[Node | None]) -> None:
        self.directory = directory
        self._stop = directory / "stop"
        self._running = [
            subprocess.Popen(self._on(host, location, directory / f"{at}-{number}.log"), cwd=ROOT)
            for at, host in enumerate(hosts)
            for number in range(EACH)
        ]

    def _on(self, host: Node | None, location: str, log: Path) -> list[str]:
        start = command(location, log, self._stop, log.stem, harmed=True, **TIMEOUTS)
        return start if host is None else host.inside(*start)

    def stays(self, host: int | None = None) -> list[Stay]:
        """Return the leases so far, of one host or of all."""
        logs = self.directory.glob(f"{'*' if host is None else host}-*.log")
        return [
            stay
            for log in logs
            for stay in read_log(log.stem, log.read_text().splitlines(keepends=True))
        ]

    def go_on(self, *hosts: int) -> None:
        """Wait until each of these hosts has got a lock that it asked for from now on."""
        now = boot_clock()
        for host in hosts:
            wait_until(
                lambda host=host: any(stay.start > now for stay in self.stays(host)),
                limit_s=40, every_s=0.1, what=f"host {host} to get a lock",
            )  # fmt: skip

    def end(self) -> None:
        """Have all of them finish."""
        self._stop.touch()
        assert [each.wait(scaled(60)) for each in self._running] == [0] * len(self._running)

    def kill(self) -> None:
        """Kill what is left."""
        for each in self._running:
            with contextlib.suppress(ProcessLookupError):
                each.kill()
            each.wait()


Start = Callable[[str, list[Node | None]], Lockers]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts lockers, on hosts of a network or on this one, and waits until all have got a lock."""
    made: list[Lockers] = []

    def begin(location: str, hosts: list[Node | None]) -> Lockers:
        made.append(Lockers(location, tmp_path, hosts))
        made[-1].go_on(*range(len(hosts)))
        return made[-1]

    yield begin
    for each in made:
        each.kill()


@pytest.fixture
def network(service: Callable[[str], str]) -> Iterator[Network]:
    """A network of the test's own."""
    service("iproute2")
    if why := why_no_networks():
        pytest.skip(f"no network namespaces: {why}")
    with Network() as made:
        yield made


def assert_kept(lockers: Lockers, server: RedisServer, lost: bool = False) -> None:
    """Judge: no two valid leases at once, tokens grow, every grant ended, nothing is left.

    ``lost``: the server lost its data, which is a named exception to all but the tokens.
    """
    lockers.end()
    engine = RedisEngine("judge", server.unix_url, EngineOptions.parse(OPTIONS))
    lasting = {"fence", "events", "number", "counts", "meta"}

    def left() -> list[str]:
        engine.sweep()
        keys = server.client.keys("soak:*")
        return sorted(key for key in keys if key.rsplit(":", 1)[-1] not in lasting)

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), every_s=0.1, limit_s=15)
    stays, events, litter = lockers.stays(), engine.read_events(count=1_000_000), left()
    engine.close()
    if lost:
        last: dict[str, int] = {}
        for stay in sorted(stays, key=lambda it: it.start):
            assert stay.fence > last.get(stay.name, 0)
            last[stay.name] = stay.fence
        assert litter == []
    else:
        assert judge(stays, events, litter) == []
    print(f"{len(stays)} stays, {len(events)} events")  # noqa: T201


@pytest.fixture
def hosts(network: Network) -> list[Node | None]:
    """Where the lockers are."""
    return [network.join() for _ in range(HOSTS)]


@pytest.fixture
def server(network: Network) -> Iterator[NodeServer]:
    """A server on a host of its own."""
    with NodeServer(network.join()) as started:
        yield started


def test_hosts_and_the_server_are_cut_off_and_come_back(
    server: NodeServer, hosts: list[Node | None], start: Start
) -> None:
    """A host for longer than a lease lives, while the other goes on; then the server, from all."""
    lockers = start(server.url, hosts)
    host = hosts[0]
    assert host is not None
    host.cut()
    time.sleep(1.5 * LIFE_S)  # the others get what it held
    lockers.go_on(1)
    host.mend()
    lockers.go_on(0)
    for life in (0.5, 1.5):
        server.node.cut()
        time.sleep(life * LIFE_S)
        server.node.mend()
        lockers.go_on(0, 1)
    assert_kept(lockers, server)


def test_hosts_that_are_heard_and_hear_nothing(
    server: NodeServer, hosts: list[Node | None], start: Start
) -> None:
    """What they ask for is done, and they never learn it; or they are not heard and hear all."""
    lockers = start(server.url, hosts)
    host = hosts[0]
    assert host is not None
    for deaf in (True, False):
        ends = (server.node, host) if deaf else (host, server.node)
        ends[0].mute(ends[1])
        time.sleep(1.5 * LIFE_S)
        lockers.go_on(1)
        ends[0].unmute(ends[1])
        lockers.go_on(0)
    assert_kept(lockers, server)


def test_a_server_that_loses_its_data_goes_on_with_larger_tokens(
    server: NodeServer, hosts: list[Node | None], start: Start
) -> None:
    """A restart without persistence: two may hold a lock then, and the fence tells them apart."""
    lockers = start(server.url, hosts)
    server.restart()
    lockers.go_on(0, 1)
    assert_kept(lockers, server, lost=True)


def test_answers_that_take_long(fresh_redis: RedisServer, start: Start) -> None:
    """80 ms to and fro, and then ten times that, which is most of a lease's life.

    Through the proxy: not every kernel can delay what a network namespace sends (netem).
    """
    with TcpProxy(fresh_redis.port) as between:
        between.delay(0.04, requests=True, replies=True)
        lockers = start(between.url, [None] * HOSTS)
        between.delay(0.4, requests=True, replies=True)
        time.sleep(3 * LIFE_S)
        between.delay(0.04, requests=True, replies=True)
        lockers.go_on(0, 1)
        assert_kept(lockers, fresh_redis)
