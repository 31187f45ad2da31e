"""Names that look like patterns: nothing is ever looked up, listed or ended by a match."""

from __future__ import annotations

from lockapp.naming import lock_name
from tests.contract.fronts import People
from tests.contract.places import Place
from tests.timing import wait_until

AWKWARD = ("job:*", "job:1", "[rate][sms]", "rate", "a?b", "axb", "test\\name", "testname", "*")
"""Each is a pattern that some other one would match, or its match."""


def test_names_that_look_like_patterns_are_listed_as_what_they_are(
    place: Place, people: People
) -> None:
    """As somebody's key part, and bare; each is found by its own name alone."""
    ann = people("ann")
    names = [*AWKWARD, *(lock_name("file", name) for name in AWKWARD)]
    fences = {}
    for name in names:
        fences[name] = ann.acquire(place.lock(name)).fence
    listed = {lock.name: lock.holders[0].fence for lock in place.engine.snapshot(0, 100).locks}
    assert listed == fences
    for name in names:
        state = place.engine.show(name)
        assert state is not None
        assert [holder.fence for holder in state.holders] == [fences[name]]
    for name in ("job:?", "a*", "[r]ate", "test\\\\name", "file:*"):
        assert place.engine.show(name) is None
    for name in names:
        place.engine.force_release(name, fences[name], actor="op")


def test_taking_away_or_reclaiming_a_name_like_a_pattern_touches_no_other(
    place: Place, people: People
) -> None:
    """One by one, and those that ran out all together."""
    ann, bob = people("ann", "bob")
    taken = [ann.acquire(place.lock(name)) for name in AWKWARD[::2]]
    kept = [ann.acquire(place.lock(name, ttl=60, renew=False)) for name in AWKWARD[1::2]]
    before = [place.raw(lease.name) for lease in kept]
    for lease in taken:
        place.engine.force_release(lease.name, lease.fence, actor="op")
        wait_until(lambda lease=lease: lease.lost)
    assert [place.raw(lease.name) for lease in kept] == before
    gone = [bob.acquire(place.lock(name, ttl=0.1, renew=False)) for name in AWKWARD[::2]]
    wait_until(lambda: all(lease.lost for lease in gone))
    wait_until(lambda: place.engine.sweep() == 0 and place.engine.snapshot().total == len(kept))
    assert [place.raw(lease.name) for lease in kept] == before
    for lease in kept:
        ann.release(lease)
