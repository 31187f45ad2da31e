"""P10, as a table: what each transition of each primitive leaves in the log, and in the holds.

What changes nobody's right to the lock (a renewal, an answer "busy", a waiter that gives up, a
second acquisition of a reentrant lock) leaves nothing there. A lapsed claim is in test_waiting.py,
a run without the server in test_degraded.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lockapp.audit.event import record_fields
from lockapp.audit.holds import ENDS, holds_of
from lockapp.engines.base import Engine
from lockapp.exceptions import LeaseLost, NotAcquired
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.models import LockEvent
from lockapp.primitives import MultiLock, RWLock, Semaphore
from tests.contract.places import Place
from tests.timing import wait_until

NAME = "order:1"
Take = Callable[..., Any]


def semaphore(engine: Engine, name: str, **options: Any) -> Lock:
    return Semaphore(engine, name, 2, **options)


def reader(engine: Engine, name: str, **options: Any) -> Lock:
    return RWLock(engine, name, **options).read()


def writer(engine: Engine, name: str, **options: Any) -> Lock:
    return RWLock(engine, name, **options).write()


def several(engine: Engine, name: str, **options: Any) -> MultiLock:
    return MultiLock([Lock(engine, each, **options) for each in (name, "order:2")])


PRIMITIVES: dict[Callable[..., Any], str] = {
    Lock: "mutex",
    semaphore: "semaphore",
    reader: "read",
    writer: "write",
    several: "mutex",
}
"""What makes one, and what its holds are called."""


def one(lease: Any) -> Lease:
    """The lease of the name that is looked at."""
    found: Lease = next(it for it in getattr(lease, "leases", [lease]) if it.name == NAME)
    return found


def done(lease: Any) -> None:
    """Release what may have been taken away."""
    with contextlib.suppress(LeaseLost):
        lease.release()


def reclaimed(place: Place) -> bool:
    """Whether the end of the lease is an event; what has expired is reclaimed by who looks."""
    place.engine.sweep()
    return place.kinds()[-1] == "expired"


def released(place: Place, take: Take) -> None:
    take().release()


def renewed(place: Place, take: Take) -> None:
    lease = take()
    one(lease).renew()
    lease.release()


def expired(place: Place, take: Take) -> None:
    lease = take(ttl=0.3, renew=False)
    wait_until(lambda: one(lease).lost)
    wait_until(lambda: reclaimed(place))
    done(lease)


def held_too_long(place: Place, take: Take) -> None:
    lease = take(ttl=5, max_hold=0.3)
    wait_until(lambda: one(lease).lost)
    wait_until(lambda: reclaimed(place))
    done(lease)


def forced(place: Place, take: Take) -> None:
    lease = take()
    place.engine.force_release(NAME, one(lease).fence, actor="zoë", reason="stuck")
    done(lease)


def revoked(place: Place, take: Take) -> None:
    lease = take()
    place.engine.revoke(NAME, one(lease).fence, actor="zoë", reason="deploy")
    lease.release()


def abandoned(place: Place, take: Take) -> None:
    lease = take(ttl=0.5)  # its tombstone stays as long
    place.engine.abandon(NAME, one(lease).renew_item.token, actor="worker", reason="child died")
    done(lease)


def elsewhere(work: Callable[[], object]) -> threading.Thread:
    """Do it as another owner."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def refused(place: Place, take: Take) -> None:
    lease = take()

    def ask() -> None:
        for wait in (0, 0.01):
            with pytest.raises(NotAcquired):
                Lock(place.engine, NAME, wait=wait).acquire()

    elsewhere(ask).join()
    lease.release()


def handed_over(place: Place, take: Take) -> None:
    lease = take()

    def wait() -> None:
        Lock(place.engine, NAME, wait=20).acquire().release()

    waiting = elsewhere(wait)
    wait_until(lambda: (state := place.engine.show(NAME)) and state.waiter_count)
    lease.release()
    waiting.join()


def downgraded(place: Place, take: Take) -> None:
    lease = take()
    lease.downgrade()
    lease.release()


def reentered(place: Place, take: Take) -> None:
    outer = take(reentrant=True)
    take(reentrant=True).release()
    outer.release()


TRANSITIONS: dict[Callable[[Place, Take], None], list[str]] = {
    released: ["acquired", "released"],
    renewed: ["acquired", "released"],
    expired: ["acquired", "expired"],
    held_too_long: ["acquired", "expired"],
    forced: ["acquired", "forced"],
    revoked: ["acquired", "revoked", "released"],
    abandoned: ["acquired", "abandoned"],
    refused: ["acquired", "released"],
    handed_over: ["acquired", "released", "acquired", "released"],
    downgraded: ["acquired", "downgraded", "released"],
    reentered: ["acquired", "released"],
}
SHARING = (semaphore, reader, writer)
ONLY = {downgraded: writer, reentered: Lock}
CASES = [
    pytest.param(
        transition,
        primitive,
        id=f"{transition.__name__}-{primitive.__name__}",
        marks=pytest.mark.offers("sharing") if primitive in SHARING else (),
    )
    for transition in TRANSITIONS
    for primitive in PRIMITIVES
    if ONLY.get(transition, primitive) is primitive
]


@pytest.mark.parametrize(("transition", "primitive"), CASES)
def test_each_transition_of_each_primitive_is_the_event_that_it_should_be(
    place: Place, transition: Callable[[Place, Take], None], primitive: Callable[..., Any]
) -> None:
    """No more and no less; each lease is one hold, of its kind, with its end."""

    def take(**options: Any) -> Any:
        return primitive(place.engine, NAME, **{"wait": 0, **options}).acquire()

    transition(place, take)
    records = place.events(NAME)
    kinds = [record.kind for record in records]
    expected = TRANSITIONS[transition]
    if "expired" in expected:  # before the answer came, on a slow machine: then it asks again
        expected = expected * max(len(kinds) // 2, 1)
    assert kinds == expected
    assert set(kinds) <= set(LockEvent.Kind.values)

    events = [LockEvent(**record_fields("default", "", record)) for record in records]
    holds = [hold for found in holds_of(events).values() for hold in found]
    holds.sort(key=lambda hold: hold.fence)
    assert [hold.ended for hold in holds] == [each for each in kinds if each in ENDS]
    assert holds[0].kind == PRIMITIVES[primitive]
    assert all(hold.held_ms is not None and hold.waited_ms is not None for hold in holds)
