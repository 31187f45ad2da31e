"""P12: forks, threads and loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import Any

import pytest

from lockapp.exceptions import NotHeld
from lockapp.lock import Lock
from tests.contract.fronts import People, ThreadContender, done
from tests.contract.places import Place
from tests.contract.processes import in_forked_child
from tests.timing import pause, wait_until


def test_a_forked_child_neither_renews_nor_releases_its_parents_lease(place: Place) -> None:
    """In the child it is lost; releasing it there is refused; the parent never notices."""
    with place.lock(ttl=1.5) as lease:
        before = place.events()

        def child() -> dict[str, Any]:
            seen = {"lost": lease.lost, "reason": lease.lost_reason}
            try:
                lease.release()
            except NotHeld:
                seen["refused"] = True
            gc.collect()
            return seen

        assert in_forked_child(child) == {"lost": True, "reason": "forked", "refused": True}
        assert place.events() == before
        pause(2)  # past the ttl: the parent's watchdog goes on
        assert not lease.lost
    assert place.kinds() == ["acquired", "released"]


def test_a_child_leaves_its_parents_block_without_releasing(place: Place) -> None:
    """A child that runs out of the `with` block it was forked in."""
    with place.lock() as lease:

        def child() -> str:
            lock = place.lock()
            lock._entered = {threading.current_thread(): [lease]}
            lock.__exit__(None, None, None)
            return "left"

        assert in_forked_child(child) == "left"
        lease.renew()


def test_a_forked_child_takes_locks_of_its_own(place: Place) -> None:
    """With its own connections, watchdog and identity, while its parent goes on."""
    place.lock("warm:up").acquire().release()
    with place.lock("order:1", ttl=1.5) as lease:

        def child() -> dict[str, Any]:
            busy = place.lock("order:1").try_acquire()
            with place.lock("order:2", ttl=1) as own:
                pause(1.7)
                return {
                    "parent's is free": busy is not None,
                    "own lost": own.lost,
                    "same process": own.renew_item.token == lease.renew_item.token,
                }

        seen = in_forked_child(child)
        # What is held in memory binds its own process only: a child starts with an empty server.
        assert seen["parent's is free"] == (not place.engine.shared_between_processes)
        assert seen["own lost"] is False
        assert not lease.lost


def test_a_fork_beside_busy_threads_gives_a_working_child(place: Place) -> None:
    """Whatever the other threads were in the middle of."""
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            with place.lock(f"busy:{number}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):

            def child() -> bool:
                place.engine.show("busy:0")
                with place.lock("order:child", wait=5) as lease:
                    return not lease.lost

            assert in_forked_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_lease_may_be_released_by_another_thread_or_task(place: Place, people: People) -> None:
    """It belongs to its handle."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    bob.release(lease)
    again = ann.acquire(place.lock(), wait=0)
    bob.release(again)


def test_a_lease_may_be_released_through_the_other_front(place: Place) -> None:
    """Taken by a thread and given back in a loop, and the other way round."""
    threads, tasks = People("sync"), People("async")
    thread, task = threads("thread"), tasks("task")
    for taker, giver in ((thread, task), (task, thread)):
        giver.release(taker.acquire(place.lock(), wait=0))
    threads.close()
    tasks.close()
    assert place.kinds() == ["acquired", "released"] * 2


def test_one_lock_object_serves_many_threads(place: Place) -> None:
    """Its blocks do not take each other's leases."""
    lock = place.lock(wait=20)
    inside: list[int] = []
    contenders = [ThreadContender(f"t{number}") for number in range(6)]

    def body(lease: Any) -> bool:
        inside.append(lease.fence)
        return not lease.lost

    for future in [c.start_within(lock, body) for c in contenders for _ in range(5)]:
        assert done(future)
    assert len(set(inside)) == 30
    assert lock._entered == {}
    for contender in contenders:
        contender.close()


def test_a_blocking_call_in_a_running_loop_is_warned_of(place: Place) -> None:
    """It names the way out, and works all the same."""

    async def work() -> None:
        with pytest.warns(RuntimeWarning, match="blocks the running event loop.*a… methods"):
            lease = place.lock().acquire()
        lease.release()
        with pytest.warns(RuntimeWarning, match="blocks"), place.lock():
            pass

    asyncio.run(work())


def test_the_asynchronous_front_warns_of_nothing(place: Place) -> None:
    """The same, awaited."""

    async def work() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with place.lock():
                pass

    asyncio.run(work())


def test_loops_may_come_and_go(place: Place) -> None:
    """Each with connections of its own; a lease that outlives its loop runs out."""

    async def visit() -> None:
        async with place.lock("order:2"):
            pass

    for _ in range(5):
        asyncio.run(visit())
    left = asyncio.run(place.lock(ttl=0.3).aacquire())
    wait_until(lambda: left.lost)
    taken = Lock(place.engine, "order:1").acquire(wait=2)
    taken.release()


def test_a_task_and_the_thread_of_its_loop_are_two_owners(place: Place) -> None:
    """A child task does not inherit its parent's lease."""

    async def work() -> None:
        async with place.lock():
            child = asyncio.create_task(place.lock().atry_acquire())
            assert await child is None

    asyncio.run(work())
