"""The same over TLS: its records have bounds of their own, and its reads limits of their own.

A server with a certificate of its own, made here. Only some of the contract, on either front: what
sends, what waits, and what breaks.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockapp.engines.redis.wire import Wire
from lockapp.exceptions import EngineUnavailable
from tests.certificates import make_certificate
from tests.contract.conftest import _used
from tests.contract.fronts import People, done
from tests.contract.places import RedisPlace
from tests.contract.test_unavailable import reason
from tests.servers import RedisServer, free_port
from tests.timing import pause, scaled, stopwatch, wait_until

TIMEOUT_S = 2.0
"""For an answer; a handshake takes more of a busy machine."""


@pytest.fixture(scope="module")
def certificate(
    service: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A certificate for the loopback address that vouches for itself, and its key."""
    return make_certificate(service("openssl"), tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(service: Callable[[str], str], certificate: tuple[Path, Path]) -> Iterator[RedisServer]:
    """A server that speaks TLS on a port of its own; the test looks into it without."""
    own, key = map(str, certificate)
    port = str(free_port())
    with RedisServer(
        "--tls-port", port, "--tls-cert-file", own, "--tls-key-file", key,
        "--tls-ca-cert-file", own, "--tls-auth-clients", "no",
        binary=shutil.which(service("tls-server")),
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def url(server: RedisServer, certificate: tuple[Path, Path]) -> str:
    """Its address for those who know whom to trust."""
    port = server.arguments[1]
    return f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate[0]}"


@pytest.fixture
def tls(
    request: pytest.FixtureRequest, server: RedisServer, url: str, prefix: str
) -> Iterator[RedisPlace]:
    """Locks on it."""
    made = RedisPlace(server, prefix, url)
    timeouts = {"connect_timeout": scaled(10), "command_timeout": scaled(TIMEOUT_S)}
    made.engine = made.another_engine(**timeouts)
    yield from _used(request, made)


def sleepers(place: RedisPlace) -> list[str]:
    """The connections on which somebody waits to be handed a lock."""
    return [one["id"] for one in place.client.client_list() if one["cmd"] == "blpop"]


def test_a_lock_is_waited_for_handed_over_and_released(tls: RedisPlace, people: People) -> None:
    """Waiting on one connection for longer than any answer may take, and then at once."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(tls.lock())
    waiting = bob.start_acquire(tls.lock(), wait=scaled(30))
    wait_until(lambda: sleepers(tls), what="bob to wait")
    before = sleepers(tls)
    pause(1.5 * TIMEOUT_S)
    assert sleepers(tls) == before
    ann.release(lease)
    with stopwatch() as handing:
        mine = done(waiting)
    assert handing.seconds < scaled(TIMEOUT_S)
    assert mine.fence > lease.fence
    bob.release(mine)


def test_giving_up_leaves_nothing(tls: RedisPlace, people: People) -> None:
    """The wait ends by itself, between two records."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(tls.lock())
    assert bob.try_acquire(tls.lock(), wait=scaled(0.2)) is None
    ann.release(lease)


def test_a_reply_of_many_records_is_read_whole(tls: RedisPlace, people: People) -> None:
    """A record has 16 KB at most, and a read returns one."""
    ann = people("ann")
    text = b"x" * 300_000
    for size in (0, 1, 16_383, 16_384, 16_385, 65_536, 300_000):
        reply = ann.step(tls.engine, lambda port, n=size: port.transport.command("ECHO", text[:n]))
        assert reply == text[:size]


def test_a_restarted_server_is_asked_on_a_new_connection(tls: RedisPlace, people: People) -> None:
    """The idle connection is broken, and who waits asks again."""
    ann, bob = people("ann", "bob")
    ann.release(ann.acquire(tls.lock()))
    tls.server.restart()
    lease = ann.acquire(tls.lock(), wait=scaled(10))
    waiting = bob.start_acquire(tls.lock(), wait=scaled(30))
    wait_until(lambda: tls.server.blocked("blpop"), what="bob to wait")
    tls.server.restart(empty=False)
    wait_until(lambda: tls.server.blocked("blpop"), what="bob to wait again", limit_s=10)
    ann.release(lease)
    bob.release(done(waiting))


async def echo(port: Any) -> object:
    """Ask something that only one answer fits; nothing while the breaker is open."""
    with contextlib.suppress(EngineUnavailable):
        return await port.transport.command("ECHO", "mine")
    return None


def test_a_server_that_hangs_is_told_in_time_and_its_late_answer_is_nobodys(
    tls: RedisPlace, people: People
) -> None:
    """What was asked meanwhile is undone."""
    ann = people("ann")
    ann.release(ann.acquire(tls.lock()))
    timeouts = {"connect_timeout": scaled(TIMEOUT_S), "command_timeout": scaled(TIMEOUT_S)}
    tls.engine = tls.another_engine(**timeouts)
    wait_until(lambda: not reason(lambda: ann.release(ann.acquire(tls.lock()))), limit_s=20)
    tls.server.pause()
    try:
        with stopwatch() as asking, pytest.raises(EngineUnavailable) as caught:
            ann.acquire(tls.lock(), wait=0)
        assert caught.value.reason == "timeout"
        assert asking.seconds < scaled(4 * TIMEOUT_S)
        with stopwatch() as asking, pytest.raises(EngineUnavailable) as caught:
            ann.acquire(tls.lock(), wait=0)  # not even the handshake is answered
        assert caught.value.reason == "connect"
        assert asking.seconds < scaled(4 * TIMEOUT_S)
    finally:
        tls.server.resume()
    wait_until(lambda: ann.step(tls.engine, echo) == b"mine", what="an answer")
    ann.release(ann.acquire(tls.lock(), wait=scaled(10)))


def test_a_reply_that_stops_inside_a_record_is_told_in_time(
    certificate: tuple[Path, Path],
) -> None:
    """The socket is readable then, and a read still returns nothing."""
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(*certificate)
    theirs = ssl.create_default_context(cafile=certificate[0])
    near, far = socket.socketpair()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ours.wrap_bio(incoming, outgoing, server_side=True)

    def answer(step: Callable[[], Any]) -> Any:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return step()
            far.sendall(outgoing.read())
            incoming.write(far.recv(65536))

    def serve() -> None:
        answer(server.do_handshake)
        far.sendall(outgoing.read())
        answer(lambda: server.read(100))
        server.write(b"+" + b"x" * 1000)
        far.sendall(outgoing.read()[:500])

    with near, far, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        link: Any = theirs.wrap_socket(near, server_hostname="127.0.0.1")
        with link:
            wire = Wire(SimpleNamespace(_sock=link), scaled(TIMEOUT_S))
            with stopwatch() as asking, pytest.raises(TimeoutError):
                wire.ask(b"PING")
            assert asking.seconds < scaled(4 * TIMEOUT_S)
        served.result()


def test_an_unknown_server_is_not_trusted(tls: RedisPlace, people: People, url: str) -> None:
    """Nothing is sent to one whose certificate nobody vouches for."""
    stranger: Any = RedisPlace(tls.server, tls.prefix, url.partition("?")[0])
    with pytest.raises(EngineUnavailable, match=r"(?i)certificate") as caught:
        people("ann").acquire(stranger.lock(), wait=0)
    assert caught.value.reason == "connect"
    stranger.close()
