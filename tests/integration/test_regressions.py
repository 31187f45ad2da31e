"""Faults found on paper and reproduced in sketches, each met once on a real server.

The stepping harness (``test_interleavings``) meets the same faults in every order; here they come
as they would at three in the morning: killed and frozen processes, cut connections, full memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockapp.context import holder_details
from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import EngineUnavailable
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.contract.processes import freeze
from tests.proxy import Fault, TcpProxy
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch, wait_until

ROOT = Path(__file__).parents[2]
NAME = "order:7"


@pytest.fixture
def engine(redis_url: str, prefix: str, no_litter: None) -> Iterator[RedisEngine]:
    """An engine of this process on the shared server."""
    made = RedisEngine("default", redis_url, EngineOptions(prefix=prefix))
    yield made
    made.close()


@pytest.fixture
def actor(redis_url: str, prefix: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start other processes that take locks; ended by their own pid."""
    started: list[subprocess.Popen[str]] = []

    def start(verb: str, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.contract.actor", redis_url, prefix, NAME, verb]
        process = subprocess.Popen(
            [*command, *map(str, words)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    """Read what an actor says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def waiters(engine: RedisEngine) -> int:
    """How many wait for the lock."""
    state = engine.show(NAME)
    return 0 if state is None else state.waiter_count


def test_holder_and_first_waiter_die_together(engine: RedisEngine, actor: Callable) -> None:
    """The second waiter gets the lock after one lease and one claim window."""
    holder = actor("hold", scaled(1))
    assert read_line(holder).startswith("held")
    first = actor("visit", ".", 1, "sync")
    wait_until(lambda: waiters(engine) == 1, what="the first waiter")
    got: list[float] = []

    def wait() -> None:
        with stopwatch() as watch, Lock(engine, NAME, wait=30):
            got.append(watch.seconds)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: waiters(engine) == 2, what="the second waiter")
    for process in (holder, first):
        process.kill()
        process.wait()
    thread.join(scaled(15))
    claim_s = engine.options.claim_window_ms / 1000
    assert got
    assert got[0] < scaled(1) + claim_s + scaled(1.5)


def test_a_waiter_frozen_across_its_claim_does_not_believe_its_grant(
    engine: RedisEngine, redis_server: RedisServer, actor: Callable, tmp_path: Path
) -> None:
    """It finds a stale grant when it wakes up, asks, and queues again."""
    held = Lock(engine, NAME).acquire()
    frozen = actor("visit", tmp_path, 1, "sync")
    wait_until(lambda: waiters(engine) == 1, what="the waiter to queue")
    # The point is that it sleeps through its claim.
    wait_until(lambda: redis_server.blocked("blpop") == 1, what="the waiter to block")
    freeze(frozen)
    held.release()
    with Lock(engine, NAME, wait=10) as lease:
        assert lease.waited > engine.options.claim_window_ms / 1000 - 0.5
        mark = tmp_path / "inside"
        mark.touch(exist_ok=False)  # the other one fails on this if it enters now
        frozen.send_signal(signal.SIGCONT)
        wait_until(lambda: waiters(engine) == 1, what="the frozen waiter to queue again")
        assert lease.live
        mark.unlink()
    fence = int(read_line(frozen))
    assert fence > lease.fence
    assert frozen.wait(scaled(10)) == 0


def test_a_grant_whose_message_was_lost_is_found_by_asking(
    engine: RedisEngine, proxy: TcpProxy, prefix: str
) -> None:
    """BLPOP takes the message out of the inbox, and its reply breaks off."""
    far = RedisEngine("far", proxy.url, EngineOptions(prefix=prefix))
    held = Lock(engine, NAME).acquire()
    got: list[int] = []

    def wait() -> None:
        with Lock(far, NAME, wait=30) as lease:
            got.append(lease.fence)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: proxy.commands["BLPOP"] == 1, what="the waiter to block")
    proxy.inject(Fault.CUT_ON_REPLY, once=True)
    with stopwatch() as watch:
        held.release()
        thread.join(scaled(10))
    assert watch.seconds < scaled(1)
    granted = [event.fence for event in engine.read_events() if event.kind == "acquired"]
    assert granted == [held.fence, *got]
    far.close()


INTERRUPTED = """
import random, signal, sys, time
from lockapp.context import holder_details
from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import LockAppError
from lockapp.lock import Lock

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

# A request that was interrupted may reach a busy server well after its undoing: refused by then.
patient = EngineOptions(
    prefix=sys.argv[2], tombstone_ms=1000, connect_timeout_ms=10_000, command_timeout_ms=10_000
)
engine = RedisEngine("default", sys.argv[1], patient)
# Keeps the watchdog's thread alive: Python's own Thread.start() can't be interrupted cleanly, and
# raises RuntimeError('release unlocked lock') instead.
other = Lock(engine, "shift:other").acquire()
chance = random.Random(7)
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for number in range(400):
    name = f"shift:{number}"
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.0015))
        with Lock(engine, name, ttl=60, wait=0):
            pass
        with Lock(engine, name, ttl=60, wait=0):
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupted += 1
    state = engine.show("never:held")
    assert state is None, state       # a shifted reply would answer this question
    total = engine.snapshot().total
    assert isinstance(total, int), total
other.release()
deadline = time.monotonic() + 5
while engine.snapshot().total and time.monotonic() < deadline:
    time.sleep(0.01)     # the watchdog undoes what was interrupted
print([lock.name for lock in engine.snapshot().locks], file=sys.stderr)
print(engine.snapshot().total, interrupted)
"""


def test_an_exchange_that_was_interrupted_never_shifts_later_replies(
    engine: RedisEngine, redis_url: str, prefix: str, keys_left: Callable[[], list[str]]
) -> None:
    """An exception at a random moment of an exchange closes its connection; nothing stays held."""
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, redis_url, prefix],
        cwd=ROOT, text=True, capture_output=True, timeout=scaled(60), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    left, interrupted = map(int, run.stdout.split())
    assert interrupted > 50
    assert left == 0, run.stderr
    wait_until(
        lambda: not [key for key in keys_left() if ":lock:" in key], what="tombstones to expire"
    )


def test_a_full_server_still_renews_and_releases(fresh_redis: RedisServer) -> None:
    """Out of memory refuses new locks as unavailable, and gives back what is held."""
    engine = RedisEngine("default", fresh_redis.url, EngineOptions())
    with Lock(engine, NAME, ttl=5) as lease:
        before = lease.valid_until
        waiting: list[object] = []
        thread = threading.Thread(
            target=lambda: waiting.append(Lock(engine, NAME, wait=20).acquire())
        )
        thread.start()
        wait_until(lambda: waiters(engine) == 1, what="the waiter")
        fresh_redis.config(maxmemory=1)
        with pytest.raises(EngineUnavailable) as refusal:
            Lock(engine, "order:8", wait=5).acquire()
        assert refusal.value.reason == "refused"
        lease.renew()
        assert lease.valid_until > before
    thread.join(scaled(10))
    assert waiting, "the hand-off works without memory"
    waiting[0].release()  # type: ignore[attr-defined]
    assert engine.show(NAME) is None
    engine.close()


def test_a_release_never_waits_for_the_connections_of_waiters(engine: RedisEngine) -> None:
    """Many blocked waiters hold a connection each; the holder's release goes past them."""
    many = 80
    held = Lock(engine, NAME).acquire()
    done: list[int] = []

    def wait() -> None:
        with Lock(engine, NAME, wait=30) as lease:
            done.append(lease.fence)

    threads = [threading.Thread(target=wait) for _ in range(many)]
    for thread in threads:
        thread.start()
    wait_until(lambda: waiters(engine) == many, limit_s=10, what="all to wait")
    with stopwatch() as watch:
        held.release()
    assert watch.seconds < scaled(0.5)
    for thread in threads:
        thread.join(scaled(20))
    assert len(done) == many
    assert done == sorted(done)


def test_scripts_that_the_server_forgot_are_sent_again(
    engine: RedisEngine, redis_server: RedisServer
) -> None:
    """SCRIPT FLUSH in the middle of a lease changes nothing."""
    with Lock(engine, NAME) as lease:
        redis_server.client.script_flush()
        lease.renew()
        redis_server.client.script_flush()
    assert engine.show(NAME) is None


def test_a_child_of_fork_neither_releases_nor_breaks_the_parents_connections(
    engine: RedisEngine,
) -> None:
    """The child takes its own lock and leaves the parent's alone."""
    with Lock(engine, NAME) as lease:
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                assert lease.lost
                assert lease.lost_reason == "forked"
                with Lock(engine, "order:child", wait=0):
                    code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert lease.live
        lease.renew()
    assert engine.show(NAME) is None


def test_connections_that_a_restart_broke_are_replaced_unnoticed(fresh_redis: RedisServer) -> None:
    """Several idle connections are dead; whoever asks next gets an answer all the same."""
    engine = RedisEngine("default", fresh_redis.url, EngineOptions())
    barrier = threading.Barrier(5)

    def use() -> None:
        with Lock(engine, f"order:{threading.get_ident()}"):
            barrier.wait(scaled(10))

    for _ in range(2):
        threads = [threading.Thread(target=use) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(10))
        assert not barrier.broken
        fresh_redis.restart(empty=True)
        assert engine.snapshot().total == 0
    engine.close()


def test_half_a_surrogate_pair_in_a_description_can_be_sent(engine: RedisEngine) -> None:
    """What is no text becomes a question mark instead of an error in the middle of an acquire."""
    with holder_details(user="\ud800x"), Lock(engine, NAME):
        state = engine.show(NAME)
    assert state is not None
    assert state.holders[0].description["user"] == "?x"


def test_an_entry_of_a_foreign_hand_does_not_stop_the_stream(
    engine: RedisEngine, redis_server: RedisServer, prefix: str
) -> None:
    """Whoever reads the events gets past it."""
    redis_server.client.xadd(f"{prefix}:{{0}}:events", {"event": "² what many noon"})
    with Lock(engine, NAME):
        pass
    kinds = [event.kind for event in engine.read_events()]
    assert kinds == ["what", "acquired", "released"]


def test_an_error_reply_keeps_no_dropped_lease_alive(
    redis_server: RedisServer, prefix: str
) -> None:
    """The exception of a question for a script must be in no cycle with the frames below it."""
    engine = RedisEngine("default", redis_server.url, EngineOptions(prefix=prefix))

    def hold() -> weakref.ref[Lease]:
        lease = Lock(engine, "order:1", renew=False).acquire()
        redis_server.client.script_flush()
        assert engine.show("order:1") is not None
        return weakref.ref(lease)

    gc.collect()
    gc.disable()
    try:
        assert hold()() is None
    finally:
        gc.enable()
    engine.close()
