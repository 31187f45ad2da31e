"""Where a contract test's locks live, and what it may do there that no user can."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from lockapp.core.options import EngineOptions
from lockapp.core.values import EventRecord
from lockapp.engines.base import Engine
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import EngineUnavailable
from lockapp.lock import Lock
from tests.servers import RedisServer
from tests.timing import wait_until

# A tombstone outlives its lock by design; a short one lets every test look for litter.
DEFAULTS: dict[str, Any] = {"tombstone": 0.2, "connect_timeout": 10, "command_timeout": 10}
"""A starved machine must not look like a server that is down; tests of that say their own times."""

LASTING = frozenset(("fence", "events", "number", "counts", "meta"))
"""The keys that all locks of a prefix share and that stay."""


class Place(ABC):
    """One lock server as one test sees it."""

    kind: ClassVar[str]
    shows_deadlines: ClassVar[bool] = True
    """Whether who looks sees until when a lease lasts; else its full ttl."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._engines: list[Engine] = []
        self.engine = self.another_engine()

    def another_engine(self, **options: Any) -> Engine:
        """Make an engine for the same locks; options as a user writes them."""
        parsed = EngineOptions.parse({"prefix": self.prefix, **DEFAULTS, **options})
        engine = self.make_engine(f"{self.kind}{len(self._engines)}", parsed)
        self._engines.append(engine)
        return engine

    def lock(self, name: str = "order:1", **options: Any) -> Lock:
        """Describe a lock of the first engine."""
        return Lock(self.engine, name, **options)

    def events(self, name: str | None = None) -> list[EventRecord]:
        """Return the events so far, of one name or of all."""
        found = self.engine.read_events(count=100_000)
        return [event for event in found if name in (None, event.name)]

    def kinds(self, name: str = "order:1") -> list[str]:
        """Return the kinds of a name's events, in order."""
        return [event.kind for event in self.events(name)]

    def close(self) -> None:
        """Close every engine."""
        for engine in self._engines:
            engine.close()
            _wait_for_undoing(engine)

    @abstractmethod
    def make_engine(self, alias: str, options: EngineOptions) -> Engine:
        """Make an engine."""

    @abstractmethod
    def raw(self, name: str) -> object:
        """Return all that the server stores of a name, to be compared for equality."""

    @abstractmethod
    def litter(self) -> list[str]:
        """List what there is beside what all locks share."""

    @abstractmethod
    def lose_fence(self) -> None:
        """Lose the last fencing token."""

    @abstractmethod
    def lose_everything(self) -> None:
        """Lose all data, as a restart without persistence or a FLUSHDB does."""

    @abstractmethod
    def break_audit(self) -> None:
        """Make it impossible to record events."""

    @abstractmethod
    def mend_audit(self) -> None:
        """Make it possible again; what was recorded before may be lost."""

    @abstractmethod
    def requests(self) -> int:
        """Return how many requests the server has got from locks so far."""

    def shard(self, name: str = "order:1") -> int:
        """Return in which stream the events of a name are."""
        return 0

    @abstractmethod
    def listening(self) -> bool:
        """Whether some holder's notice channel is open."""

    @abstractmethod
    def following(self) -> int:
        """Return how many block on the landing of a flight."""

    @abstractmethod
    def landings(self) -> list[str]:
        """List the landings that have not gone yet."""


class RedisPlace(Place):
    """A prefix on a real server."""

    kind = "redis"

    def __init__(self, server: RedisServer, prefix: str, url: str = "") -> None:
        self.server = server
        self.client = server.client
        self.url = url or server.url
        super().__init__(prefix)

    def make_engine(self, alias: str, options: EngineOptions) -> Engine:
        return RedisEngine(alias, self.url, options)

    def key(self, of: str) -> str:
        """Spell a key of the prefix."""
        return f"{self.prefix}:{{0}}:{of}"

    def raw(self, name: str) -> object:
        lock, queue, waiters = (self.key(f"{what}:{name}") for what in ("lock", "queue", "waiters"))
        return (
            self.client.hgetall(lock),
            self.client.pexpiretime(lock),
            self.client.zrange(queue, 0, -1, withscores=True),
            self.client.hgetall(waiters),
            self.client.zscore(self.key("held"), name),
        )

    def litter(self) -> list[str]:
        try:
            self.engine.sweep()
        except EngineUnavailable as down:  # the breaker is still open after an outage
            return [str(down)]
        found = self.client.scan_iter(f"{self.prefix}:*", count=1000)
        return sorted(key for key in found if key.rsplit(":", 1)[-1] not in LASTING)

    def lose_fence(self) -> None:
        assert self.client.delete(self.key("fence"))

    def lose_everything(self) -> None:
        self.client.flushdb()

    def break_audit(self) -> None:
        self.client.set(self.key("events"), "not a stream")

    def mend_audit(self) -> None:
        self.client.delete(self.key("events"))

    def requests(self) -> int:
        stats = self.client.info("commandstats")
        return sum(
            value["calls"]
            for name, value in stats.items()
            # Not BRPOP and PING: those are of the suite's Celery workers, which share the server.
            if name.removeprefix("cmdstat_") in ("evalsha", "eval", "blpop")
        )

    def listening(self) -> bool:
        return bool(self.client.pubsub_channels(f"{self.prefix}:*"))

    def following(self) -> int:
        return self.server.blocked("xread")

    def landings(self) -> list[str]:
        return [str(key) for key in self.client.scan_iter(self.key("flight:*"))]


class MemoryPlace(Place):
    """A server in this process."""

    kind = "memory"

    def make_engine(self, alias: str, options: EngineOptions) -> MemoryEngine:
        return MemoryEngine(alias, "contract", options)

    @property
    def server(self) -> Any:
        """The server behind the engines."""
        assert isinstance(self.engine, MemoryEngine)
        return self.engine.server

    def raw(self, name: str) -> object:
        record = self.server.records.get(name)
        return record.copy() if record else None

    def litter(self) -> list[str]:
        self.engine.sweep()
        self.server.sweep(self.engine.options, ["any"])  # a step of any name forgets tombstones
        return sorted(self.server.records)

    def lose_fence(self) -> None:
        assert self.server.fence
        self.server.fence = 0

    def lose_everything(self) -> None:
        self.server.start_empty()

    def break_audit(self) -> None:
        self.server.log.entries = None

    def mend_audit(self) -> None:
        self.server.log.entries = type(self.server.log)("").entries

    def requests(self) -> int:
        raise NotImplementedError("counted by the test")

    def listening(self) -> bool:
        return bool(self.server.listeners)

    def following(self) -> int:
        return sum(len(inboxes) for inboxes in self.server.flights._followers.values())

    def landings(self) -> list[str]:
        return list(self.server.flights.names())


def _wait_for_undoing(engine: Engine) -> None:
    """Let the watchdog finish undoing and recording, while the server is still there."""
    ports = [engine.sync, *engine._loops.values()]
    wait_until(lambda: not any(port.watchdog._undo for port in ports), what="undoing to end")
    wait_until(lambda: not engine.sync.watchdog._backlog, what="the runs to be recorded")


def assert_no_litter(place: Place) -> None:
    """Wait until nothing of the test's locks is left; undoing and tombstones take a moment."""
    with contextlib.suppress(AssertionError):  # a breaker may be open for five seconds more
        wait_until(lambda: not place.litter(), limit_s=7, every_s=0.02)
    left = place.litter()
    assert not left, f"left behind: {left}"
