"""Interruptible: what others do to a lease reaches its holder at once, not at the next renewal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockapp.core.values import ForceOutcome, HolderState
from lockapp.primitives import Semaphore
from tests.contract.fronts import People
from tests.contract.places import Place, RedisPlace
from tests.proxy import TcpProxy
from tests.timing import scaled, stopwatch, wait_until

NAME = "order:1"


def test_a_forced_release_is_noticed_at_once(place: Place, people: People) -> None:
    """Long before a renewal is due; `on_lost` is called once."""
    ann = people("ann")
    told: list[Any] = []
    lease = ann.acquire(place.lock(NAME, ttl=60))
    lease.on_lost(told.append)
    wait_until(lambda: place.listening(), what="the notice channel")
    with stopwatch() as watch:
        place.another_engine().force_release(NAME, lease.fence, actor="op", reason="stuck")
        wait_until(lambda: lease.lost, every_s=0.001)
    assert watch.seconds < scaled(2), "a renewal is due after 18 s"
    wait_until(lambda: told == [lease])
    assert lease.lost_reason == "forced"
    assert json.loads(lease.lost_note) == {"actor": "op", "reason": "stuck"}


def test_a_holder_can_be_asked_to_let_go(place: Place, people: People) -> None:
    """It keeps the lease until it does; the request carries who and why, and comes once."""
    ann, bob = people("ann", "bob")
    told: list[Any] = []
    lease = ann.acquire(place.lock(NAME, ttl=60))
    lease.on_revoke(told.append)
    wait_until(lambda: place.listening(), what="the notice channel")
    assert not lease.revoke_requested
    asked = place.engine.revoke(NAME, lease.fence, actor="op", reason="deploy")
    assert asked is ForceOutcome.ASKED
    with stopwatch() as watch:
        wait_until(lambda: lease.revoke_requested, every_s=0.001)
    assert watch.seconds < scaled(2), "a renewal is due after 18 s"
    wait_until(lambda: told == [lease])
    assert lease.live
    assert json.loads(lease.revoke_note)["reason"] == "deploy"
    place.engine.revoke(NAME, lease.fence, actor="op", reason="deploy at last")
    ann.renew(lease)
    assert json.loads(lease.revoke_note)["reason"] == "deploy at last"
    assert told == [lease]
    assert bob.try_acquire(place.lock(NAME)) is None
    ann.release(lease)
    again = bob.acquire(place.lock(NAME))
    assert not again.revoke_requested, "the request was for the lease, not for the lock"
    bob.release(again)
    assert "revoked" in place.kinds()


def test_a_lease_that_is_not_renewed_is_told_as_well(place: Place, people: People) -> None:
    """And is not prolonged by being asked about."""
    ann = people("ann")
    lease = ann.acquire(place.lock(NAME, ttl=60, renew=False))
    granted_by, deadline_ms = place.engine.now(), shown(place)[0].deadline_ms
    wait_until(lambda: place.listening(), what="the notice channel")
    place.engine.revoke(NAME, lease.fence, actor="op")
    wait_until(lambda: lease.revoke_requested)
    if place.shows_deadlines:
        assert shown(place)[0].deadline_ms == deadline_ms
    assert lease.valid_until <= granted_by + 60
    ann.release(lease)


def test_only_the_lease_that_was_shown_is_asked(place: Place, people: People) -> None:
    """A stale page asks nobody."""
    ann = people("ann")
    assert place.engine.revoke(NAME, 1, actor="op") is ForceOutcome.NOT_HELD
    lease = ann.acquire(place.lock(NAME))
    assert place.engine.revoke(NAME, lease.fence + 1, actor="op") is ForceOutcome.CHANGED
    assert not lease.revoke_requested
    ann.release(lease)


def test_looking_at_a_lock_asks_its_script_and_nothing_else(
    far_place: RedisPlace, proxy: TcpProxy
) -> None:
    """Holders, queue and what they are asked come from one moment."""
    with far_place.lock(NAME, ttl=60):
        proxy.forget_counts()
        assert len(shown(far_place)) == 1
        assert proxy.commands["EVALSHA"]
        # EVAL comes once for each script; the others are the watchdog's.
        assert set(proxy.commands) <= {"EVALSHA", "EVAL", "CLIENT", "SUBSCRIBE"}


@pytest.mark.offers("sharing")
def test_who_looks_at_a_lock_sees_what_its_holder_is_asked(place: Place, people: People) -> None:
    """Who, why and when by the server's clock; of several holders, which; until it lets go."""
    ann, bob = people("ann", "bob")
    semaphore = Semaphore(place.engine, NAME, 3, ttl=60)
    first, second = ann.acquire(semaphore), bob.acquire(semaphore)
    assert [it.revoked for it in shown(place)] == ["", ""]
    for actor in ("zoë", "op"):  # the last one counts
        place.engine.revoke(NAME, second.fence, actor=actor, reason="deploy")
    asked = {it.fence: it.revoked for it in shown(place)}
    assert asked[first.fence] == ""
    note = json.loads(asked[second.fence])
    assert (note["actor"], note["reason"]) == ("op", "deploy")
    (listed,) = place.engine.snapshot().locks
    assert {it.fence: it.revoked for it in listed.holders} == asked
    state = next(it for it in shown(place) if it.fence == second.fence)
    assert state.granted_ms <= int(note["asked_ms"]) <= state.granted_ms + state.held_ms
    bob.release(second)
    assert [it.revoked for it in shown(place)] == [""]
    ann.release(first)


def shown(place: Place) -> tuple[HolderState, ...]:
    """The holders, as people see them."""
    state = place.engine.show(NAME)
    return state.holders if state else ()
