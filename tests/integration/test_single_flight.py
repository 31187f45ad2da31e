"""single_flight within one process: on both engines, and both fronts."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from lockapp import (
    AlreadyHeld,
    EngineUnavailable,
    NotAcquired,
    WaitTimeout,
    asingle_flight,
    lock,
    locks,
    single_flight,
)
from lockapp.core.run import run_sync
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import FlightFailed
from lockapp.single_flight import store
from tests.proxy import TcpProxy
from tests.servers import RedisServer, free_port
from tests.timing import await_until, pause, scaled, stopwatch, wait_until

SLICE_S = 0.5


class Front:
    """Callers of one front: each a thread, with a loop of its own where it is asynchronous."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._pool = ThreadPoolExecutor(40)

    def start(self, *parts: Any, compute: Callable[[], Any], **options: Any) -> Future[Any]:
        """Begin a call; `compute` blocks its own thread only."""
        options.setdefault("ttl", 60)
        if self.kind == "sync":
            return self._pool.submit(single_flight, *parts, compute=compute, **options)

        async def acompute() -> Any:
            return await asyncio.to_thread(compute)

        async def call() -> Any:
            try:
                return await asingle_flight(*parts, compute=acompute, **options)
            finally:
                await locks.aclose_all()

        return self._pool.submit(lambda: asyncio.run(call()))

    def call(self, *parts: Any, compute: Callable[[], Any], **options: Any) -> Any:
        return self.start(*parts, compute=compute, **options).result(scaled(20))

    def close(self) -> None:
        self._pool.shutdown()


class Work:
    """A computation that can be held up."""

    def __init__(self, value: Any = "value", *, open_: bool = True) -> None:
        self.value = value
        self.runs = 0
        self.gate = threading.Event()
        self.started = threading.Event()
        if open_:
            self.gate.set()

    def __call__(self) -> Any:
        self.runs += 1
        self.started.set()
        assert self.gate.wait(scaled(20))
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    def await_start(self) -> None:
        assert self.started.wait(scaled(10))


@pytest.fixture(params=["sync", "async"])
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    made = Front(request.param)
    yield made
    made.close()


def use_redis(settings: Any, server: RedisServer, prefix: str, url: str = "", **more: Any) -> None:
    options = {"prefix": prefix, "waiting_slice": SLICE_S, "tombstone": 0.2, **more}
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://127.0.0.1:{server.port}/1",
        }
    }
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": url or server.url,
            "OPTIONS": options,
        }
    }


def litter(server: RedisServer, prefix: str) -> list[str]:
    """What is left on the engine's server, beside the lasting keys and landings soon to go."""
    lasting = {"fence", "events", "number", "counts", "meta"}
    client, left = server.client, []
    for key in client.scan_iter(f"{prefix}:*"):
        landing = key.startswith(f"{prefix}:{{0}}:flight:")
        soon = -1 != client.pttl(key) <= 2000 * SLICE_S
        if key.rsplit(":", 1)[-1] not in lasting and not (landing and soon):
            left.append(key)
    return left


@pytest.fixture(params=["redis", "memory"])
def place(request: pytest.FixtureRequest, settings: Any, prefix: str) -> Iterator[str]:
    """An engine and a cache that fits it; at the end all that was stored goes by itself, soon."""
    if request.param == "memory":
        settings.CACHES = {
            "default": {
                "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
                "LOCATION": prefix,
            }
        }
        settings.LOCKAPP = {
            "default": {
                "ENGINE": "lockapp.engines.memory.MemoryEngine",
                "LOCATION": prefix,
                "OPTIONS": {"prefix": prefix, "waiting_slice": SLICE_S},
            }
        }
        yield "memory"
        landed = locks["default"].server.flights._landed.values()  # type: ignore[attr-defined]
        soon_ms = time.time() * 1000 + 2000 * SLICE_S + 1000
        assert all(until <= soon_ms for _, until in landed)
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        use_redis(settings, server, prefix)
        yield "redis"
        end = time.monotonic() + scaled(3)
        wait_until(lambda: not litter(server, prefix) or time.monotonic() > end)
        assert litter(server, prefix) == []


def following() -> int:
    """How many callers wait for a landing."""
    engine = locks["default"]
    if isinstance(engine, RedisEngine):
        told = run_sync(engine.sync.transport.command("CLIENT", "LIST")).decode()  # type: ignore[attr-defined]
        return len(re.findall(r" flags=\S*b.* cmd=xread ", told))
    return sum(map(len, engine.server.flights._followers.values()))  # type: ignore[attr-defined]


def followers_wait(count: int) -> None:
    """Let so many callers have asked, and come to wait for the leader."""
    wait_until(lambda: following() == count, what="the followers to wait")


@pytest.mark.usefixtures("place")
class TestFlight:
    def test_the_others_get_the_result_of_the_first(self, front: Front) -> None:
        """Ten callers, one computation; fresh results ask nobody."""
        work = Work({"n": 1}, open_=False)
        calls = [front.start("rag", 1, compute=work) for _ in range(10)]
        followers_wait(9)
        with stopwatch() as watch:
            work.gate.set()
            assert [call.result(scaled(10)) for call in calls] == [{"n": 1}] * 10
        assert watch.seconds < scaled(1)
        assert work.runs == 1
        assert front.call("rag", 1, compute=work) == {"n": 1}
        assert front.call("rag", 2, compute=work) == {"n": 1}
        assert work.runs == 2

    def test_nothing_is_left_behind(self, front: Front, place: str, request: Any) -> None:
        """After two slices, and after the ttl in the cache."""
        work = Work(open_=False)
        calls = [front.start("rag", compute=work, ttl=0.1, stale=0.1) for _ in range(3)]
        followers_wait(2)
        work.gate.set()
        assert [call.result(scaled(10)) for call in calls] == ["value"] * 3
        options, began = locks["default"].options, time.monotonic()
        if place == "memory":
            flights = locks["default"].server.flights  # type: ignore[attr-defined]
            wait_until(lambda: flights.names() == [], what="the landing to go")
        else:
            client = request.getfixturevalue("redis_server").client
            landings = f"{options.prefix}:{{0}}:flight:*"
            wait_until(lambda: not list(client.scan_iter(landings)), what="the landing to go")
        # A cache keeps seconds: it may forget a moment after the landing, which has a time as long.
        key = store.key_of("rag", options.prefix)
        wait_until(lambda: caches["default"].get(key) is None, what="the value to go")
        assert time.monotonic() - began < scaled(2 * SLICE_S + 1)

    def test_none_is_a_result(self, front: Front) -> None:
        """It is cached and shared as any other."""
        work = Work(None, open_=False)
        calls = [front.start("rag", compute=work) for _ in range(3)]
        followers_wait(2)
        work.gate.set()
        assert [call.result(scaled(10)) for call in calls] == [None] * 3
        assert front.call("rag", compute=work) is None
        assert work.runs == 1

    def test_an_error_is_shared_with_those_who_wait_and_not_kept(self, front: Front) -> None:
        """The next caller computes anew."""
        work = Work(LookupError("no index"), open_=False)
        calls = [front.start("rag", compute=work) for _ in range(5)]
        followers_wait(4)
        work.gate.set()
        for call in calls:
            with pytest.raises(LookupError, match="no index"):
                call.result(scaled(10))
        assert work.runs == 1
        assert front.call("rag", compute=Work("better")) == "better"

    def test_an_error_that_cannot_be_carried_arrives_as_text(self, front: Front) -> None:
        """One that pickle can write and not read, too."""

        class Local(Exception):
            pass

        work = Work(Local("deep"), open_=False)
        calls = [front.start("rag", compute=work)]
        work.await_start()
        calls.append(front.start("rag", compute=work))
        followers_wait(1)
        work.gate.set()
        with pytest.raises(Local):
            calls[0].result(scaled(10))
        with pytest.raises(FlightFailed, match="deep") as caught:
            calls[1].result(scaled(10))
        assert caught.value.name == "rag"
        assert "Local" in caught.value.error

    def test_ttl_0_shares_with_those_who_wait_only(self, front: Front) -> None:
        """Nothing is kept for later."""
        work = Work(open_=False)
        calls = [front.start("rag", compute=work, ttl=0) for _ in range(4)]
        followers_wait(3)
        work.gate.set()
        assert [call.result(scaled(10)) for call in calls] == ["value"] * 4
        assert work.runs == 1
        front.call("rag", compute=work, ttl=0)
        assert work.runs == 2

    def test_the_stale_value_is_returned_while_one_computes(self, front: Front) -> None:
        """At once, to all but the one that computes."""
        options = {"ttl": 0.05, "stale": 60}
        assert front.call("rag", compute=Work("old"), **options) == "old"
        pause(0.1)
        work = Work("new", open_=False)
        leader = front.start("rag", compute=work, **options)
        work.await_start()
        with stopwatch() as watch:
            others = [front.start("rag", compute=work, **options) for _ in range(5)]
            assert [call.result(scaled(5)) for call in others] == ["old"] * 5
        assert watch.seconds < scaled(1)
        work.gate.set()
        assert leader.result(scaled(5)) == "new"
        assert work.runs == 1

    def test_an_old_value_survives_a_failed_recomputation(self, front: Front) -> None:
        """The one that computed sees the error; who comes meanwhile gets the old value."""
        options = {"ttl": 0.05, "stale": 60}
        front.call("rag", compute=Work("old"), **options)
        pause(0.1)
        with pytest.raises(LookupError):
            front.call("rag", compute=Work(LookupError()), **options)
        work = Work("new", open_=False)
        leader = front.start("rag", compute=work, **options)
        work.await_start()
        assert front.call("rag", compute=work, **options) == "old"
        work.gate.set()
        assert leader.result(scaled(5)) == "new"

    def test_a_fallback_when_it_takes_too_long(self, front: Front) -> None:
        """A value or a function; else WaitTimeout, or NotAcquired without waiting."""
        work = Work(open_=False)
        leader = front.start("rag", compute=work)
        work.await_start()
        assert front.call("rag", compute=work, wait=0.1, fallback="degraded") == "degraded"
        assert front.call("rag", compute=work, wait=0, fallback=lambda: [1]) == [1]
        assert front.call("rag", compute=work, wait=0, fallback=None) is None
        with pytest.raises(WaitTimeout) as caught:
            front.call("rag", compute=work, wait=0.1)
        assert caught.value.waited >= 0.1
        assert caught.value.holder.description["why"] == "single flight"
        with pytest.raises(NotAcquired) as at_once:
            front.call("rag", compute=work, wait=0)
        assert not isinstance(at_once.value, WaitTimeout)
        work.gate.set()
        assert leader.result(scaled(5)) == "value"
        assert work.runs == 1

    def test_a_lost_lease_keeps_the_result_from_the_others(self, front: Front) -> None:
        """Its own caller gets it; one of the others computes."""
        first, second = Work("first", open_=False), Work("second", open_=False)
        leader = front.start("rag", compute=first)
        first.await_start()
        others = [front.start("rag", compute=second) for _ in range(4)]
        followers_wait(4)
        engine = locks["default"]
        state = engine.show("rag")
        assert state
        engine.force_release("rag", state.holders[0].fence, actor="alice")
        second.await_start()
        first.gate.set()
        assert leader.result(scaled(5)) == "first"
        second.gate.set()
        assert [call.result(scaled(5)) for call in others] == ["second"] * 4
        assert (first.runs, second.runs) == (1, 1)
        assert front.call("rag", compute=Work("third")) == "second"

    def test_a_lost_broadcast_costs_a_slice(
        self, front: Front, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The followers ask again by themselves."""
        from lockapp.single_flight import leader as module

        async def lose(*_: Any) -> bool:
            return True

        monkeypatch.setattr(module, "_announce", lose)
        work = Work(open_=False)
        calls = [front.start("rag", compute=work) for _ in range(4)]
        followers_wait(3)
        work.gate.set()
        with stopwatch() as watch:
            assert [call.result(scaled(10)) for call in calls] == ["value"] * 4
        assert watch.seconds < scaled(4 * SLICE_S + 1)
        assert work.runs == 1

    def test_a_result_that_cannot_be_stored_goes_on_to_the_next(
        self, front: Front, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Logged; each computes its own, one at a time."""
        work = Work(threading.Lock(), open_=False)
        calls = [front.start("rag", compute=work) for _ in range(3)]
        followers_wait(2)
        work.gate.set()
        assert [call.result(scaled(10)) for call in calls] == [work.value] * 3
        assert work.runs == 3
        assert "could not be stored" in caplog.text

    def test_a_lock_held_for_other_reasons_is_waited_for(self, front: Front) -> None:
        """Its release is no landing: it is noticed within a slice."""
        with lock("rag"):
            call = front.start("rag", compute=Work())
            followers_wait(1)
        assert call.result(scaled(5)) == "value"

    def test_it_does_not_wait_for_itself(self, front: Front) -> None:
        """A computation that asks for itself is a bug, and is told so."""
        if front.kind == "async":

            async def inner() -> Any:
                return await asingle_flight("rag", compute=inner, ttl=1)

            async def outer() -> Any:
                try:
                    return await inner()
                finally:
                    await locks.aclose_all()

            with pytest.raises(AlreadyHeld, match="rag"):
                asyncio.run(outer())
        else:

            def again() -> Any:
                return single_flight("rag", compute=again, ttl=1)

            with pytest.raises(AlreadyHeld, match="rag"):
                again()

    def test_an_interrupted_leader_hands_over_at_once(self, front: Front) -> None:
        """SystemExit, Ctrl-C and the like are no result."""
        first, second = Work(SystemExit(3), open_=False), Work("second")
        leader = front.start("rag", compute=first)
        first.await_start()
        others = [front.start("rag", compute=second) for _ in range(4)]
        followers_wait(4)
        with stopwatch() as watch:
            first.gate.set()
            assert [call.result(scaled(5)) for call in others] == ["second"] * 4
        assert watch.seconds < scaled(SLICE_S * 0.7)
        with pytest.raises(SystemExit):
            leader.result(scaled(5))
        assert second.runs == 1


# ------------------------------------------------------------------ cancellation


async def test_a_cancelled_leader_hands_over_at_once(place: str) -> None:
    """Nothing stays held, and one follower computes."""
    started = asyncio.Event()

    async def endless() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    async def quick() -> str:
        return "quick"

    leader = asyncio.create_task(asingle_flight("rag", compute=endless, ttl=60))
    await started.wait()
    followers = [
        asyncio.create_task(asingle_flight("rag", compute=quick, ttl=60)) for _ in range(5)
    ]
    await await_until(lambda: following() == 5, what="the followers to wait")
    begun = time.monotonic()
    leader.cancel()
    assert await asyncio.gather(*followers) == ["quick"] * 5
    assert time.monotonic() - begun < scaled(SLICE_S * 0.7)
    with pytest.raises(asyncio.CancelledError):
        await leader
    assert await locks["default"].ashow("rag") is None
    await locks.aclose_all()


async def test_a_cancelled_follower_leaves_nothing(place: str) -> None:
    """The flight goes on without it."""
    gate, started = asyncio.Event(), asyncio.Event()

    async def compute() -> str:
        started.set()
        await gate.wait()
        return "value"

    leader = asyncio.create_task(asingle_flight("rag", compute=compute, ttl=60))
    await started.wait()
    follower = asyncio.create_task(asingle_flight("rag", compute=compute, ttl=60))
    await await_until(lambda: following() == 1, what="the follower to wait")
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower
    state = await locks["default"].ashow("rag")
    assert state
    assert state.waiter_count == 0
    gate.set()
    assert await leader == "value"
    await locks.aclose_all()


async def test_cancelled_at_any_moment_nothing_stays(place: str) -> None:
    """Leaders and followers, again and again; those that are left get their answer."""
    chance = random.Random(7)

    async def compute() -> str:
        await asyncio.sleep(chance.random() * 0.02)
        return "value"

    async def caller(number: int) -> str:
        return await asingle_flight("rag", number, compute=compute, ttl=60)

    for number in range(25):
        callers = [asyncio.create_task(caller(number)) for _ in range(6)]
        doomed = callers[:5] if number % 2 else callers[1:]
        for task in doomed:
            await asyncio.sleep(chance.random() * 0.01)
            task.cancel()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        (left,) = [task for task in callers if task not in doomed]
        assert left.result() == "value"
        assert all(
            outcome == "value" or isinstance(outcome, asyncio.CancelledError)
            for outcome in outcomes
        )

    async def nothing_held() -> bool:
        return (await locks["default"].asnapshot()).total == 0

    await await_until(nothing_held)
    await locks.aclose_all()


# ------------------------------------------------------------------ kinds of caches


@pytest.fixture(params=["file", "json"])
def other_cache(
    request: pytest.FixtureRequest, settings: Any, redis_server: RedisServer, prefix: str,
    tmp_path: Path,
) -> str:  # fmt: skip
    """A cache of another kind, on the Redis engine."""
    use_redis(settings, redis_server, prefix)
    if request.param == "file":
        backend = {
            "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
            "LOCATION": str(tmp_path),
        }
    else:
        backend = {
            **settings.CACHES["default"],
            "OPTIONS": {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"},
        }
    settings.CACHES = {"default": backend}
    return str(request.param)


def test_any_cache_will_do(other_cache: str) -> None:
    """Values as its serializer carries them; errors at least as text."""
    front = Front("sync")

    def started(work: Work) -> list[Future[Any]]:
        calls = [front.start("rag", compute=work) for _ in range(3)]
        followers_wait(2)
        work.gate.set()
        return calls

    for call in started(broken := Work(LookupError("no index"), open_=False)):
        with pytest.raises((LookupError, FlightFailed), match="no index"):
            call.result(scaled(10))
    assert broken.runs == 1
    work = Work({"n": [1, None]}, open_=False)
    assert [call.result(scaled(10)) for call in started(work)] == [{"n": [1, None]}] * 3
    assert work.runs == 1
    assert front.call("rag", compute=work) == {"n": [1, None]}
    front.close()


# ------------------------------------------------------------------ the decorator


@pytest.mark.usefixtures("place")
class TestCached:
    def test_fields_name_the_call(self) -> None:
        """What is in no part tells nothing apart."""
        runs = []

        @single_flight.cached("answer", "{question.real}", "eu", ttl=60)
        def answer(question: int, polite: bool = False) -> list[int]:
            """Answer it."""
            runs.append(question)
            return [question]

        assert answer(1) == answer(1, polite=True) == answer(question=1) == [1]
        assert answer(2) == [2]
        assert runs == [1, 2]
        assert answer.__doc__ == "Answer it."
        assert single_flight("answer", 1, "eu", compute=lambda: [0], ttl=1) == [1]

    def test_without_parts_all_arguments_do(self) -> None:
        """Under the function's dotted name."""
        runs = []

        @single_flight.cached(ttl=60)
        def add(a: int, b: int = 1) -> int:
            runs.append((a, b))
            return a + b

        assert (add(1), add(1, 1), add(1, 2)) == (2, 2, 3)
        assert runs == [(1, 1), (1, 2)]

    async def test_async_functions(self) -> None:
        """Stay coroutine functions."""
        runs = []

        @single_flight.cached("answer", "{question}", ttl=60)
        async def answer(question: str) -> str:
            runs.append(question)
            await asyncio.sleep(0.05)
            return question.upper()

        assert asyncio.iscoroutinefunction(answer)
        assert await asyncio.gather(*[answer("a") for _ in range(20)]) == ["A"] * 20
        assert runs == ["a"]
        await locks.aclose_all()

    def test_mistakes_are_told_when_decorating(self) -> None:
        """By their name."""

        def function(order: int) -> None: ...

        for parts, error, match in (
            (("answer", "{quest}"), TypeError, "no parameter 'quest'"),
            (("answer", "a{order}"), ValueError, "exactly one field"),
            (("answer", "{order._meta}"), ValueError, "exactly one field"),
            (("{order}",), ValueError, "family"),
            ((7, "{order}"), TypeError, "family"),
        ):
            with pytest.raises(error, match=match):
                single_flight.cached(*parts, ttl=1)(function)
        with pytest.raises(TypeError, match="ttl"):
            single_flight.cached("a", ttl="5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="stale"):
            single_flight.cached("a", ttl=5, stale=-1)

    def test_a_value_that_is_no_part_is_told_by_the_call(self) -> None:
        """None names nothing."""
        call = single_flight.cached("answer", "{order}", ttl=1)(lambda order: order)
        with pytest.raises(TypeError, match="part 2"):
            call(None)


# ------------------------------------------------------------------ what can't be


@pytest.mark.usefixtures("place")
def test_an_async_computation_needs_the_twin() -> None:
    """And leaves no coroutine that was never awaited."""

    async def compute() -> int:
        return 1

    with pytest.raises(TypeError, match="asingle_flight"):
        single_flight("rag", compute=compute, ttl=1)


@pytest.mark.usefixtures("place")
def test_unknown_caches_and_numbers_are_refused() -> None:
    """Before anything is sent."""
    with pytest.raises(ImproperlyConfigured, match="nowhere"):
        single_flight("rag", compute=int, ttl=1, cache="nowhere")
    with pytest.raises(TypeError, match="ttl"):
        single_flight("rag", compute=int, ttl=True)
    with pytest.raises(ValueError, match="stale"):
        single_flight("rag", compute=int, ttl=1, stale=-1)
    with pytest.raises(ValueError, match="wait"):
        single_flight("rag", compute=int, ttl=1, wait=-1)


@pytest.mark.usefixtures("place")
def test_what_others_put_into_the_cache_is_not_taken_for_a_result() -> None:
    """Nor is the form of another release."""
    key = store.key_of("rag", locks["default"].options.prefix)
    for value in ("text", (0, True, "old", 1, 1.0, 9e9, 9e9), ()):
        caches["default"].set(key, value)
        assert single_flight("rag", compute=lambda: "new", ttl=60) == "new"


class Moved:
    """A class that the next release does not have."""


@pytest.mark.usefixtures("place")
def test_a_value_that_cannot_be_read_any_more_is_computed_anew(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a deploy, a value that the release before has pickled; what comes next replaces it."""
    assert type(front.call("rag", compute=Work(Moved()))) is Moved
    monkeypatch.delattr(sys.modules[__name__], "Moved")
    assert front.call("rag", compute=Work("new")) == "new"
    assert "could not be read from the cache" in caplog.text
    assert front.call("rag", compute=Work("newer")) == "new"


def test_without_the_cache_each_computes_its_own(
    settings: Any, front: Front, redis_server: RedisServer, prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Under the lock, as if nothing were there; the log says why."""
    use_redis(settings, redis_server, prefix)
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://127.0.0.1:{free_port()}/1",
        }
    }
    work = Work()
    assert [front.call("rag", compute=work) for _ in range(2)] == ["value"] * 2
    assert work.runs == 2
    assert "could not be read from the cache" in caplog.text
    locks.close_all()


def test_long_names_make_short_keys() -> None:
    """Memcached takes 250 characters."""
    keys = {store.key_of("x" * 190 + end, "p" * 64) for end in "ab"}
    assert len(keys) == 2
    assert all(len(key) <= store.KEY_LIMIT for key in keys)


def test_a_cache_of_one_process_is_warned_of_once(
    redis_locks: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an engine that others share."""
    monkeypatch.setattr(store, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            single_flight("rag", number, compute=int, ttl=1)
    assert caplog.text.count("does not carry results to other processes") == 1


# ------------------------------------------------------------------ a server that can't be asked


def test_without_the_engine(
    settings: Any, front: Front, redis_server: RedisServer, prefix: str
) -> None:
    """Fresh and stale results are served; else the fallback, else the error."""
    with TcpProxy(redis_server.port) as between:
        use_redis(
            settings, redis_server, prefix, between.url,
            connect_timeout=0.2, command_timeout=0.2,
        )  # fmt: skip
        assert front.call("rag", compute=Work("old"), ttl=0.05, stale=60) == "old"
        assert front.call("kept", compute=Work("kept"), ttl=60) == "kept"
        pause(0.1)
        between.refuse()
        work = Work("new")
        assert front.call("rag", compute=work, ttl=60) == "old"
        assert front.call("kept", compute=work, ttl=60) == "kept"
        assert front.call("other", compute=work, fallback="degraded") == "degraded"
        with pytest.raises(EngineUnavailable):
            front.call("other", compute=work)
        assert work.runs == 0
        between.heal()  # what was begun is undone
        wait_until(lambda: not locks["default"].sync.watchdog._undo, what="undoing to end")
        locks.close_all()
    wait_until(lambda: litter(redis_server, prefix) == [], what="tombstones to go")


def test_a_server_that_restarts_under_its_followers(
    settings: Any, front: Front, fresh_redis: RedisServer, prefix: str
) -> None:
    """They go on asking; the leader's result is its own, and one of them computes."""
    use_redis(settings, fresh_redis, prefix)
    first, second = Work("first", open_=False), Work("second")
    leader = front.start("rag", compute=first)
    first.await_start()
    others = [front.start("rag", compute=second) for _ in range(3)]
    followers_wait(3)
    fresh_redis.restart()
    assert [call.result(scaled(10)) for call in others] == ["second"] * 3
    first.gate.set()
    assert leader.result(scaled(10)) == "first"
    assert second.runs == 1
