"""P7: renewal can only prolong what we hold, and ends with the handle, the body or max_hold."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import pytest

from tests.contract.fronts import People
from tests.contract.places import Place
from tests.timing import pause, wait_until


def test_a_lease_is_held_for_longer_than_its_ttl(place: Place, people: People) -> None:
    """Renewed by the watchdog, as often as needed."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(ttl=1))
    for _ in range(4):
        pause(0.4)
        assert not lease.lost
        assert bob.try_acquire(place.lock()) is None
    ann.release(lease)
    assert place.kinds() == ["acquired", "released"]


@pytest.mark.offers("claims")
def test_a_lease_that_was_handed_over_is_renewed_within_its_claim_window(
    place: Place, people: People
) -> None:
    """The first renewal makes a claim a full lease."""
    place.engine = place.another_engine(claim_window=1)
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    waiting = bob.start_acquire(place.lock(ttl=5, wait=5))
    wait_until(lambda: (state := place.engine.show("order:1")) and state.waiter_count)
    ann.release(lease)
    handed = waiting.result(5)
    # Whose replicas must have it has it confirmed before it counts.
    assert handed.confirmed == bool(place.engine.options.min_replicas_acked)
    wait_until(lambda: handed.remaining > 4)
    pause(1.2)
    assert not handed.lost
    bob.release(handed)


def test_renewal_never_shortens(place: Place, people: People) -> None:
    """Asked for early, it sets the life back to the full ttl and no less."""
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=10))
    last = lease.valid_until
    for _ in range(5):
        ann.renew(lease)
        assert lease.valid_until >= last - 0.002  # the server counts in whole milliseconds
        last = lease.valid_until
    ann.release(lease)


def test_a_hung_body_is_renewed_no_longer_than_max_hold(place: Place, people: People) -> None:
    """The lock is free for the next one, the handle is lost, and the log says why."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(ttl=0.9, max_hold=1.6))
    granted_before = place.engine.now()
    waiting = bob.start_acquire(place.lock(wait=5))
    pause(1)
    assert not lease.lost
    taken = waiting.result(5)
    assert lease.lost
    wait_until(lambda: lease.lost_reason == "max_hold")
    ended = next(event for event in place.events() if event.kind == "expired")
    assert ended.fence == lease.fence
    assert ended.detail["why"] == "max_hold"
    assert int(ended.detail["held_ms"]) >= 1500
    assert lease.valid_until <= granted_before + 1.6
    bob.release(taken)


def test_renewal_by_hand_does_not_pass_max_hold(place: Place, people: People) -> None:
    """Whoever asks."""
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=2, max_hold=0.5))
    ann.renew(lease)
    assert lease.remaining <= 0.5
    ann.release(lease)


def test_a_dropped_handle_is_renewed_no_more(place: Place, people: People) -> None:
    """Within one ttl the lock is free, and the log says that a lease was dropped."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(ttl=1))
    wait_until(partial(lambda held: held.remaining < 0.8, lease))  # the watchdog has it in hand
    wait_until(partial(lambda held: held.remaining > 0.8, lease))
    del lease
    gc.collect()
    taken = bob.acquire(place.lock(), wait=5)
    assert place.kinds() == ["acquired", "expired", "acquired"]
    bob.release(taken)


def test_renewal_stops_before_the_release_is_sent(
    place: Place, people: People, caplog: Any
) -> None:
    """Released just as the watchdog is about to renew: no lease is taken for lost."""
    ann = people("ann")
    rounds = 10
    for round_ in range(rounds):
        lease = ann.acquire(place.lock(ttl=0.9))
        pause(0.268 + round_ * 0.004)  # renewals are due after 270 to 300 ms
        ann.release(lease)
    assert place.kinds() == ["acquired", "released"] * rounds
    assert "lost" not in caplog.text


def test_many_leases_share_one_watchdog(place: Place, people: People) -> None:
    """Three hundred leases held past their ttl: one thread or task, none lost."""
    ann = people("ann")
    ann.release(ann.acquire(place.lock()))
    threads = threading.active_count()
    leases = [ann.acquire(place.lock(f"order:{number}", ttl=3)) for number in range(300)]
    pause(3.5)
    assert threading.active_count() <= threads + 1  # the watchdog, if it had ended before
    assert [lease for lease in leases if lease.lost] == []
    for lease in leases:
        ann.release(lease)


def test_a_lease_handed_in_while_the_watchdog_falls_asleep_is_renewed(
    place: Place, people: People
) -> None:
    """Pauses around the watchdog's linger: each lease lives past its ttl all the same."""
    ann = people("ann")
    for round_ in range(4):
        pause(0.028 + round_ * 0.001)
        lease = ann.acquire(place.lock(ttl=1.2))
        pause(1.4)
        assert not lease.lost
        ann.release(lease)


@pytest.mark.offers("long_lives")
def test_a_lease_that_is_due_in_months_keeps_nobody_from_being_renewed(
    place: Place, people: People
) -> None:
    """A watchdog's sleep has an end that the system can express."""
    ann = people("ann")
    year = ann.acquire(place.lock("order:year", ttl=365 * 86400, max_hold=None, renew=False))
    brief = ann.acquire(place.lock("order:brief", ttl=1))
    pause(1.5)
    assert not brief.lost
    ann.release(brief)
    ann.release(year)
