"""The two fronts, behind one set of verbs, so that a promise is written down once.

A contender is an owner of its own: a thread that calls the blocking methods, or a task that
awaits the `a…` twins. Its calls run one after another; `start_…` returns a future for a call that
is going to block.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from lockapp.core.run import run_sync
from lockapp.engines.base import Engine
from lockapp.lease import Lease
from lockapp.lock import UNSET, Lock
from tests.contract.journal import Journal
from tests.timing import scaled

T = TypeVar("T")
LIMIT_S = 20.0


class Contender(ABC):
    """Somebody who wants locks."""

    @abstractmethod
    def start_acquire(self, lock: Lock, wait: Any = UNSET) -> Future[Lease]:
        """Begin to acquire."""

    @abstractmethod
    def start_try(self, lock: Lock, wait: Any = 0) -> Future[Lease | None]:
        """Begin to try."""

    @abstractmethod
    def start_release(self, lease: Lease) -> Future[None]:
        """Begin to release."""

    @abstractmethod
    def start_renew(self, lease: Lease) -> Future[None]:
        """Begin to renew."""

    @abstractmethod
    def start_within(self, lock: Lock, body: Callable[[Lease], T]) -> Future[T]:
        """Begin a `with` or `async with` block around `body`, which does not suspend."""

    @abstractmethod
    def start_visits(self, lock: Lock, journal: Journal, times: int, stay_s: float) -> Future[None]:
        """Begin to enter and leave a block again and again, writing it down."""

    @abstractmethod
    def start_step(self, engine: Engine, step: Callable[[Any], Awaitable[T]]) -> Future[T]:
        """Begin one step of the engine's port, without anything around it."""

    @abstractmethod
    def close(self) -> None:
        """End the thread or task."""

    def acquire(self, lock: Lock, wait: Any = UNSET) -> Lease:
        return done(self.start_acquire(lock, wait))

    def try_acquire(self, lock: Lock, wait: Any = 0) -> Lease | None:
        return done(self.start_try(lock, wait))

    def release(self, lease: Lease) -> None:
        done(self.start_release(lease))

    def renew(self, lease: Lease) -> None:
        done(self.start_renew(lease))

    def within(self, lock: Lock, body: Callable[[Lease], T]) -> T:
        return done(self.start_within(lock, body))

    def step(self, engine: Engine, step: Callable[[Any], Awaitable[T]]) -> T:
        return done(self.start_step(engine, step))


def done(future: Future[T]) -> T:
    """Return a call's outcome; what should have come to an end and has not is a failure."""
    return future.result(scaled(LIMIT_S))


class ThreadContender(Contender):
    """A thread."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def start_acquire(self, lock: Lock, wait: Any = UNSET) -> Future[Lease]:
        return self._pool.submit(lock.acquire, wait)

    def start_try(self, lock: Lock, wait: Any = 0) -> Future[Lease | None]:
        return self._pool.submit(lock.try_acquire, wait)

    def start_release(self, lease: Lease) -> Future[None]:
        return self._pool.submit(lease.release)

    def start_renew(self, lease: Lease) -> Future[None]:
        return self._pool.submit(lease.renew)

    def start_within(self, lock: Lock, body: Callable[[Lease], T]) -> Future[T]:
        def block() -> T:
            with lock as lease:
                return body(lease)

        return self._pool.submit(block)

    def start_visits(self, lock: Lock, journal: Journal, times: int, stay_s: float) -> Future[None]:
        def visit() -> None:
            for _ in range(times):
                with lock as lease, journal.inside(lease):
                    time.sleep(stay_s)

        return self._pool.submit(visit)

    def start_step(self, engine: Engine, step: Callable[[Any], Awaitable[T]]) -> Future[T]:
        return self._pool.submit(lambda: run_sync(step(engine.sync)))  # type: ignore[arg-type]

    def close(self) -> None:
        self._pool.shutdown()


class LoopThread:
    """An event loop that runs in a thread of its own, as `asyncio.run` runs and ends it."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="loop")
        self._thread.start()
        self._started.wait()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        await self._stop.wait()

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


class TaskContender(Contender):
    """A task that makes the calls handed to it, on a loop of its own or a shared one."""

    def __init__(self, name: str, on: LoopThread) -> None:
        self._loop = on.loop
        self._ready = threading.Event()
        self._loop.call_soon_threadsafe(self._begin, name)
        self._ready.wait()

    def _begin(self, name: str) -> None:
        self._calls: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], Future[Any]] | None]
        self._calls = asyncio.Queue()
        self._task = self._loop.create_task(self._serve(), name=name)
        self._ready.set()

    async def _serve(self) -> None:
        while call := await self._calls.get():
            make, future = call
            try:
                outcome = await make()
            except BaseException as error:  # noqa: BLE001 - handed to who waits for the call
                future.set_exception(error)
            else:
                future.set_result(outcome)
                del outcome
            del call, make, future

    def _start(self, make: Callable[[], Awaitable[T]]) -> Future[T]:
        future: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._calls.put_nowait, (make, future))
        return future

    def start_acquire(self, lock: Lock, wait: Any = UNSET) -> Future[Lease]:
        return self._start(lambda: lock.aacquire(wait))

    def start_try(self, lock: Lock, wait: Any = 0) -> Future[Lease | None]:
        return self._start(lambda: lock.atry_acquire(wait))

    def start_release(self, lease: Lease) -> Future[None]:
        return self._start(lease.arelease)

    def start_renew(self, lease: Lease) -> Future[None]:
        return self._start(lease.arenew)

    def start_within(self, lock: Lock, body: Callable[[Lease], T]) -> Future[T]:
        async def block() -> T:
            async with lock as lease:
                return body(lease)

        return self._start(block)

    def start_visits(self, lock: Lock, journal: Journal, times: int, stay_s: float) -> Future[None]:
        async def visit() -> None:
            for _ in range(times):
                async with lock as lease:
                    with journal.inside(lease):
                        await asyncio.sleep(stay_s)

        return self._start(visit)

    def start_step(self, engine: Engine, step: Callable[[Any], Awaitable[T]]) -> Future[T]:
        return self._start(lambda: step(engine.aio()))

    def close(self) -> None:
        ended: Future[None] = Future()

        def end() -> None:
            self._calls.put_nowait(None)
            self._task.add_done_callback(lambda _: ended.set_result(None))

        self._loop.call_soon_threadsafe(end)
        ended.result(scaled(LIMIT_S))


class People:
    """Makes contenders of one front and sees them off."""

    def __init__(self, front: str) -> None:
        self.front = front
        self._known: list[Contender] = []
        self._loops: list[LoopThread] = []

    def __call__(self, *names: str) -> Any:
        """Return a contender for each name (for one name, that contender)."""
        made = [self._make(name) for name in names]
        return made[0] if len(made) == 1 else made

    def _make(self, name: str) -> Contender:
        contender: Contender
        if self.front == "sync":
            contender = ThreadContender(name)
        else:
            if not self._loops:
                self.another_loop()
            contender = TaskContender(name, self._loops[-1])
        self._known.append(contender)
        return contender

    def another_loop(self) -> None:
        """Put whoever comes from now on on a new event loop."""
        self._loops.append(LoopThread())

    def close(self) -> None:
        for contender in self._known:
            contender.close()
        for loop in self._loops:
            loop.close()
