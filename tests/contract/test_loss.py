"""P6: loss is known by the holder's own clock, and never replaces what the body did."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockapp.exceptions import LeaseLost
from lockapp.lease import Lease
from tests.contract.fronts import People
from tests.contract.places import Place, RedisPlace
from tests.contract.processes import actor, freeze, line
from tests.proxy import TcpProxy
from tests.timing import pause, scaled, stopwatch, wait_until


def test_loss_is_computed_when_it_is_read(place: Place, people: People) -> None:
    """The clock alone decides: no thread has had a turn, no server was asked."""
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=30))
    assert not lease.lost
    assert 28 < lease.remaining <= 30
    real = place.engine.now
    # A frozen process that wakes up: its clock has gone on, nothing else has happened.
    place.engine.now = lambda: real() + 31  # type: ignore[method-assign]
    assert lease.lost
    assert lease.lost_reason == "expired"
    assert lease.remaining == 0
    with pytest.raises(LeaseLost) as loss:
        lease.check()
    assert loss.value.fence == lease.fence
    place.engine.now = real  # type: ignore[method-assign]
    ann.release(lease)


def test_validity_counts_from_before_the_request_and_less_drift(
    place: Place, people: People
) -> None:
    """1 % and 2 ms of every life are given away."""
    ann = people("ann")
    before = place.engine.now()
    lease = ann.acquire(place.lock(ttl=10))
    assert lease.valid_until - place.engine.now() <= 10 * 0.99 - 0.002
    assert lease.valid_until >= before + 10 * 0.99 - 0.002 - 0.001
    ann.release(lease)


def test_an_unrenewed_lease_is_lost_by_the_end_of_its_ttl(place: Place, people: People) -> None:
    """Not a moment after the server could have granted it to somebody else."""
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=0.2, renew=False))
    granted_before = place.engine.now()
    lost = False
    while not lost:
        now, lost = place.engine.now(), lease.lost
        assert lost or now < granted_before + 0.2
    state = place.engine.show("order:1")
    assert state is None or state.holders[0].fence == lease.fence


def test_a_lease_that_was_lost_stays_lost(place: Place, people: People) -> None:
    """Also when the server has prolonged it, and its answer was read too late.

    Who read that it is lost has stopped, so nobody keeps it: it is given back at once.
    """
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=10, renew=False))
    told: list[str] = []
    lease.on_lost(lambda lost: told.append(lost.lost_reason))
    item = lease.renew_item._replace(ttl_ms=20_000)
    sent_at = place.engine.now()
    answer = ann.step(place.engine, lambda port: port.renew((item,)))
    real = place.engine.now
    place.engine.now = lambda: real() + 15  # type: ignore[method-assign]
    assert lease.lost
    (renewal,) = answer.renewals
    assert renewal.deadline_ms, "the server has prolonged it"
    lease.renewed(sent_at, answer.now_ms, renewal, place.engine.sync.defer)
    assert lease.lost
    place.engine.now = real  # type: ignore[method-assign]
    assert (lease.lost, lease.lost_reason, told) == (True, "expired", ["expired"])
    wait_until(lambda: place.engine.show("order:1") is None, what="the lock to be free")
    with pytest.raises(LeaseLost):
        ann.release(lease)


def test_a_frozen_process_knows_its_loss_when_it_wakes(redis_place: RedisPlace) -> None:
    """SIGSTOP for longer than the ttl; the first thing it does is to read `lost`."""
    with actor(redis_place, "hold", "0.5") as holder:
        assert line(holder).startswith("held")
        freeze(holder)
        try:
            taken = redis_place.lock().acquire(wait=5)
            assert holder.stdin is not None
            holder.stdin.write("lease.lost, lease.lost_reason, lease.remaining\n")
            holder.stdin.flush()
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        assert line(holder) == "(True, 'expired', 0.0)"
        taken.release()


def test_one_failed_renewal_is_not_a_loss(
    far_place: RedisPlace, proxy: TcpProxy, people: People, caplog: Any
) -> None:
    """It is tried again until the deadline."""
    ann = people("ann")
    lease = ann.acquire(far_place.lock(ttl=1.2))
    proxy.refuse()
    wait_until(lambda: "could not renew" in caplog.text)
    assert not lease.lost
    proxy.heal()
    wait_until(lambda: lease.remaining > 1)
    pause(0.5)
    assert not lease.lost
    ann.release(lease)


def test_a_holder_that_is_cut_off_knows_it_before_the_next_one_is_granted(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """A partition longer than the ttl: the other side of it goes on."""
    ann, bob = people("ann", "bob")
    near = RedisPlace(far_place.server, far_place.prefix)
    lease = ann.acquire(far_place.lock(ttl=0.6))
    told: list[Lease] = []
    lease.on_lost(told.append)
    proxy.refuse()
    taken = bob.acquire(near.lock(), wait=5)
    assert lease.lost
    wait_until(lambda: told == [lease])
    proxy.heal()
    bob.release(taken)
    near.close()


def test_callbacks_are_called_once_and_none_stops_another(
    place: Place, people: People, caplog: Any
) -> None:
    """In order; one that fails is logged; one that comes too late is called at once."""
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=0.15, renew=False))
    calls: list[object] = []

    def fail(_: Lease) -> None:
        raise RuntimeError("callback broke")

    lease.on_lost(fail)
    lease.on_lost(calls.append)
    wait_until(lambda: calls, what="the callback")
    with pytest.raises(LeaseLost):
        ann.release(lease)
    lease.lose("again")
    assert calls == [lease]
    assert "callback broke" in caplog.text
    lease.on_lost(lambda late: calls.append(("late", late)))
    assert calls == [lease, ("late", lease)]


def test_a_loss_that_only_the_release_finds_out_is_told_to_the_callbacks(
    place: Place, people: People
) -> None:
    """The server forgot; no renewal has been due since."""
    ann = people("ann")
    lease = ann.acquire(place.lock())
    told: list[Lease] = []
    lease.on_lost(told.append)
    place.lose_everything()
    with pytest.raises(LeaseLost) as loss:
        ann.release(lease)
    assert loss.value.reason == "gone"
    assert told == [lease]
    assert lease.lost


def test_a_holder_is_told_who_took_its_lease_and_why(place: Place, people: People) -> None:
    """At its next renewal at the latest; the error repeats it."""
    place.engine = place.another_engine(tombstone=2)
    ann = people("ann")
    lease = ann.acquire(place.lock(ttl=0.6))
    place.engine.force_release("order:1", lease.fence, actor="zoë", reason="hangs since noon")
    wait_until(lambda: lease.lost)
    assert lease.lost_reason == "forced"
    with pytest.raises(LeaseLost, match="hangs since noon") as loss:
        lease.check()
    assert "zoë" in loss.value.note


def test_a_result_survives_the_loss_of_the_lease(place: Place, people: People, caplog: Any) -> None:
    """Hours of work are not thrown away; the loss is logged as a warning."""
    ann = people("ann")
    assert ann.within(place.lock(ttl=0.05, renew=False), _outlive(place, 7)) == 7
    assert "may have been done by two" in caplog.text
    assert "order:1" in caplog.text
    assert {r.levelno for r in caplog.records if "done by two" in r.message} == {logging.WARNING}


def test_an_exception_survives_the_loss_of_the_lease(place: Place, people: People) -> None:
    """The body's own error arrives unchanged, asked for or not."""
    ann = people("ann")
    for on_lost in (None, "raise"):
        lock = place.lock(ttl=0.05, renew=False, on_lost=on_lost)
        with pytest.raises(ValueError, match=r"^mine$"):
            ann.within(lock, _outlive(place, ValueError("mine")))


def test_loss_is_raised_when_asked_for(place: Place, people: People) -> None:
    """`on_lost="raise"` at the end of a body that was content."""
    ann = people("ann")
    lock = place.lock(ttl=0.05, renew=False, on_lost="raise")
    with pytest.raises(LeaseLost):
        ann.within(lock, _outlive(place, 7))


def _outlive(place: Place, outcome: Any) -> Any:
    def body(lease: Lease) -> Any:
        wait_until(lambda: place.engine.show(lease.name) is None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return body


@contextmanager
def _own_handler(signum: int, handler: Any) -> Iterator[None]:
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize("front", ["sync", "async"])
def test_an_interpreter_that_exits_without_release_ends_at_once_and_quietly(
    redis_place: RedisPlace, front: str
) -> None:
    """No traceback, no hanging thread; the lease ends by itself."""
    arguments = [redis_place.url, redis_place.prefix, "order:1", "leave", "0.5", front]
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "tests.contract.actor", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as leaving:  # fmt: skip
        assert line(leaving).startswith("held")
        with stopwatch() as watch:
            _, errors = leaving.communicate(timeout=scaled(20))
    assert leaving.returncode == 0
    assert "Traceback" not in errors
    assert "Exception" not in errors
    assert watch.seconds < scaled(2)
    redis_place.lock().acquire(wait=5).release()
