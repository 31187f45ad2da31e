"""The two steps of a single flight: landing, and waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lockapp.core.flight import ABORTED, KEPT, Landing
from lockapp.core.run import run_sync
from lockapp.lease import Lease
from tests.contract.fronts import Contender, People
from tests.contract.places import Place, RedisPlace
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.offers("flights")

KEEP_MS = 300
NAME = "rag:1"


def land(ann: Contender, place: Place, lease: Lease, outcome: str = KEPT, **other: Any) -> bool:
    """Announce the flight of a lease, or with another token or number."""
    token = other.get("token", lease.renew_item.token)
    fence = other.get("fence", lease.fence)
    return ann.step(place.engine, lambda port: port.land(NAME, token, fence, outcome, KEEP_MS))


def follow(
    bob: Contender, place: Place, since: int, timeout_s: float = 5.0
) -> Future[Landing | None]:
    """Begin to wait."""
    return bob.start_step(
        place.engine, lambda port: port.wait_landing(NAME, since, scaled(timeout_s))
    )


@pytest.fixture(autouse=True)
def landings_go(place: Place) -> Iterator[None]:
    """By themselves, after their time."""
    yield
    wait_until(lambda: not place.landings(), what="landings to go")


def test_a_landing_wakes_all_who_wait(place: Place, people: People) -> None:
    """By one step, in any process."""
    ann, bob, cyd = people("ann", "bob", "cyd")
    lease = ann.acquire(place.lock(NAME))
    waiting = [follow(bob, place, lease.fence), follow(cyd, place, lease.fence)]
    wait_until(lambda: place.following() == 2, what="both to wait")
    assert not any(call.done() for call in waiting)
    assert land(ann, place, lease)
    told = Landing(lease.fence, KEPT)
    assert [call.result(scaled(2)) for call in waiting] == [told] * 2
    ann.release(lease)


def test_who_is_late_hears_of_it(place: Place, people: People) -> None:
    """Whether it landed before or after one begins to wait makes no difference."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(NAME))
    assert land(ann, place, lease)
    ann.release(lease)
    told = Landing(lease.fence, KEPT)
    assert follow(bob, place, lease.fence).result(scaled(2)) == told
    assert follow(bob, place, 0).result(scaled(2)) == told
    assert follow(bob, place, lease.fence + 1, 0.05).result(scaled(2)) is None


def test_only_the_holder_announces_a_result(place: Place, people: People) -> None:
    """Not before, not after, and not under another token. Giving up may be told by anybody."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(NAME))
    assert not land(ann, place, lease, token="0" * 32)
    ann.release(lease)
    assert not land(ann, place, lease)
    assert follow(bob, place, 0, 0.05).result(scaled(2)) is None
    assert land(ann, place, lease, ABORTED, token="")
    assert follow(bob, place, 0).result(scaled(2)) == Landing(lease.fence, ABORTED)


def test_an_expired_holder_announces_nothing(place: Place, people: People) -> None:
    """Also while nobody has reclaimed its lease."""
    ann = people("ann")
    lease = ann.acquire(place.lock(NAME, ttl=0.1, renew=False))
    wait_until(lambda: place.engine.show(NAME) is None, what="its end by the server's clock")
    assert not land(ann, place, lease)
    assert lease.lost


def test_numbers_grow(place: Place, people: People) -> None:
    """An old flight says nothing after a newer one."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(NAME))
    assert land(ann, place, lease)
    assert not land(ann, place, lease)
    assert not land(ann, place, lease, fence=lease.fence - 1)
    assert land(ann, place, lease, ABORTED, fence=lease.fence + 1)
    assert follow(bob, place, 0).result(scaled(2)) == Landing(lease.fence + 1, ABORTED)
    ann.release(lease)


def test_waiting_in_vain_leaves_nothing(place: Place, people: People) -> None:
    """Neither a key nor an inbox."""
    bob = people("bob")
    assert follow(bob, place, 0, 0.05).result(scaled(2)) is None
    assert place.landings() == []


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_one_landing_wakes_a_crowd_at_once(place: RedisPlace) -> None:
    """Fifty threads, one entry."""
    port, barrier = place.engine.sync, threading.Barrier(51)

    def wait() -> tuple[Landing | None, float]:
        barrier.wait()
        return run_sync(port.wait_landing(NAME, 1, scaled(20))), time.monotonic()  # type: ignore[arg-type]

    with ThreadPoolExecutor(50) as pool:
        calls = [pool.submit(wait) for _ in range(50)]
        barrier.wait()
        wait_until(lambda: place.server.blocked("xread") == 50, limit_s=15)
        told_at = time.monotonic()
        assert run_sync(port.land(NAME, "", 7, ABORTED, KEEP_MS))  # type: ignore[arg-type]
        answers = [call.result(scaled(5)) for call in calls]
    assert {landing for landing, _ in answers} == {Landing(7, ABORTED)}
    assert max(at for _, at in answers) - told_at < scaled(0.5)
