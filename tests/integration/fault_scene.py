"""A lock between two engines, one of them behind a faulty network, and the faults.

Calls are made on one front: the blocking methods, or their `a…` twins on the loop of a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from django.core.cache.backends.locmem import LocMemCache

from lockapp.core.options import EngineOptions
from lockapp.core.run import run_sync
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.scripts import build_all
from lockapp.exceptions import EngineUnavailable, LeaseLost, LockAppError, NotAcquired
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.single_flight.faces import AsyncFace, SyncFace
from lockapp.single_flight.flight import fly
from lockapp.single_flight.leader import Plan
from lockapp.ways import UNSET
from tests.proxy import Fault, TcpProxy
from tests.servers import RedisServer, free_port
from tests.timing import pause, scaled, wait_until

T = TypeVar("T")

NAME = "fault:1"
TTL_S = 60.0
"""Longer than any test: an orphan would be waited for in vain."""
FAULTS = (
    "request_lost", "reply_lost", "reset", "restart", "script_flush", "oom", "readonly", "misconf",
)  # fmt: skip


def told(work: Callable[[], object]) -> str:
    """What the caller is told."""
    try:
        work()
    except EngineUnavailable:
        return "unavailable"
    except LeaseLost:
        return "lost"
    except NotAcquired:
        return "contended"
    return "ok"


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(scaled(30))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Scene:
    """Two engines of one prefix on one server; `far` is reached through the proxy."""

    def __init__(self, server: RedisServer, proxy: TcpProxy, prefix: str, front: str) -> None:
        self.server = server
        self.proxy = proxy
        self.prefix = prefix
        self.loop = Loop() if front == "async" else None
        values = {
            "prefix": prefix,
            "waiting_slice": scaled(0.3),
            "claim_window": scaled(1),
            "tombstone": scaled(0.5),
        }
        # Only what is far may be silent: soon given up there, and never near by a pause of our own.
        impatient = EngineOptions.parse({**values, "command_timeout": scaled(0.4)})
        self.far = RedisEngine("far", proxy.url, impatient)
        self.near = RedisEngine("near", server.url, EngineOptions.parse(values))
        self.cache = LocMemCache(prefix, {})
        self.held: list[Lease] = []
        self.threads: list[threading.Thread] = []
        for script in build_all().values():  # or the fault would meet the question for it
            server.client.script_load(script.text)
        for engine in (self.far, self.near):  # connected, and the layout verified
            self.call(self.call(Lock(engine, "fault:warm").acquire).release)
        # Its first round asks for leases of the dead, which must not use up the fault.
        watchdog = self.port(self.far).watchdog
        wait_until(lambda: abs(watchdog._wake_at) != float("inf"), what="its first round to end")

    def call(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a method, or await its twin."""
        if self.loop is None:
            return method(*args, **options)
        twin = getattr(method.__self__, f"a{method.__name__}")  # type: ignore[attr-defined]
        return self.loop.run(twin(*args, **options))  # type: ignore[no-any-return]

    def port(self, engine: RedisEngine) -> Any:
        """The port that calls go through."""
        return engine.sync if self.loop is None else engine._loops[self.loop.loop]

    def hold(self, engine: RedisEngine, **options: Any) -> Lease:
        self.held.append(self.call(Lock(engine, NAME, ttl=TTL_S, **options).acquire))
        return self.held[-1]

    def fly(self, engine: RedisEngine, compute: Callable[[], str]) -> str:
        """Compute, or wait for who does, through one engine."""
        lock = Lock(engine, NAME, ttl=TTL_S)
        plan = Plan(lock, f"{self.prefix}:result", 60, 0, 30, UNSET)
        if self.loop is None:
            return str(run_sync(fly(SyncFace(engine.sync, self.cache), plan, compute)))

        async def acompute() -> str:
            return await asyncio.to_thread(compute)

        return str(self.loop.run(fly(AsyncFace(self.port(engine), self.cache), plan, acompute)))

    def beside(self, work: Callable[[], object]) -> list[str]:
        """Have something done by another thread; what that is told is in the list when it is."""
        outcome: list[str] = []
        thread = threading.Thread(target=lambda: outcome.append(told(work)))
        self.threads.append(thread)
        thread.start()
        return outcome

    def break_before(self, step: str, fault: str) -> None:
        """Let the fault begin when the far port is about to take this step."""
        port, begun = self.port(self.far), False
        real = getattr(port, step)

        async def broken(*args: Any, **options: Any) -> Any:
            nonlocal begun
            if not begun:
                begun = True
                if self.loop is None:
                    self.break_it(fault)
                else:
                    await asyncio.to_thread(self.break_it, fault)
            return await real(*args, **options)

        setattr(port, step, broken)

    def break_it(self, fault: str) -> None:
        """Let the fault begin."""
        server, proxy = self.server, self.proxy
        if fault == "reset":
            self.calm()
        self.call(self.far.ping)  # so that there is an idle connection for the fault to break
        if fault == "request_lost":
            proxy.inject(Fault.DROP_REQUESTS)
        elif fault == "reply_lost":
            proxy.inject(Fault.DROP_REPLIES)
        elif fault == "reset":
            proxy.inject(Fault.CUT_ON_REPLY, once=True)
        elif fault == "restart":
            server.restart(empty=True)
        elif fault == "script_flush":
            server.client.script_flush()
        elif fault == "oom":
            server.config(maxmemory=1)
        elif fault == "readonly":
            server.client.replicaof("127.0.0.1", free_port())  # a replica whose master is away
        else:
            _break_saving(server)

    def calm(self) -> None:
        """Wait until the watchdog is not talking, so that the fault meets the step."""
        while True:
            before = self.proxy.reply_bytes
            pause(0.05)
            if self.proxy.reply_bytes == before:
                break

    def asked_again(self, outcome: list[str]) -> None:
        """Wait until somebody who blocked has noticed that something is wrong, or is through."""
        wait_until(
            lambda: outcome or self.proxy.commands["EVALSHA"] or self.proxy.connections_made,
            what="the waiter to ask again",
        )

    def mend(self) -> None:
        """End the fault."""
        self.proxy.heal()
        self.server.config(maxmemory=0, stop_writes_on_bgsave_error="no")
        self.server.client.replicaof("NO", "ONE")

    def litter(self) -> list[str]:
        lasting = {"fence", "events", "number", "counts", "meta"}
        keys = self.server.client.keys(f"{self.prefix}:*")
        left = [key for key in keys if key.rsplit(":", 1)[-1] not in lasting]
        return [key for key in left if not self._only_tombstones(key)]

    def _only_tombstones(self, key: str) -> bool:
        """A tombstone of an abandoned lease stays as long as the lease could have."""
        client = self.server.client
        if ":lock:" not in key or any(not field.startswith("t:") for field in client.hkeys(key)):
            return False
        return bool(client.pttl(key) > 0)

    def close(self) -> None:
        self.mend()
        for lease in self.held:
            with contextlib.suppress(LockAppError):
                self.call(lease.release)
        for thread in self.threads:
            thread.join(scaled(20))
        for engine in (self.far, self.near):
            wait_until(lambda engine=engine: self._ended(engine), every_s=0.05, limit_s=10)
        if self.loop is not None:
            self.loop.close()

    def _ended(self, engine: RedisEngine) -> bool:
        """Close, and say whether the watchdogs have ended: they linger for long on our account."""
        engine.close()
        if self.loop is not None:
            self.call(engine.close)
            if self.port(engine).watchdog._task is not None:
                return False
        return engine.sync.watchdog._thread is None


def _break_saving(server: RedisServer) -> None:
    """Have a save fail, after which the server refuses to write until one succeeds."""
    (server.directory / "dump.rdb").mkdir(exist_ok=True)  # nothing can be renamed onto that
    server.config(save="3600 1", stop_writes_on_bgsave_error="yes")
    server.client.bgsave()
    wait_until(
        lambda: not server.client.info("persistence")["rdb_bgsave_in_progress"],
        what="the save to end",
    )
    assert server.client.info("persistence")["rdb_last_bgsave_status"] == "err"
    (server.directory / "dump.rdb").rmdir()
