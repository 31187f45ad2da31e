"""P2: every transition is one step on the server that compares the token."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from lockapp.core.values import ForceOutcome, Gone, RenewItem
from lockapp.exceptions import EngineUnavailable, LeaseLost
from tests.contract.fronts import People, done
from tests.contract.places import Place
from tests.timing import wait_until


def test_a_stale_release_changes_nothing_of_the_next_holders_lease(
    place: Place, people: People
) -> None:
    """To the byte: value, deadline and index are as before, and the lock is still taken."""
    ann, bob, cid = people("ann", "bob", "cid")
    stale = ann.acquire(place.lock(ttl=0.15, renew=False))
    present = bob.acquire(place.lock(ttl=10, wait=5))
    if not present.confirmed:
        bob.renew(present)
    before = place.raw("order:1")
    with pytest.raises(LeaseLost):
        ann.release(stale)
    assert place.raw("order:1") == before
    assert cid.try_acquire(place.lock()) is None
    bob.release(present)


def test_a_stale_release_raced_against_the_next_acquire_never_frees_it(
    place: Place, people: People
) -> None:
    """Two hundred rounds: a release that comes as the lease runs out, and somebody who waits."""
    ann, bob, cid = people("ann", "bob", "cid")
    short, long = place.lock(ttl=0.012, renew=False), place.lock(ttl=10, wait=5)
    raced = 0
    for _ in range(200):
        try:
            stale = ann.acquire(short)
        except EngineUnavailable:  # a machine so busy that each answer outlasted the lease
            continue
        raced += 1
        next_one = bob.start_acquire(long)
        wait_until(partial(getattr, stale, "lost"), every_s=0.0005)
        release = ann.start_release(stale)
        present = done(next_one)
        with contextlib.suppress(LeaseLost):
            done(release)
        assert cid.try_acquire(long) is None
        state = place.engine.show("order:1")
        assert state is not None
        assert [holder.fence for holder in state.holders] == [present.fence]
        bob.release(present)
    assert raced > 150


def test_renewal_with_a_strangers_token_prolongs_nothing_and_creates_nothing(
    place: Place, people: People
) -> None:
    """A late tick of a former holder: neither the present lease nor a free name notices it."""
    ann, bob = people("ann", "bob")
    stale = ann.acquire(place.lock(ttl=0.15, renew=False))
    item = stale.renew_item
    present = bob.acquire(place.lock(ttl=5, wait=5))
    if not present.confirmed:
        bob.renew(present)
    before = place.raw("order:1")
    late = RenewItem(item.name, item.token, 60_000)
    reply = ann.step(place.engine, lambda port: port.renew([late]))
    assert reply.renewals[0].kind
    assert place.raw("order:1") == before
    bob.release(present)
    reply = ann.step(place.engine, lambda port: port.renew([late]))
    assert reply.renewals[0].kind == "gone"
    assert place.engine.show("order:1") is None


def test_a_forced_release_names_the_fence_it_was_shown(place: Place, people: People) -> None:
    """A page that has gone stale, and a double click, break nothing."""
    ann, bob = people("ann", "bob")
    engine = place.engine
    shown = ann.acquire(place.lock())
    ann.release(shown)
    present = bob.acquire(place.lock())
    before = place.raw("order:1")

    def force(fence: int) -> ForceOutcome:
        return ann.step(engine, lambda port: port.force_release("order:1", fence, "op", "old page"))

    assert force(shown.fence) is ForceOutcome.CHANGED
    assert place.raw("order:1") == before
    assert force(present.fence) is ForceOutcome.RELEASED
    assert force(present.fence) is ForceOutcome.NOT_HELD


def test_abandoning_compares_the_token(place: Place, people: People) -> None:
    """Only the lease of the dead process is ended."""
    ann = people("ann")
    present = ann.acquire(place.lock())
    before = place.raw("order:1")
    outcome = ann.step(
        place.engine, lambda port: port.abandon("order:1", "f" * 32, 0, "worker", "child died")
    )
    assert outcome is ForceOutcome.NOT_HELD
    assert place.raw("order:1") == before
    ann.release(present)


def test_an_abandoned_lease_ends_within_its_grace_and_is_not_renewed(
    place: Place, people: People
) -> None:
    """Cut to a grace it lives so long and no longer, whatever its holder sends."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock(ttl=2))
    item = lease.renew_item
    ann.step(place.engine, lambda port: port.abandon(item.name, item.token, 200, "op", "stuck"))
    assert bob.try_acquire(place.lock()) is None
    with pytest.raises(LeaseLost) as loss:
        ann.renew(lease)
    assert loss.value.reason == "abandoned"
    present = bob.acquire(place.lock(), wait=1)
    bob.release(present)
    wait_until(lambda: not place.litter(), limit_s=4)


def test_releasing_what_was_never_held_says_so(place: Place, people: People) -> None:
    """A token that the server does not know ends nothing."""
    ann, bob = people("ann", "bob")
    present = ann.acquire(place.lock())
    reply = bob.step(
        place.engine, lambda port: port.release("order:1", "e" * 32, tombstone=False, why="")
    )
    assert isinstance(reply, Gone)
    assert not present.lost
    ann.release(present)
