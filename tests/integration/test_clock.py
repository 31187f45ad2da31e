"""Clocks that jump: a client's changes nothing, a server's does what the reference says.

The server's jump is an offset that the scripts' one reading of the clock adds; everything else is
real: server, watchdogs, waiting. (libfaketime stops a server that uses jemalloc at its start.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.redis.scripts import build_all
from lockapp.exceptions import NotAcquired
from lockapp.lock import Lock
from tests.servers import RedisServer
from tests.timing import pause, scaled, stopwatch, wait_until

NAME = "clock:1"
HOUR_S = 3600
OFFSET_CLOCK = """
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2] + (tonumber(redis.call('GET', 'offset')) or 0)
local now_ms = math.floor(now_us / 1000)
local us_text, ms_text = string.format('%.0f', now_us), string.format('%.0f', now_ms)
"""


class JumpingServer:
    """A server whose clock can be set."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.options = EngineOptions.parse(
            {"ttl": scaled(1), "claim_window": scaled(0.5), "waiting_slice": scaled(0.3)}
        )
        self.scripts = build_all({"_shared/clock.lua": OFFSET_CLOCK})
        self.engines: list[RedisEngine] = []

    def jump(self, seconds: float) -> None:
        """Set the clock so far ahead of (negative: behind) the true time."""
        self.server.client.set("offset", round(seconds * 1e6))

    def engine(self) -> RedisEngine:
        """One more client of it."""
        made = RedisEngine("jumping", self.server.url, self.options)
        made.scripts = self.scripts
        self.engines.append(made)
        return made


@pytest.fixture
def jumping(fresh_redis: RedisServer) -> Iterator[JumpingServer]:
    """A server whose clock can be set, and its clients."""
    made = JumpingServer(fresh_redis)
    yield made
    for engine in made.engines:
        engine.close()


def test_a_server_that_jumps_ahead_ends_leases_early_and_their_holders_learn_it(
    jumping: JumpingServer,
) -> None:
    """At the next renewal; the next holder's fence is larger."""
    told = threading.Event()
    lease = Lock(jumping.engine(), NAME).acquire()
    lease.on_lost(lambda lost: told.set())
    jumping.jump(HOUR_S)
    with Lock(jumping.engine(), NAME, wait=scaled(5)) as other:
        assert other.fence > lease.fence
        assert told.wait(scaled(5))
        assert lease.lost
        assert lease.lost_reason in ("expired", "gone")
        assert other.live


def test_a_server_that_jumps_back_prolongs_nothing(jumping: JumpingServer) -> None:
    """A holder that lives goes on; one that does not is waited for no longer than its ttl."""
    engine = jumping.engine()
    lease = Lock(engine, NAME).acquire()
    jumping.jump(-HOUR_S)
    with pytest.raises(NotAcquired):
        Lock(jumping.engine(), NAME, wait=0).acquire()
    state = engine.show(NAME)
    assert state is not None
    assert state.holders[0].remaining_ms <= engine.options.ttl_ms
    before = lease.valid_until
    wait_until(lambda: lease.valid_until > before, what="a renewal")
    assert lease.live
    lease.renewing = False  # from here on as good as dead
    with stopwatch() as watch, Lock(jumping.engine(), NAME, wait=scaled(10)) as other:
        assert watch.seconds < scaled(3)
        assert other.fence > lease.fence
        assert lease.lost, "the server never ends a lease before its holder does"


def test_a_client_whose_wall_clock_jumps_notices_nothing(
    redis_url: str, prefix: str, no_litter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holding, renewing and waiting go by the boot clock."""
    engine = RedisEngine("wall", redis_url, EngineOptions.parse({"prefix": prefix, "ttl": 0.6}))
    real, jumped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumped[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + jumped[0]) * 1e9))
    for jump in (HOUR_S, -HOUR_S):
        jumped[0] = 0.0
        with Lock(engine, NAME, ttl=scaled(1.5)) as lease:
            jumped[0] = jump
            assert lease.live
            assert 0 < lease.remaining <= scaled(1.5)
            pause(2)
            assert lease.live, "it was renewed"
            answers: list[float] = []

            def wait(answers: list[float] = answers) -> None:
                with stopwatch() as watch, pytest.raises(NotAcquired):
                    Lock(engine, NAME, wait=scaled(0.3)).acquire()
                answers.append(watch.seconds)

            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(scaled(10))
            assert scaled(0.25) < answers[0] < scaled(3)
            assert lease.live
    engine.close()
