"""P10: every transition is an event, in order and numbered; the log never fails a lock."""

from __future__ import annotations

import json
import time

import pytest

from tests.contract.fronts import People, done
from tests.contract.places import MemoryPlace, Place, RedisPlace
from tests.contract.test_waiting import queue_up
from tests.timing import wait_until


def test_every_transition_is_an_event_in_the_order_in_which_it_happened(
    place: Place, people: People
) -> None:
    """Each kind once, with what belongs to it; numbers without a hole; one end for each grant."""
    # A holder whose lease was taken away believes in it until its next renewal: each its own.
    ann, bob, cid, dan = people("ann", "bob", "cid", "dan")
    first = ann.acquire(place.lock(ttl=30, why="first"))
    (waiting,) = queue_up(place, [bob])
    ann.release(first)
    second = done(waiting)
    place.engine.force_release("order:1", second.fence, actor="zoë", reason="too slow")
    third = cid.acquire(place.lock(ttl=1))  # its tombstone stays as long
    item = third.renew_item
    place.engine.abandon("order:1", item.token, actor="worker", reason="child died")
    fourth = ann.acquire(place.lock("order:1", ttl=0.5, renew=False))
    wait_until(lambda: fourth.lost)
    fifth = dan.acquire(place.lock(), wait=5)
    dan.release(fifth)

    events = place.events("order:1")
    assert [(event.kind, event.fence) for event in events] == [
        ("acquired", first.fence),
        ("released", first.fence),
        ("acquired", second.fence),
        ("forced", second.fence),
        ("acquired", third.fence),
        ("abandoned", third.fence),
        ("acquired", fourth.fence),
        ("expired", fourth.fence),
        ("acquired", fifth.fence),
        ("released", fifth.fence),
    ]
    assert [event.number for event in events] == list(range(1, 11))
    assert [event.at_us for event in events] == sorted(event.at_us for event in events)
    assert abs(events[0].at_us / 1e6 - time.time()) < 60
    details = [event.detail for event in events]
    assert json.loads(details[0]["description"])["why"] == "first"
    assert details[0]["ttl_ms"] == "30000"
    assert (details[0]["weight"], details[0]["limit"]) == ("1", "1")
    assert details[0]["max_hold_ms"] == "3600000"
    assert details[0]["waited_ms"] == "0"
    assert int(details[2]["waited_ms"]) >= 0
    assert (details[3]["actor"], details[3]["reason"]) == ("zoë", "too slow")
    assert (details[5]["actor"], details[5]["reason"]) == ("worker", "child died")
    assert details[7]["why"] == ""
    assert all(int(detail["held_ms"]) >= 0 for detail in details[1::2])


def test_events_of_many_contenders_tell_one_story(place: Place, people: People) -> None:
    """No grant before the last one's end; numbers dense; ids grow."""
    from tests.contract.journal import Journal

    journal = Journal()
    crowd = people("a", "b", "c", "d")
    for visit in [one.start_visits(place.lock(wait=20), journal, 15, 0) for one in crowd]:
        done(visit)
    events = place.events("order:1")
    assert [event.kind for event in events] == ["acquired", "released"] * 60
    assert [event.fence for event in events[::2]] == [event.fence for event in events[1::2]]
    assert [event.fence for event in events[::2]] == journal.visits
    assert [event.number for event in events] == list(range(1, 121))
    ids = [tuple(map(int, event.id.split("-"))) for event in events]
    assert ids == sorted(set(ids))


def test_reading_goes_on_where_it_stopped(place: Place, people: People) -> None:
    """In pages, to the end, and nothing twice."""
    ann = people("ann")
    for _ in range(6):
        ann.release(ann.acquire(place.lock()))
    after, pages = "0-0", []
    while page := place.engine.read_events(place.shard(), after, 5):
        pages.append(len(page))
        after = page[-1].id
    assert pages == [5, 5, 2]
    identity = place.engine.stream_identity(place.shard())
    assert identity.last_id == after
    assert identity.last_number == 12
    assert identity.server


@pytest.mark.offers("own_log")
def test_trimming_forgets_what_was_stored_elsewhere(place: Place, people: People) -> None:
    """Never more than asked for; the numbers go on."""
    ann = people("ann")
    for _ in range(300):
        ann.release(ann.acquire(place.lock()))
    events = place.events()
    place.engine.trim_events(place.shard(), events[399].id)
    left = place.events()
    # A stream is trimmed by whole nodes: some of what may go can stay.
    assert left[-200:] == events[400:]
    assert len(left) < len(events)
    ann.release(ann.acquire(place.lock()))
    assert place.events()[-1].number == 602


@pytest.mark.offers("own_log")
def test_the_log_is_capped(place: Place, people: People) -> None:
    """A collector that never comes fills no memory; what is dropped can be told by the numbers."""
    place.engine = place.another_engine(event_cap=100)
    ann = people("ann")
    for _ in range(300):
        ann.release(ann.acquire(place.lock()))
    numbers = [event.number for event in place.events()]
    assert 100 <= len(numbers) <= 300
    assert numbers == list(range(600 - len(numbers) + 1, 601))


def test_a_log_that_cannot_be_written_fails_no_lock_and_the_gap_is_visible(
    redis_place: RedisPlace, people: People
) -> None:
    """The stream's key has a wrong type; acquire, hand over, renew, force: all as ever."""
    place = redis_place
    ann, bob = people("ann", "bob")
    ann.release(ann.acquire(place.lock()))
    place.break_audit()
    lease = ann.acquire(place.lock())
    (waiting,) = queue_up(place, [bob])
    ann.renew(lease)
    ann.release(lease)
    handed = done(waiting)
    place.engine.force_release("order:1", handed.fence, actor="op", reason="test")
    place.mend_audit()
    ann.release(ann.acquire(place.lock()))
    # Numbers 1 and 2 were lost with the key, 3 to 6 could not be written.
    assert [event.number for event in place.events()] == [7, 8]
    assert int(place.client.hget(place.key("counts"), "failed") or 0) == 4


def test_an_interruption_of_the_log_in_memory_leaves_the_lock_whole_and_a_visible_gap(
    memory_place: MemoryPlace,
) -> None:
    """The step has been taken when the log is written."""
    place = memory_place

    class Interruption(BaseException):
        pass

    def interrupted(_: int) -> str:
        del place.server.log._next_id
        raise Interruption

    place.server.log._next_id = interrupted
    with pytest.raises(Interruption):
        place.lock().acquire()
    wait_until(lambda: place.engine.show("order:1") is None, what="the acquire to be undone")
    place.lock().acquire().release()
    numbers = [event.number for event in place.events()]
    assert numbers[0] == 2
    assert numbers == list(range(2, 2 + len(numbers)))
