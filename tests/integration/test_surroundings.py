"""The engine in foreign surroundings: gevent, forks in tasks, development mode, the end of a process.

Each runs in an interpreter of its own.
"""  # noqa: E501

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lock import Lock
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch

ROOT = Path(__file__).parents[2]
PREAMBLE = """
import sys
from lockapp.core.options import EngineOptions
from lockapp.engines.redis.engine import RedisEngine
from lockapp.lock import Lock
engine = RedisEngine("child", sys.argv[1], EngineOptions(prefix=sys.argv[2]))
"""


def run(
    code: str, url: str, prefix: str, *, first: str = "", devmode: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``first``, the preamble and ``code``; every warning is an error in development mode."""
    environment = {**os.environ, "PYTHONDEVMODE": "1" if devmode else ""}
    options = ["-W", "error"] if devmode else []
    return subprocess.run(
        [sys.executable, *options, "-c", first + PREAMBLE + code, url, prefix],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=scaled(40), check=False,
    )  # fmt: skip


GEVENT = """
import time
import gevent
order = []
def visit(number):
    with Lock(engine, "hub:1", ttl=1, wait=20) as lease:
        order.append(lease.fence)
        gevent.sleep(0.01)
ticks = []
def tick():
    while len(order) < 20:
        ticks.append(time.monotonic())
        gevent.sleep(0.005)
gevent.joinall([gevent.spawn(tick), *(gevent.spawn(visit, n) for n in range(20))], raise_error=True)
assert order == sorted(order), order
assert len(ticks) > 10, "the waiting must not block the hub"
with Lock(engine, "hub:2", ttl=1.5) as lease:
    gevent.sleep(3.1)          # over two lives: the watchdog is a greenlet here
    assert lease.live, lease.lost_reason
assert engine.snapshot().total == 0
print("done")
"""


def test_under_gevent_waiting_and_renewal_share_one_thread(
    redis_url: str, prefix: str, no_litter: None
) -> None:
    """Patched before anything else is imported, as a worker with -P gevent is."""
    first = "from gevent import monkey; monkey.patch_all()\n"
    done = run(GEVENT, redis_url, prefix, first=first, devmode=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


THREADS = """
import threading
inside, order = [], []
def visit():
    for _ in range(10):
        with Lock(engine, "thread:1", wait=20) as lease:
            inside.append(lease.fence)
            assert len(inside) == 1
            order.append(lease.fence)
            inside.clear()
threads = [threading.Thread(target=visit) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(order) == 160 and order == sorted(order)
assert engine.snapshot().total == 0
engine.close()
print("done")
"""


def test_sixteen_threads_share_an_engine_in_development_mode(
    redis_url: str, prefix: str, no_litter: None
) -> None:
    """No warning, no unclosed socket, no noise."""
    done = run(THREADS, redis_url, prefix)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


ASYNC = """
import asyncio
async def visit(name):
    async with Lock(engine, name, wait=20) as lease:
        await asyncio.sleep(0.001)
        return lease.fence
async def main():
    fences = await asyncio.gather(*(visit("task:1") for _ in range(20)))
    assert len(set(fences)) == 20
    waiting = asyncio.create_task(visit("task:1"))
    await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await engine.aclose()
asyncio.run(main())
assert engine.snapshot().total == 0
engine.close()
print("done")
"""


def test_tasks_share_an_engine_in_development_mode(redis_url: str, prefix: str) -> None:
    """No coroutine that nobody awaited, no task that was destroyed, no unclosed transport."""
    done = run(ASYNC, redis_url, prefix)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


FORK_IN_TASK = """
import asyncio, os
async def main():
    async with Lock(engine, "fork:1", ttl=5) as lease:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert lease.lost and lease.lost_reason == "forked"
                with Lock(engine, "fork:2", wait=0):   # the blocking way: the loop is the parent's
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert lease.live
        await lease.arenew()
        async with Lock(engine, "fork:3"):
            pass
asyncio.run(main())
assert engine.snapshot().total == 0
print("done")
"""


def test_a_fork_in_a_task_leaves_the_parents_lease_alone(
    redis_url: str, prefix: str, no_litter: None
) -> None:
    """The child has its own connections; the parent's stream of replies is not disturbed."""
    done = run(FORK_IN_TASK, redis_url, prefix, devmode=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


EXITS = {
    "held": """
lease = Lock(engine, "exit:1", ttl=60).acquire()
ending()
""",
    "waiting": """
import threading, time
lease = Lock(engine, "exit:1", ttl=60).acquire()
threading.Thread(target=Lock(engine, "exit:1", wait=60).acquire, daemon=True).start()
while not engine.show("exit:1").waiter_count: time.sleep(0.01)
ending()
""",
    "in an exception": """
class Interrupt(BaseException): pass
sys.excepthook = lambda *error: None
lease = Lock(engine, "exit:1", ttl=60).acquire()
ending()
raise Interrupt
""",
    "in a suspended block": """
def work():
    with Lock(engine, "exit:1", ttl=60):
        yield
suspended = work()
next(suspended)
ending()
""",
}
ENDING = """
import time
def ending(): print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.keeps_keys  # the leases of processes that ended without releasing
def test_a_process_ends_at_once_and_quietly(redis_url: str, prefix: str, how: str) -> None:
    """Whatever it holds or waits for: no thread of ours keeps it, none of ours complains."""
    done = run(ENDING + EXITS[how], redis_url, prefix, devmode=False)
    assert time.monotonic() - float(done.stdout) < scaled(2), "the clock is the system's"
    assert done.returncode == (1 if how == "in an exception" else 0)
    noise = [line for line in done.stderr.splitlines() if "dropped without release" not in line]
    assert noise == []


LOOP = """
import asyncio, os, signal
from lockapp.core.options import EngineOptions
held, tasks = [], []
async def hold():
    held.append(await Lock(engine, "loop:1", ttl=1).aacquire())
    watchdog, transport = engine.aio().watchdog, engine.aio().transport
    while abs(watchdog._wake_at) == float("inf"):   # until it sleeps, after its first round
        await asyncio.sleep(0.001)
    if doing == "renewing":
        os.kill(server, signal.SIGSTOP)     # so that the loop ends in the middle of a renewal
        while len(transport._idle) == len(transport._open):
            await asyncio.sleep(0.001)
    if doing == "waiting":
        tasks.append(asyncio.create_task(Lock(engine, "loop:1", wait=60).aacquire()))
        while not (await engine.ashow("loop:1")).waiter_count:
            await asyncio.sleep(0.01)
loop = asyncio.new_event_loop()
loop.run_until_complete(hold())
os.kill(server, signal.SIGCONT)
if how == "closed":
    loop.close()
print("done", flush=True)
"""
NOT_OURS = ("ResourceWarning", "dropped without release", "name='Task-")


@pytest.mark.parametrize("how", ["left open", "closed"])
@pytest.mark.parametrize("doing", ["holding", "renewing", "waiting"])
def test_a_loop_that_is_left_behind_ends_quietly(
    fresh_redis: RedisServer, prefix: str, doing: str, how: str
) -> None:
    """Its watchdog, in the middle of whatever, neither complains nor keeps the process.

    What is not ours: warnings of an unclosed loop, and of the caller's own task.
    """
    server = fresh_redis.client.info("server")["process_id"]
    names = f"doing, how, server = {doing!r}, {how!r}, {server}"
    environment = {**os.environ, "PYTHONDEVMODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + names + LOOP, fresh_redis.url, prefix],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=scaled(40), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")
    said = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    ours = [line for line in said if not any(word in line for word in NOT_OURS)]
    theirs = ["Task was destroyed but it is pending!"] if doing == "waiting" else []
    assert [line for line in ours if not line.startswith("source_traceback")] == theirs


BLOCKED = """
import threading, time
lease = Lock(engine, "blocked:1", ttl=1).acquire()
print("held", flush=True)
end = time.monotonic() + float(sys.argv[3])
if how == "the interpreter lock":
    sys.setswitchinterval(1000)     # as an extension that never gives it back
    while time.monotonic() < end:
        pass
    lost, reason = lease.lost, lease.lost_reason
    sys.setswitchinterval(0.005)
else:
    while time.monotonic() < end:   # no greenlet gets a turn
        pass
    lost, reason = lease.lost, lease.lost_reason
try:
    lease.check()
except LeaseLost:
    print(lost, reason, "refused", flush=True)
"""


@pytest.mark.parametrize("how", ["the interpreter lock", "the hub"])
def test_a_body_that_lets_nothing_else_run_knows_its_loss_when_it_looks(
    redis_url: str, prefix: str, how: str
) -> None:
    """Nobody could renew the lease; no thread or greenlet of ours needs a turn to find that out.

    Somebody else has had the lock in the meantime.
    """
    first = "from gevent import monkey; monkey.patch_all()\n" if how == "the hub" else ""
    code = f"from lockapp.exceptions import LeaseLost\nhow = {how!r}\n" + BLOCKED
    child = subprocess.Popen(
        [sys.executable, "-c", first + PREAMBLE + code, redis_url, prefix, str(scaled(3))],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        engine = RedisEngine("next", redis_url, EngineOptions(prefix=prefix))
        with stopwatch() as watch, Lock(engine, "blocked:1", wait=scaled(10)):
            assert watch.seconds < scaled(2.5), "the body goes on for 3 s"
        engine.close()
        told, noise = child.communicate(timeout=scaled(20))
    finally:
        child.kill()
        child.wait()
    assert told == "True expired refused\n", noise
