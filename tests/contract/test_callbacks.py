"""`on_lost` and `on_revoke`: declared with the lock or added to a lease, called once per lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from lockapp.core.values import Renewal
from lockapp.exceptions import LeaseLost
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.primitives import MultiLock, RWLock, Semaphore
from tests.contract.fronts import People
from tests.contract.places import Place
from tests.timing import wait_until

NAME = "order:1"


def test_what_is_declared_is_called_for_each_lease(place: Place, people: People) -> None:
    """Once per lease, with the lease; also for the second one of the same lock."""
    ann = people("ann")
    lost: list[Lease] = []
    asked: list[Lease] = []
    lock = place.lock(NAME, ttl=1.5, on_lost=lost.append, on_revoke=asked.append)
    for _ in range(2):
        lease = ann.acquire(lock)
        place.engine.revoke(NAME, lease.fence, actor="op")
        wait_until(lambda lease=lease: asked[-1:] == [lease])
        place.engine.force_release(NAME, lease.fence, actor="op")
        wait_until(lambda lease=lease: lost[-1:] == [lease])
        with pytest.raises(LeaseLost):
            ann.release(lease)
    assert (len(lost), len(asked)) == (2, 2)


def test_a_lease_that_is_released_is_not_reported(place: Place, people: People) -> None:
    """Nothing happened to it."""
    lost: list[Lease] = []
    ann = people("ann")
    lease = ann.acquire(place.lock(NAME, on_lost=lost.append, on_revoke=lost.append))
    ann.release(lease)
    ann.release(lease)
    assert lost == []


def makers(place: Place, options: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Every kind of lock, with these options."""
    return {
        "semaphore": lambda: Semaphore(place.engine, NAME, 2, **options),
        "reader": lambda: RWLock(place.engine, NAME, **options).read(),
        "writer": lambda: RWLock(place.engine, NAME, **options).write(),
        "multilock": lambda: MultiLock([place.lock(NAME, **options), place.lock("order:2")]),
    }


SHARING = pytest.mark.offers("sharing")


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=SHARING) for kind in ("semaphore", "reader", "writer")),
        "multilock",
    ],
)
def test_every_kind_of_lock_has_them(place: Place, people: People, kind: str) -> None:
    """Of several locks the one that was lost is named."""
    told: list[str] = []
    options = {"on_lost": lambda lease: told.append(lease.name), "ttl": 1.5}
    ann = people("ann")
    held = ann.acquire(makers(place, options)[kind]())
    fence = place.engine.show(NAME).holders[0].fence  # type: ignore[union-attr]
    place.engine.force_release(NAME, fence, actor="op")
    wait_until(lambda: told == [NAME])
    with pytest.raises(LeaseLost):
        ann.release(held)


def test_a_multilock_raises_when_one_of_its_locks_is_to(place: Place, people: People) -> None:
    """`on_lost="raise"` of any of them, at the end of the block."""
    locks = [place.lock(NAME, ttl=60, on_lost="raise"), place.lock("order:2", ttl=60)]

    def body(_: Any) -> None:
        fence = place.engine.show("order:2").holders[0].fence  # type: ignore[union-attr]
        place.engine.force_release("order:2", fence, actor="op")

    with pytest.raises(LeaseLost):
        people("ann").within(MultiLock(locks), body)  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", [Lease.lose, Lease.renewed])
def test_a_callback_that_comes_at_the_very_moment_is_not_forgotten(
    place: Place, people: People, ends: Any
) -> None:
    """The watchdog notes the loss, or the request, while it is being registered."""
    ann = people("ann")
    lease = ann.acquire(place.lock(NAME))
    told: list[Lease] = []

    class Meanwhile(list[Any]):
        """A list to which nothing is added before the other thread has had its turn."""

        def append(self, callback: Any) -> None:
            if ends is Lease.lose:
                lease.lose("forced")
            else:
                answer = Renewal(60_000, "revoked", "{}")
                lease.renewed(place.engine.now(), 0, answer, place.engine.sync.defer)
            super().append(callback)

    lease._callbacks = lease._revoke_callbacks = Meanwhile()
    register = lease.on_lost if ends is Lease.lose else lease.on_revoke
    register(told.append)
    assert told == [lease]
    register(told.append)
    assert told == [lease, lease], "a second one is another one"
    with contextlib.suppress(LeaseLost):
        ann.release(lease)


@pytest.mark.parametrize("wish", [SystemExit, asyncio.CancelledError])
def test_a_callback_that_ends_the_program_does_not_end_the_watchdog(
    place: Place, people: People, caplog: Any, wish: type[BaseException]
) -> None:
    """`sys.exit()`, or a cancelled future's result, would end every renewal."""

    def callback(_: Lease) -> None:
        raise wish

    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(NAME, ttl=1.5, on_lost=callback))
    assert_renewed_beside(place, ann, bob, lease)
    assert "callback of the lease" in caplog.text


@pytest.mark.parametrize("told", ["lost", "asked"])
def test_whatever_a_callback_raises_the_thread_goes_on(
    place: Place, caplog: Any, told: str
) -> None:
    """Ctrl-C is not for it, and those who are looked after in the same round are not forgotten."""

    def callback(_: Lease) -> None:
        raise KeyboardInterrupt

    people = People("sync")
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(NAME, ttl=1.5, on_lost=callback, on_revoke=callback))
    if told == "asked":
        place.engine.revoke(NAME, lease.fence, actor="op")
        wait_until(lambda: lease.revoke_requested)
        until = lease.valid_until
        wait_until(lambda: lease.valid_until > until, what="it to be renewed all the same")
    assert_renewed_beside(place, ann, bob, lease)
    assert "another one goes on" in caplog.text
    people.close()


def assert_renewed_beside(place: Place, ann: Any, bob: Any, lease: Lease) -> None:
    """Take `lease` away from ann; what bob has is renewed all the same."""
    other = bob.acquire(place.lock("order:2", ttl=0.9))
    place.engine.force_release(NAME, lease.fence, actor="op")
    wait_until(lambda: lease.lost_reason)
    until = other.valid_until
    wait_until(lambda: other.valid_until > until, what="the other lease to be renewed")
    bob.release(other)
    with pytest.raises(LeaseLost):
        ann.release(lease)


async def _coroutine(_: Lease) -> None: ...


@pytest.mark.parametrize(
    ("argument", "value", "error", "words"),
    [
        ("on_lost", "terminate", ValueError, "must be 'raise', None or a function"),
        ("on_lost", "", ValueError, "not ''"),
        ("on_lost", True, TypeError, "not True"),
        ("on_lost", _coroutine, TypeError, "asynchronous"),
        ("on_revoke", "raise", ValueError, "must be None or a function"),
        ("on_revoke", 7, TypeError, "not 7"),
        ("on_revoke", _coroutine, TypeError, "asynchronous"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    place: Place, argument: str, value: Any, error: type[Exception], words: str
) -> None:
    """Naming the argument and what is allowed."""
    with pytest.raises(error, match=words) as refused:
        Lock(place.engine, NAME, **{argument: value})
    assert argument in str(refused.value)
