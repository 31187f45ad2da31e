"""P4 for longer: a server that has stopped answering is asked seldom, and found again by itself.

What callers pay is counted in attempts to connect, at the proxy in front of the server.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from lockapp.core import breaker
from lockapp.core.breaker import FAILURES
from lockapp.core.options import EngineOptions
from lockapp.engines.base import Engine
from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import EngineUnavailable, WaitTimeout
from lockapp.lock import Lock
from tests.contract.conftest import Far
from tests.contract.fronts import People, done
from tests.contract.places import RedisPlace
from tests.contract.processes import in_forked_child
from tests.proxy import Fault, TcpProxy
from tests.servers import RedisServer
from tests.timing import pause, scaled, stopwatch, wait_until

NEVER = 3600.0
SENT = ("timeout", "reset")


@pytest.fixture
def callers_never_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cool-down endless, so that nobody but the watchdog can close a breaker."""
    monkeypatch.setattr(breaker, "FIRST_COOL_DOWN_S", NEVER)
    monkeypatch.setattr(breaker, "LONGEST_COOL_DOWN_S", NEVER)


@pytest.fixture
def short_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a probe go soon."""
    monkeypatch.setattr(breaker, "FIRST_COOL_DOWN_S", scaled(0.1))
    monkeypatch.setattr(breaker, "LONGEST_COOL_DOWN_S", scaled(0.1))


def reason(call: Callable[[], object]) -> str:
    """Why the engine could not be asked; "" if it could."""
    try:
        call()
    except EngineUnavailable as error:
        return str(error.reason) if error.sent == (error.reason in SENT) else "wrong"
    return ""


def break_down(engine: Engine, asker: Any) -> list[str]:
    """Ask until callers are refused; return what they were told until then."""
    told = []
    while not engine.circuit.is_open:  # type: ignore[attr-defined]
        told.append(reason(lambda: asker.acquire(Lock(engine, "order:broken"), wait=0)))
        assert len(told) <= 2 * FAILURES
    return told


def wait_for_the_cool_down(engine: RedisEngine) -> None:
    """Ask nobody."""
    wait_until(lambda: boot_clock() >= engine.circuit._breaker._probe_at, what="the cool-down")


# ------------------------------------------------------------------ callers


def test_of_many_callers_three_pay_for_a_dead_network(
    far: Far, proxy: TcpProxy, people: People
) -> None:
    """The others are refused at once, nothing sent, and however long they are ready to wait."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, ann = far(), people("ann")
    assert break_down(engine, ann) == ["connect"] * FAILURES
    crowd = [people(f"caller{number}") for number in range(20)]
    calls = [
        caller.start_acquire(Lock(engine, f"order:{number}"), wait)
        for number, caller in enumerate(crowd)
        for wait in (0, 30, None)
    ]
    assert {reason(lambda call=call: done(call)) for call in calls} == {"open"}
    assert proxy.connections_made == FAILURES


def test_of_many_callers_three_pay_for_a_hung_server(fresh_redis: RedisServer) -> None:
    """SIGSTOP: the kernel still takes connections, and nobody answers on them."""
    place = RedisPlace(fresh_redis, "hung")
    engine = place.another_engine(connect_timeout=0.3, command_timeout=0.3)
    with Lock(engine, "order:1"):
        pass
    fresh_redis.pause()
    told = [reason(lambda: Lock(engine, "order:1").acquire(wait=0)) for _ in range(2 * FAILURES)]
    assert told[0] == "timeout"  # sent on the open connection
    assert told[-FAILURES:] == ["open"] * FAILURES
    fresh_redis.resume()
    wait_until(lambda: not reason(lambda: Lock(engine, "order:1").try_acquire(wait=1)))
    place.close()


def connected(server: RedisServer) -> set[str]:
    """The connections that locks have."""
    return {one["id"] for one in server.client.client_list() if one["name"] == "lockapp"}


def test_a_server_that_loads_answers_on_the_connections_there_are(
    people: People, prefix: str
) -> None:
    """It says that it can't serve just now: that is an answer, and breaks no connection."""
    ann = people("ann")
    with RedisServer("--enable-debug-command", "yes") as server, ThreadPoolExecutor(1) as pool:
        for number in range(100):
            server.client.set(f"elsewhere:{number}", os.urandom(2000))
        place = RedisPlace(server, prefix)
        lease = ann.acquire(place.lock())  # which keeps the watchdog from closing what is idle
        before = connected(server)
        server.config(key_load_delay=20_000, loading_process_events_interval_bytes=1024)
        with redis.Redis(port=server.port, socket_timeout=None) as asker:
            reloaded = pool.submit(asker.execute_command, "DEBUG", "RELOAD")
            wait_until(lambda: server.client.info("persistence")["loading"], what="the loading")
            told = [reason(lambda: ann.renew(lease)) for _ in range(5)]
            server.config(key_load_delay=0)
            assert reloaded.result()
        assert told == ["transient"] * 5
        assert before
        assert before <= connected(server)
        ann.release(lease)
        place.close()


def test_after_the_cool_down_one_of_many_callers_tries(
    far: Far, proxy: TcpProxy, people: People, short_cool_down: None
) -> None:
    """Also of threads that ask in one moment."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, ann = far(), people("ann")
    break_down(engine, ann)
    crowd = [people(f"caller{number}") for number in range(12)]
    for tries in range(1, 4):
        wait_for_the_cool_down(engine)
        calls = [caller.start_acquire(Lock(engine, "order:1"), 0) for caller in crowd]
        told = sorted(reason(lambda call=call: done(call)) for call in calls)
        assert told == ["connect"] + ["open"] * (len(crowd) - 1)
        assert proxy.connections_made == FAILURES + tries


def test_an_answer_ends_it_for_everybody(
    far: Far, proxy: TcpProxy, people: People, short_cool_down: None
) -> None:
    """And the three failures that open it again are counted anew."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, ann = far(), people("ann")
    break_down(engine, ann)
    proxy.heal()
    wait_for_the_cool_down(engine)
    ann.release(ann.acquire(Lock(engine, "order:1"), wait=0))
    assert not engine.circuit.is_open
    for caller in [people(f"caller{number}") for number in range(8)]:
        caller.release(caller.acquire(Lock(engine, "order:1"), wait=0))


def test_a_cancelled_probe_keeps_nobody_out(far: Far, proxy: TcpProxy, people: People) -> None:
    """Its place is taken by the next caller once it could have been answered."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, ann = far(), people("ann")
    break_down(engine, ann)
    wait_for_the_cool_down(engine)
    engine.circuit.admit()  # a probe of which nothing more is heard
    assert reason(engine.circuit.admit) == "open"
    proxy.heal()
    wait_until(lambda: not reason(lambda: ann.release(ann.acquire(Lock(engine, "order:1"), 0))))


def test_both_fronts_know_what_one_has_found_out(far: Far, proxy: TcpProxy) -> None:
    """One server, one breaker: of the blocking port and of every event loop."""
    proxy.inject(Fault.BLACK_HOLE)
    engine, sync, loops = far(), People("sync"), People("async")
    try:
        break_down(engine, sync("ann"))
        for number in range(3):
            loops.another_loop()
            bob = loops(f"bob{number}")
            assert reason(lambda bob=bob: bob.acquire(Lock(engine, "order:1"), 0)) == "open"
        assert proxy.connections_made == FAILURES
    finally:
        sync.close()
        loops.close()


def test_who_stands_in_the_queue_keeps_asking(
    far: Far, proxy: TcpProxy, redis_place: RedisPlace, people: People, short_cool_down: None
) -> None:
    """An outage in mid-wait is a delay, also one that opens the breaker."""
    ann, bob = people("ann", "bob")
    engine = far(waiting_slice=scaled(2))
    held = ann.acquire(redis_place.lock(ttl=30))
    waiting = bob.start_acquire(Lock(engine, "order:1"), scaled(15))
    wait_until(lambda: redis_place.engine.show("order:1").waiter_count)
    proxy.refuse()
    wait_until(lambda: engine.circuit.is_open, what="the breaker to open")
    pause(0.3)
    assert not waiting.done()
    proxy.heal()
    ann.release(held)
    bob.release(done(waiting))


def test_who_stands_in_the_queue_gives_up_when_its_time_is_over(
    far: Far, proxy: TcpProxy, redis_place: RedisPlace, people: People, callers_never_probe: None
) -> None:
    """Told that the engine was down, not that the lock was busy."""
    ann, bob = people("ann", "bob")
    engine = far(waiting_slice=scaled(0.2))
    held = ann.acquire(redis_place.lock(ttl=30))
    waiting = bob.start_acquire(Lock(engine, "order:1"), scaled(1.5))
    wait_until(lambda: redis_place.engine.show("order:1").waiter_count)
    proxy.refuse()
    with pytest.raises(EngineUnavailable) as error:
        done(waiting)
    assert not isinstance(error.value, WaitTimeout)
    proxy.heal()
    ann.release(held)


def test_connections_that_break_are_no_outage(
    far: Far, proxy: TcpProxy, redis_place: RedisPlace, people: People
) -> None:
    """A server that restarts breaks all of them at once, and is back."""
    engine, ann = far(), people("ann")
    held = ann.acquire(redis_place.lock(ttl=60))
    crowd = [people(f"caller{number}") for number in range(2 * FAILURES)]
    waiting = [caller.start_acquire(Lock(engine, "order:1"), 30) for caller in crowd]
    wait_until(lambda: redis_place.engine.show("order:1").waiter_count == len(crowd))
    asked = proxy.commands["EVALSHA"] + proxy.commands["EVAL"]
    proxy.cut()
    wait_until(
        lambda: proxy.commands["EVALSHA"] + proxy.commands["EVAL"] >= asked + len(crowd),
        what="all of them to ask again",
    )
    assert not engine.circuit.is_open
    ann.release(held)
    left = dict(zip(waiting, crowd, strict=True))
    while left:
        first = wait_until(lambda: next((call for call in left if call.done()), None))
        left.pop(first).release(done(first))


def test_a_server_that_answers_no_is_not_silent(fresh_redis: RedisServer) -> None:
    """A wrong password is told each time: who is refused that way must see it."""
    fresh_redis.client.config_set("requirepass", "word")
    engine = RedisEngine("locked", fresh_redis.url, EngineOptions())
    told = [reason(lambda: Lock(engine, "order:1").acquire(wait=0)) for _ in range(2 * FAILURES)]
    assert told == ["refused"] * 2 * FAILURES
    assert not engine.circuit.is_open
    fresh_redis.client.execute_command("AUTH", "word")
    fresh_redis.client.config_set("requirepass", "")


# ------------------------------------------------------------------ the watchdog


def test_renewals_go_on_through_an_open_breaker_and_close_it(
    far: Far, proxy: TcpProxy, people: People, callers_never_probe: None
) -> None:
    """Nobody asks, and no caller could: a lease outlives an outage shorter than its ttl."""
    engine, ann = far(), people("ann")
    ttl = scaled(2.4)
    lease = ann.acquire(Lock(engine, "order:1", ttl=ttl))
    proxy.refuse()
    bob = people("bob")
    break_down(engine, bob)
    assert reason(lambda: bob.acquire(Lock(engine, "order:2"), wait=0)) == "open"
    proxy.heal()
    wait_until(lambda: not engine.circuit.is_open, what="the watchdog to find the server")
    bob.release(bob.acquire(Lock(engine, "order:2"), wait=0))
    first_end = lease.valid_until
    wait_until(lambda: lease.valid_until > first_end, what="a renewal")
    assert lease.live
    ann.release(lease)


def test_what_was_left_half_done_is_undone_through_an_open_breaker(
    far: Far, proxy: TcpProxy, redis_place: RedisPlace, people: People, callers_never_probe: None
) -> None:
    """The grant whose answer was lost, and the lease whose release found nobody."""
    engine, ann = far(), people("ann")
    held = ann.acquire(Lock(engine, "order:held", ttl=60))
    port = engine._sync or next(iter(engine._loops.values()))
    wait_until(lambda: port.watchdog._sweeps.look_at, what="the watchdog's first look")
    idle, used = port.transport._idle, port.transport._open  # type: ignore[attr-defined]
    wait_until(lambda: idle and len(idle) == len(used), what="an open connection to ask on")
    proxy.inject(Fault.DROP_REPLIES)
    assert reason(lambda: ann.acquire(Lock(engine, "order:asked", ttl=60), wait=0)) == "timeout"
    wait_until(lambda: redis_place.engine.show("order:asked"), what="the grant nobody heard of")
    proxy.refuse()
    break_down(engine, ann)
    assert reason(lambda: ann.release(held)) == "open"
    proxy.heal()
    wait_until(lambda: not engine.circuit.is_open, what="the watchdog to find the server")
    for name in ("order:held", "order:asked"):
        with Lock(redis_place.engine, name, wait=scaled(5)):
            pass


def test_a_lease_taken_through_a_loop_is_renewed_there(
    far: Far, proxy: TcpProxy, callers_never_probe: None
) -> None:
    """Each loop's watchdog has a way of its own around the breaker."""
    loops = People("async")
    try:
        ann = loops("ann")
        engine = far()
        lease = ann.acquire(Lock(engine, "order:1", ttl=scaled(2.4)))
        watchdog = next(iter(engine._loops.values())).watchdog
        assert engine._sync is None
        proxy.refuse()
        break_down(engine, ann)
        proxy.heal()
        wait_until(lambda: not engine.circuit.is_open, what="the loop's watchdog to find it")
        assert lease.live
        assert watchdog.port.transport._idle is engine._loops[watchdog._loop].transport._idle
        ann.release(lease)
    finally:
        loops.close()


# ------------------------------------------------------------------ alerts, forks


def test_an_outage_is_told_once_and_so_is_its_end(
    far: Far, proxy: TcpProxy, short_cool_down: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once for every request; and how long it lasted."""
    seen: list[tuple[str, Any]] = []
    proxy.inject(Fault.BLACK_HOLE)
    engine = far()
    engine.observer = lambda kind, subject: seen.append((kind, subject))
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "lockapp"):
        for _ in range(4 * FAILURES):
            assert reason(engine.ping)
        assert [kind for kind, _ in seen] == ["unavailable"]
        proxy.heal()
        wait_until(lambda: not reason(engine.ping))
    assert [kind for kind, _ in seen] == ["unavailable", "restored"]
    outage = seen[1][1]
    assert (outage.alias, outage.reason) == (engine.alias, "connect")
    assert 0 < outage.seconds <= time.monotonic() - began
    told = [record for record in caplog.records if hasattr(record, "lockapp_alias")]
    assert [record.levelname for record in told] == ["ERROR", "WARNING"]
    assert told[0].lockapp_reason == "connect"
    assert told[1].lockapp_outage_s == outage.seconds


def test_a_forked_child_finds_out_for_itself(far: Far, proxy: TcpProxy) -> None:
    """It starts with a closed breaker; its parent's stays open."""
    proxy.inject(Fault.BLACK_HOLE)
    engine = far()
    while not engine.circuit.is_open:
        assert reason(engine.ping)
    proxy.heal()

    def child() -> object:
        before = engine.circuit.is_open
        engine.ping()
        return [before, engine.circuit.is_open]

    assert in_forked_child(child) == [False, False]
    assert engine.circuit.is_open


def test_threads_that_fail_together_open_it_once(far: Far, proxy: TcpProxy) -> None:
    """However many of them: one outage, one alert."""
    seen: list[str] = []
    proxy.inject(Fault.BLACK_HOLE)
    engine = far()
    engine.observer = lambda kind, subject: seen.append(kind)
    crowd = [threading.Thread(target=lambda: reason(engine.ping)) for _ in range(5 * FAILURES)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(scaled(10))
    assert seen == ["unavailable"]


def test_a_server_that_accepts_and_says_nothing_costs_a_connect_timeout(prefix: str) -> None:
    """As one that was stopped: its kernel still takes connections. Commands may take longer."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        options = {"prefix": prefix, "connect_timeout": scaled(0.2), "command_timeout": scaled(9)}
        engine = RedisEngine("silent", url, EngineOptions.parse(options))
        with stopwatch() as watch, pytest.raises(EngineUnavailable) as error:
            Lock(engine, "order:1").acquire(wait=0)
        assert error.value.reason == "connect"
        assert watch.seconds < scaled(3)
        engine.close()
