"""Who is measured: lockapp and its peers, behind one small shape.

A contestant *joins* a process once: it connects as an application would, with one client for all
threads. Then it makes a pair of callables for each lock: take it, give it back. Each is set up the
way its documentation recommends for a lock that must not be lost by accident: a ttl, no renewal
thread where the library starts one per lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from lockapp.engines.base import Engine

Pair = tuple[Callable[[], Any], Callable[[], Any]]
Maker = Callable[[str], Pair]
PREFIX = "bench"
TTL_S = 30
WAIT_S = 60


@dataclass(frozen=True)
class Place:
    """Where a contestant finds what it needs: a server, and a directory for lock files."""

    url: str
    directory: str


@dataclass(frozen=True)
class Contestant:
    """One library, or one way of doing it by hand."""

    title: str
    join: Callable[[Place], Maker]
    sends: frozenset[str]  # commands whose calls the server counts: one for each that was sent
    prepare: Callable[[Place, str], None] | None = None  # before anybody takes the lock


def join_lockapp(place: Place) -> Maker:
    """This project: fenced, indexed, audited, renewed."""
    from lockapp.core.options import EngineOptions
    from lockapp.engines.redis.engine import RedisEngine

    return locks_of(RedisEngine("bench", place.url, EngineOptions(prefix=PREFIX)))


def locks_of(engine: Engine) -> Maker:
    """This project's locks of one engine."""
    from lockapp.lock import Lock

    def make(name: str) -> Pair:
        lock = Lock(engine, name, ttl=TTL_S, wait=WAIT_S)
        leases: list[Any] = []
        return lambda: leases.append(lock.acquire()), lambda: leases.pop().release()

    return make


def join_redis_py(place: Place) -> Maker:
    """redis-py's Lock: SET NX, a script to release, waiters poll every 100 ms."""
    client = redis.Redis.from_url(place.url)

    def make(name: str) -> Pair:
        lock = client.lock(name, timeout=TTL_S, blocking_timeout=WAIT_S)
        return lock.acquire, lock.release

    return make


def join_python_redis_lock(place: Place) -> Maker:
    """python-redis-lock: waiters block on a list, the best fair peer."""
    import redis_lock

    # Without a limit on reading: redis-py's own would break off a BLPOP that waits longer.
    client = redis.StrictRedis.from_url(place.url, socket_timeout=None)

    def make(name: str) -> Pair:
        lock = redis_lock.Lock(client, name, expire=TTL_S)
        return lock.acquire, lock.release

    return make


def join_portalocker(place: Place) -> Maker:
    """portalocker: a locked file. One machine only, no ttl needed, waiters poll every 250 ms."""
    import portalocker

    def make(name: str) -> Pair:
        lock = portalocker.Lock(Path(place.directory) / f"{name}.lock", timeout=WAIT_S)
        return lock.acquire, lock.release

    return make


RELEASE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


def join_raw(place: Place) -> Maker:
    """The floor: SET NX PX and compare-and-delete on a bare socket, no queue, no fence."""
    import secrets

    def make(name: str) -> Pair:
        ask = dial(place.url)
        sha = ask("SCRIPT", "LOAD", RELEASE).decode()
        token = ""

        def take() -> None:
            nonlocal token
            token = secrets.token_hex(16)
            assert ask("SET", name, token, "NX", "PX", str(TTL_S * 1000)) == b"OK"

        def give() -> None:
            assert ask("EVALSHA", sha, "1", name, token) == 1

        return take, give

    return make


def join_handoff(place: Place) -> Maker:
    """The floor of handing over: BLPOP one token, LPUSH it back. Whoever dies keeps it for ever."""

    def make(name: str) -> Pair:
        ask = dial(place.url)

        def take() -> None:
            assert ask("BLPOP", name, str(WAIT_S)) is not None

        def give() -> None:
            ask("LPUSH", name, "token")

        return take, give

    return make


def put_token(place: Place, name: str) -> None:
    """Leave exactly one token for those who hand it on."""
    with redis.Redis.from_url(place.url) as client:
        client.delete(name)
        client.lpush(name, "token")


def open_link(url: str) -> tuple[Callable[..., None], Callable[[], Any]]:
    """Return two functions on one bare socket: send a command, and read the next reply."""
    import socket
    from urllib.parse import urlsplit

    from hiredis import Reader, pack_command

    where = urlsplit(url)
    link = socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = Reader()

    def send(*words: str) -> None:
        link.sendall(pack_command(words))

    def read() -> Any:
        while (reply := reader.gets()) is False:
            if not (chunk := link.recv(65536)):
                raise ConnectionError("the server closed the connection")
            reader.feed(chunk)
        return reply

    if (database := where.path.strip("/")) not in ("", "0"):
        send("SELECT", database)
        read()
    return send, read


def dial(url: str) -> Callable[..., Any]:
    """Return a function that sends one command on a bare socket and returns the reply."""
    send, read = open_link(url)

    def ask(*words: str) -> Any:
        send(*words)
        return read()

    return ask


def join_zookeeper(place: Place) -> Maker:
    """This project on ZooKeeper."""
    from lockapp.core.options import EngineOptions
    from lockapp.engines.zookeeper import ZooKeeperEngine

    return locks_of(ZooKeeperEngine("bench", place.url, EngineOptions(prefix=PREFIX)))


def join_kazoo(place: Place) -> Maker:
    """Kazoo's own Lock, the recipe of ZooKeeper's documentation."""
    from kazoo.client import KazooClient

    client = KazooClient(place.url.removeprefix("zk://"), timeout=40)
    client.start()

    def make(name: str) -> Pair:
        lock = client.Lock(f"/kazoo/{name}", "bench")
        return lambda: lock.acquire(timeout=WAIT_S), lock.release

    return make


CONTESTANTS = {
    "lockapp": Contestant(
        "lockapp",
        join_lockapp,
        frozenset(("evalsha", "eval", "blpop", "subscribe", "ping", "hsetnx", "script|load")),
    ),
    "redis-py": Contestant("redis-py Lock", join_redis_py, frozenset(("set", "evalsha"))),
    "python-redis-lock": Contestant(
        "python-redis-lock",
        join_python_redis_lock,
        # It sends GET, too, and its script calls GET once: those stand for the EVALSHAs.
        frozenset(("set", "blpop", "get")),
    ),
    "portalocker": Contestant("portalocker (file)", join_portalocker, frozenset()),
    "raw": Contestant("raw commands", join_raw, frozenset(("set", "evalsha"))),
    "handoff": Contestant("BLPOP hand-off", join_handoff, frozenset(("blpop", "lpush")), put_token),
    "zookeeper": Contestant("lockapp", join_zookeeper, frozenset()),
    "kazoo": Contestant("kazoo Lock", join_kazoo, frozenset()),
}
"""In the order of the tables. `raw` does not wait; `handoff` is its counterpart that does."""

UNCONTENDED = ("lockapp", "redis-py", "python-redis-lock", "portalocker", "raw")
CONTENDED = ("lockapp", "redis-py", "python-redis-lock", "portalocker", "handoff")
ON_ZOOKEEPER = ("zookeeper", "kazoo")


def commands_sent(key: str, client: redis.Redis) -> int:
    """Return how many commands the server has had from clients of ``key`` (since CONFIG RESETSTAT).

    Commands that scripts call are in the server's statistics, too, and are left out.
    """
    stats = client.info("commandstats")
    sends = CONTESTANTS[key].sends
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in sends)


@contextmanager
def counting(key: str, place: Place) -> Iterator[Callable[[], int]]:
    """Count the commands of a contestant from now on; none where nothing counts them."""
    if not CONTESTANTS[key].sends:
        yield lambda: 0
        return
    with redis.Redis.from_url(place.url) as client:
        client.config_resetstat()
        yield lambda: commands_sent(key, client)
