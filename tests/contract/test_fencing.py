"""P9: each grant has a larger fence than every earlier one, whatever the server has forgotten."""

from __future__ import annotations

import time

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.memory.server import MemoryServer
from lockapp.exceptions import LeaseLost
from lockapp.lock import Lock
from tests.contract.fronts import People
from tests.contract.places import Place
from tests.timing import wait_until


def test_fences_grow_with_each_grant_of_any_name(place: Place, people: People) -> None:
    """Faster than the clock's microseconds, too."""
    ann = people("ann")
    fences = []
    for number in range(60):
        lease = ann.acquire(place.lock(f"order:{number % 3}"))
        fences.append(lease.fence)
        ann.release(lease)
    assert fences == sorted(set(fences))


@pytest.mark.offers("fences_of_time")
def test_a_fence_is_the_time_of_its_grant_at_least(place: Place, people: People) -> None:
    """Microseconds since the epoch: so that it grows over restarts as well."""
    ann = people("ann")
    before = time.time_ns() // 1000
    lease = ann.acquire(place.lock())
    assert before - 50_000 < lease.fence < time.time_ns() // 1000 + 50_000
    ann.release(lease)


@pytest.mark.offers("fences_of_time")
def test_fences_grow_after_the_last_one_was_lost(place: Place, people: People) -> None:
    """The counter is gone; the clock is not."""
    ann = people("ann")
    for _ in range(5):
        lease = ann.acquire(place.lock())
        ann.release(lease)
        place.lose_fence()
        again = ann.acquire(place.lock())
        assert again.fence > lease.fence
        ann.release(again)


def test_after_all_data_was_lost_the_next_renewal_says_so_and_fences_have_grown(
    place: Place, people: People
) -> None:
    """FLUSHDB or an empty restart: two may believe for a moment, and the fence tells them apart."""
    ann, bob = people("ann", "bob")
    old = ann.acquire(place.lock(ttl=0.9))
    place.lose_everything()
    new = bob.acquire(place.lock(), wait=0)
    assert new.fence > old.fence
    wait_until(lambda: old.lost)
    assert old.lost_reason == "gone"
    with pytest.raises(LeaseLost):
        ann.release(old)
    assert place.engine.show("order:1") is not None
    bob.release(new)


def test_renewal_after_all_data_was_lost_does_not_bring_the_lease_back(
    place: Place, people: People
) -> None:
    """It would bring it back beside somebody else's."""
    ann = people("ann")
    lease = ann.acquire(place.lock())
    place.lose_everything()
    with pytest.raises(LeaseLost):
        ann.renew(lease)
    assert place.engine.show("order:1") is None


def test_a_server_clock_set_back_shrinks_no_fence_and_stretches_no_lease(people: People) -> None:
    """The next fence follows the last; a deadline beyond the ttl is clamped."""
    hands = [time.time_ns() // 1000]
    server = MemoryServer(lambda: hands[0])
    engine = MemoryEngine("clock", server, EngineOptions(prefix="clock"))
    ann, bob = people("ann", "bob")
    first = ann.acquire(Lock(engine, "order:1", ttl=20, renew=False))
    hands[0] -= 3_600_000_000
    second = ann.acquire(Lock(engine, "order:2"))
    assert second.fence > first.fence
    ann.release(second)
    assert bob.try_acquire(Lock(engine, "order:1")) is None
    hands[0] += 20_000_000
    taken = bob.acquire(Lock(engine, "order:1"), wait=0)
    assert taken.fence > second.fence
    bob.release(taken)
    with pytest.raises(LeaseLost):
        ann.release(first)
    engine.close()


def test_a_server_clock_set_forward_ends_leases_and_the_fence_shows_it(people: People) -> None:
    """The holder learns it at its next renewal."""
    hands = [time.time_ns() // 1000]
    engine = MemoryEngine("clock", MemoryServer(lambda: hands[0]), EngineOptions(prefix="clock"))
    ann, bob = people("ann", "bob")
    first = ann.acquire(Lock(engine, "order:1", ttl=20))
    hands[0] += 60_000_000
    second = bob.acquire(Lock(engine, "order:1"), wait=0)
    assert second.fence > first.fence
    with pytest.raises(LeaseLost):
        ann.renew(first)
    bob.release(second)
    engine.close()
