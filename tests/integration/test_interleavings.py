"""Every order of two or three contenders' steps, through the production procedures and scripts.

The harness is worth something only if it sees faults: the last tests take guards out of the
scripts and expect it to find overlaps.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from lockapp.core.run import run_sync
from lockapp.core.values import Refused
from lockapp.engines import procedures
from lockapp.engines.redis.scripts import read
from lockapp.exceptions import LeaseLost
from tests.integration.orders import (
    NAME,
    SPEC,
    Contenders,
    Once,
    frozen,
    gives_up,
    once,
    passing,
    run,
)
from tests.stepping import SteppingPort, World


def test_two_that_do_not_wait_never_overlap(make_server: Any) -> None:
    """All orders of two immediate acquisitions."""
    report = run(
        make_server(),
        lambda world: [("A", once(world.port("A"), "A", 0)), ("B", once(world.port("B"), "B", 0))],
        slow_replies=True,
    )
    assert report.complete
    assert report.orders > 100
    assert report.faults == []


def test_two_that_wait_never_overlap_and_leave_nothing(make_server: Any) -> None:
    """All orders of two waiting acquisitions, hand-off and slow replies included."""
    report = run(
        make_server(),
        lambda world: [(who, once(world.port(who), who, 60)) for who in ("A", "B")],
        slow_replies=True,
        limit=2000,
    )
    assert report.complete
    assert report.orders > 200
    assert report.faults == []


def test_three_that_wait_never_overlap_and_leave_nothing(make_server: Any) -> None:
    """All orders of three waiting acquisitions."""
    report = run(
        make_server(),
        lambda world: [(who, once(world.port(who), who, 60)) for who in ("A", "B", "C")],
        limit=9000,
    )
    assert report.complete
    assert report.orders > 1000
    assert report.faults == []


def test_a_stale_release_never_frees_the_next_holder(make_server: Any) -> None:
    """One holder sleeps through its lease and releases late, among two others."""
    report = run(make_server(), with_a_stale_holder, limit=8000)
    assert report.complete
    assert report.orders > 100
    assert report.faults == []


def with_a_stale_holder(world: World) -> Contenders:
    """A stale holder, one that waits, one that does not."""
    return [
        ("A", frozen(world.port("A"), "A", 31)),
        ("B", once(world.port("B"), "B", 60)),
        ("C", once(world.port("C"), "C", 0)),
    ]


def test_giving_up_crosses_with_the_hand_off(make_server: Any) -> None:
    """A waiter that gives up either has the lock or leaves nothing."""
    report = run(
        make_server(),
        lambda world: [
            ("A", once(world.port("A"), "A", 60)),
            ("B", gives_up(world.port("B"), "B")),
            ("C", once(world.port("C"), "C", 0)),
        ],
        limit=5000,
    )
    assert report.complete
    assert report.faults == []


async def cancelled(port: SteppingPort, who: str, after: int) -> None:
    """Be cancelled at the stop number ``after`` of an acquisition that waits."""
    token = secrets.token_hex(16)
    work = procedures.acquire(port, SPEC, token, "{}", 60)
    try:
        for _ in range(after):
            await Once(work.send(None))
        work.throw(KeyboardInterrupt())
    except StopIteration as done:  # it was granted before that stop
        await procedures.release(port, NAME, token, tombstone=done.value.doubtful)
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_cancelling_at_any_stop_leaves_nothing_held_or_queued(make_server: Any, after: int) -> None:
    """The lock is free for the next within the same orders."""

    async def then_takes_it(world: World) -> None:
        port = world.port("C")
        await port.sleep(0)
        await once(port, "C", 60)

    report = run(
        make_server(),
        lambda world: [
            ("A", once(world.port("A"), "A", 60)),
            ("B", cancelled(world.port("B"), "B", after)),
            ("C", then_takes_it(world)),
        ],
        limit=4000,
        tombstones=True,
    )
    assert report.faults == []


def test_a_request_that_arrives_after_its_undo_is_refused(make_server: Any) -> None:
    """The delayed original of an undone acquisition never becomes an orphan."""
    server = make_server()
    port = World(server).port("A")
    steps = port._steps
    run_sync(steps.release(NAME, "late", tombstone=True, why="undone"))
    reply = run_sync(steps.acquire(SPEC, "late", "{}", queue=False))
    assert isinstance(reply, Refused)
    assert reply.kind == "undone"


def while_time_passes(world: World) -> Contenders:
    """Three that wait, while claims and leases run out at any moment."""
    return [
        *((who, once(world.port(who), who, 60)) for who in ("A", "B", "C")),
        ("T", passing(world.port("T"), 3.5)),
        ("U", passing(world.port("U"), 31)),
    ]


def test_a_grant_is_believed_only_while_its_claim_lasts(make_server: Any) -> None:
    """Time passes at any moment between hand-off, wake-up and taking it up (drawn orders)."""
    report = run(
        make_server(),
        while_time_passes,
        limit=1500,
        slow_replies=True,
        drawn=True,
    )
    assert report.faults == []


def test_the_harness_sees_a_stale_grant_that_is_believed(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a grant a possession and not a hint with a deadline, two would hold."""
    believed = procedures.valid_until
    monkeypatch.setattr(
        procedures, "valid_until", lambda sent, now, end: believed(sent, now, end) + 1e6
    )
    report = run(
        make_server(),
        while_time_passes,
        limit=1500,
        slow_replies=True,
        drawn=True,
    )
    assert any("while" in fault for fault in report.faults)


WITHOUT_TOKEN_CHECK = {
    "release.lua": [
        ("flat[1] == 'h:' .. token", "string.sub(flat[1], 1, 2) == 'h:'"),
        (
            "if lock.holders[token] then",
            "token = next(lock.holders) or token\nif lock.holders[token] then",
        ),
    ]
}
WITHOUT_CAPACITY_CHECK = {
    "acquire.lua": [
        ("not mine and not lock.waiting and fits(lock, weight, limit)", "not mine"),
    ]
}


def without(guards: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """Script texts with some guards taken out; each must have been there."""
    sources = {}
    for path, changes in guards.items():
        text = read(path)
        for guard, instead in changes:
            assert guard in text, f"{path} has no {guard!r} any more: adapt this test"
            text = text.replace(guard, instead)
        sources[path] = text
    return sources


@pytest.mark.parametrize(
    "guards",
    [
        pytest.param(WITHOUT_TOKEN_CHECK, id="release-compares-the-token"),
        pytest.param(WITHOUT_CAPACITY_CHECK, id="acquire-respects-the-holder"),
    ],
)
def test_the_harness_sees_a_missing_guard(make_server: Any, guards: Any) -> None:
    """With the check taken out of the script, some order breaks exclusion."""
    report = run(make_server(without(guards)), with_a_stale_holder, limit=3000)
    assert any("while" in fault for fault in report.faults)


def test_a_grant_taken_away_before_it_was_taken_up_is_told(make_server: Any) -> None:
    """An operator's force release during the claim reaches the waiter as a loss."""
    server = make_server()
    world = World(server)

    steps = server.steps
    run_sync(steps.acquire(SPEC, "holder", "{}", queue=False))
    run_sync(steps.acquire(SPEC, "waiter", "{}", queue=True))
    run_sync(steps.release(NAME, "holder", tombstone=False, why=""))
    _, (lock,) = run_sync(steps.inspect((NAME,), waiters=True))
    run_sync(steps.force_release(NAME, lock.holders[0].fence, "alice", "stuck"))
    asking = procedures.acquire(world.port("W"), SPEC, "waiter", "{}", 5)
    asking.send(None)  # to its first stop: the question
    with pytest.raises(LeaseLost) as caught:
        asking.send(None)
    assert caught.value.reason == "forced"
    assert "alice" in caught.value.note
