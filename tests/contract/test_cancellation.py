"""P8, P12: whoever is interrupted, at whatever moment, leaves nothing held and nothing queued."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from lockapp.exceptions import AlreadyHeld, LeaseLost, NotAcquired, WaitTimeout
from lockapp.lease import Lease
from tests.contract.places import Place
from tests.timing import await_until, wait_until

TURNS = range(21)

# The interruptions below use the timer that pytest-timeout would.
pytestmark = pytest.mark.timeout(method="thread")


async def give_turns(count: int) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel and see whether the cancellation arrived."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def free_soon(place: Place) -> None:
    """Wait until what was cancelled is undone: before, its request may not even have arrived."""
    ports = place.engine.ports
    await await_until(lambda: not any(port.watchdog._undo for port in ports), what="the undoing")
    await await_until(lambda: place.engine.show("order:1") is None, what="the lock to be free")


async def test_an_acquire_cancelled_at_any_moment_leaves_nothing_held(place: Place) -> None:
    """A free lock; the task is cancelled after 0 to 20 turns of the loop."""
    outcomes = set()
    for turns in TURNS:
        task = asyncio.create_task(place.lock().aacquire())
        await give_turns(turns)
        gone = await cancelled(task)
        outcomes.add(gone)
        if not gone:
            await task.result().arelease()
        await free_soon(place)
    assert True in outcomes


async def test_waiting_cancelled_at_any_moment_leaves_nothing_queued(place: Place) -> None:
    """Behind a holder; afterwards the holder is alone and its release makes the lock free."""
    for turns in TURNS:
        holder = await place.lock().aacquire()
        task = asyncio.create_task(place.lock().aacquire(20))
        await give_turns(turns)
        assert await cancelled(task)
        await await_until(lambda: place.engine.show("order:1").waiter_count == 0)  # type: ignore[union-attr]
        await holder.arelease()
        await free_soon(place)


async def test_waiting_cancelled_around_the_hand_over_leaves_nothing_held(place: Place) -> None:
    """The release has been asked for when the waiter is cancelled: both may come first."""
    outcomes = set()
    for turns in TURNS:
        holder = await place.lock().aacquire()
        task = asyncio.create_task(place.lock().aacquire(20))
        await await_until(lambda: place.engine.show("order:1").waiter_count == 1)  # type: ignore[union-attr]
        release = asyncio.create_task(holder.arelease())
        await give_turns(turns)
        gone = await cancelled(task)
        outcomes.add(gone)
        await release
        if not gone:
            await task.result().arelease()
        await free_soon(place)
    assert True in outcomes


async def test_a_block_cancelled_at_any_moment_is_left_in_order(place: Place) -> None:
    """Cancelled on the way in, inside, or on the way out."""
    inside = 0

    async def visit() -> None:
        nonlocal inside
        async with place.lock():
            inside += 1
            await give_turns(4)
            inside -= 1

    for turns in TURNS:
        inside = 0
        task = asyncio.create_task(visit())
        await give_turns(turns)
        await cancelled(task)
        await free_soon(place)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_release_cancelled_midway_can_be_repeated(place: Place, times: int) -> None:
    """Free afterwards in all cases, and the second call never says "not mine"."""
    for turns in TURNS:
        lease = await place.lock().aacquire()
        for _ in range(times):
            task = asyncio.create_task(lease.arelease())
            await give_turns(turns)
            await cancelled(task)
        await lease.arelease()
        assert place.engine.show("order:1") is None
        assert not lease.lost


async def test_a_release_cancelled_midway_is_finished_without_being_repeated(
    place: Place,
) -> None:
    """Once it has begun, nobody has to come back to it; the watchdog does."""
    for turns in TURNS[1:]:
        lease = await place.lock().aacquire()
        task = asyncio.create_task(lease.arelease())
        await give_turns(turns)
        await cancelled(task)
        await free_soon(place)


async def test_a_time_limit_around_the_whole_block_leaves_nothing(place: Place) -> None:
    """`asyncio.timeout` outside `async with`, at many moments, behind a holder that leaves."""
    for number in range(20):
        holder = await asyncio.create_task(place.lock().aacquire())  # another owner
        entered = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(number * 0.0007):
                async with place.lock(wait=5):
                    entered = True
        assert not entered
        await holder.arelease()
        await free_soon(place)


def test_a_loop_that_ends_in_the_middle_leaves_nothing(place: Place) -> None:
    """`asyncio.run` cancels what waits; the holder's release then finds no queue."""
    holder = place.lock().acquire()

    async def leave_waiting() -> None:
        task = asyncio.create_task(place.lock().aacquire(20))
        await await_until(lambda: place.engine.show("order:1").waiter_count == 1)  # type: ignore[union-attr]
        assert not task.done()

    asyncio.run(leave_waiting())
    wait_until(lambda: place.engine.show("order:1").waiter_count == 0)  # type: ignore[union-attr]
    holder.release()
    assert place.engine.show("order:1") is None


class SoftLimit(Exception):
    """What a signal handler raises, as Celery's soft time limit does."""


@contextlib.contextmanager
def interruption(after_s: float) -> Iterator[list[str]]:
    """Raise SoftLimit in the main thread, wherever it is by then; yield the places it was."""
    places: list[str] = []

    def strike(_: int, struck: FrameType | None) -> None:
        frame = struck
        while frame is not None:
            if frame.f_code.co_name in ("__del__", "_remove"):
                # Python swallows what is raised in a finaliser, and in that of a WeakSet's member:
                # strike a little later.
                signal.setitimer(signal.ITIMER_REAL, 0.0001)
                return
            frame = frame.f_back
        places.extend(traceback.format_stack(struck))
        raise SoftLimit

    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # it runs finalisers, and swallows likewise
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        yield places
    finally:
        # Ignored first: a strike put off by a finaliser must not meet the default, which kills.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


@pytest.fixture
def held_elsewhere(place: Place) -> Iterator[Callable[[], None]]:
    """Somebody else holds the lock until the function is called."""
    leases: list[Lease] = []
    thread = threading.Thread(target=lambda: leases.append(place.lock().acquire()))
    thread.start()
    thread.join()
    yield lambda: leases[0].release()
    leases[0].release()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # struck before its start
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # closed by its finaliser
def test_a_wait_interrupted_by_a_signal_leaves_nothing_queued(
    place: Place, held_elsewhere: Callable[[], None]
) -> None:
    """A soft time limit strikes while the thread waits, at sixty different moments."""
    for number in range(60):
        struck: list[str] = []
        try:
            with interruption(0.0003 + number * 0.0001) as struck:
                place.lock().acquire(wait=20)
        except WaitTimeout:
            pytest.fail(f"the interruption was swallowed:\n{''.join(struck)}")
        except SoftLimit:
            pass
        wait_until(lambda: place.engine.show("order:1").waiter_count == 0)  # type: ignore[union-attr]
    held_elsewhere()
    assert place.engine.show("order:1") is None


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # struck before its start
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # closed by its finaliser
def test_a_body_interrupted_by_a_signal_at_any_moment_gives_the_lock_back(place: Place) -> None:
    """Acquiring, inside, releasing: the limit strikes anywhere, and goes on to the caller."""

    def free_again() -> bool:
        try:
            place.lock().acquire(wait=2).release()
        except AlreadyHeld:  # dropped, and in the hands of the watchdog, which looks at it just now
            return False
        return True

    struck = 0
    # Keeps the watchdog's thread alive: Python's own Thread.start() can't be interrupted cleanly.
    other = place.lock("order:2").acquire()
    for number in range(80):
        try:
            with interruption(0.00005 + number * 0.00002):
                while True:
                    with place.lock(ttl=20):  # longer than anybody waits below
                        time.sleep(0)
        except SoftLimit:
            struck += 1
        try:
            wait_until(free_again)
        except NotAcquired as refusal:  # pragma: no cover - the failure, explained
            pytest.fail(f"round {number}: still held: {refusal}")
    assert struck == 80
    other.release()


async def test_a_cancellation_is_never_swallowed(place: Place) -> None:
    """A cancelled task ends as cancelled, or had its lease before: never goes on unasked."""
    went_on = 0
    for turns in TURNS:

        async def work() -> None:
            nonlocal went_on
            try:
                lease = await place.lock().aacquire()
            except asyncio.CancelledError:
                raise
            with contextlib.suppress(LeaseLost):
                await lease.arelease()
            await asyncio.sleep(0.05)
            went_on += 1

        task = asyncio.create_task(work())
        await give_turns(turns)
        assert await cancelled(task)
        await free_soon(place)
    assert went_on == 0
