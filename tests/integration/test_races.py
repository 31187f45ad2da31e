"""Release, renewal, giving up, expiry, force and sweep cross each other in every order."""

from __future__ import annotations

import secrets
from typing import Any

from lockapp.core.deadline import valid_until
from lockapp.core.values import EVERYBODY, Gone, Granted, LockSpec, RenewItem
from lockapp.engines import procedures
from lockapp.engines.redis.scripts import read
from tests.integration.orders import (
    NAME,
    SPEC,
    Contenders,
    frozen,
    gives_up,
    once,
    passing,
    run,
)
from tests.stepping import SteppingPort, World


async def renews(port: SteppingPort, who: str) -> None:
    """Hold over a renewal that may come too late; leave when it does."""
    token, world = secrets.token_hex(16), port._world
    grant = await procedures.acquire(port, SPEC, token, "{}", 60)
    if isinstance(grant, procedures.NoGrant):
        return
    section = world.enter(who, grant.fence, grant.valid_until)
    sent_at = port.now()
    reply = await port.renew((RenewItem(NAME, token, SPEC.ttl_ms),))
    deadline_ms = reply.renewals[0].deadline_ms
    section.inside = deadline_ms > 0
    section.valid_until = valid_until(sent_at, reply.now_ms, deadline_ms)
    await port.pause()
    section.inside = False
    await procedures.release(port, NAME, token, tombstone=False)


def test_a_renewal_crosses_with_expiry_and_the_next_holder(make_server: Any) -> None:
    """A lease that was renewed is the holder's; one that was not, the next one's."""
    report = run(
        make_server(),
        lambda world: [
            ("A", renews(world.port("A"), "A")),
            ("B", once(world.port("B"), "B", 60)),
            ("T", passing(world.port("T"), 31)),
        ],
    )
    assert report.orders > 100
    assert report.faults == []


async def forces(port: SteppingPort, forced: list[int]) -> None:
    """Look who holds, think, and take it away."""
    _, locks = await port.inspect((NAME,), waiters=False)
    await port.pause()
    if locks:
        fence = locks[0].holders[0].fence
        outcome = await port.force_release(NAME, fence, "alice", "stuck")
        for section in port._world.sections:
            if section.fence == fence and outcome.value == "released":
                section.inside = False  # the one exception: a forced holder may not know yet
        if outcome.value == "released":
            forced.append(fence)


def with_an_operator(world: World) -> Contenders:
    """One releases, one waits, and one is forced out by a page that may be stale."""
    return [
        ("A", once(world.port("A"), "A", 0)),
        ("B", waits_out(world.port("B"), "B")),
        ("F", forces(world.port("F"), [])),
    ]


async def waits_out(port: SteppingPort, who: str) -> None:
    """Wait for the lock; be told when it was forced away before it was taken up."""
    try:
        await once(port, who, 60)
    except procedures.LeaseLost:
        port._world.trace.append(f"{who} was told")


def test_a_forced_release_crosses_with_the_release_and_the_next_holder(make_server: Any) -> None:
    """Only the lease that was shown is taken away."""
    report = run(make_server(), with_an_operator, tombstones=True, drawn=True)
    assert report.orders > 100
    assert report.faults == []


def test_the_harness_sees_a_force_that_compares_no_fence(make_server: Any) -> None:
    """Were it "whoever holds now", a stale page would take the next holder's lease away."""
    guard = "if holder.fence == ARGV[6] then"
    assert guard in (text := read("force_release.lua"))  # noqa: RUF018
    server = make_server({"force_release.lua": text.replace(guard, "if true then")})
    report = run(server, with_a_third, tombstones=True, drawn=True)
    assert any("entered while" in fault for fault in report.faults)


def with_a_third(world: World) -> Contenders:
    """As with_an_operator, and one that takes what was wrongly freed."""
    return [*with_an_operator(world), ("C", once(world.port("C"), "C", 0))]


async def sweeps(port: SteppingPort, times: int) -> None:
    """Sweep at some moments."""
    for _ in range(times):
        await port.sweep((NAME,))


def test_a_late_release_crosses_with_sweep_and_hand_off(make_server: Any) -> None:
    """The lease ends once: by its release, or by whoever notices that it ran out."""
    report = run(
        make_server(),
        lambda world: [
            ("A", frozen(world.port("A"), "A", 31)),
            ("B", once(world.port("B"), "B", 60)),
            ("S", sweeps(world.port("S"), 2)),
        ],
    )
    assert report.orders > 100
    assert report.faults == []


async def releases_twice(port: SteppingPort, who: str) -> None:
    """Release, and once more as after an answer that was lost."""
    token, world = secrets.token_hex(16), port._world
    grant = await procedures.acquire(port, SPEC, token, "{}", 60)
    assert isinstance(grant, procedures.Grant)
    section = world.enter(who, grant.fence, grant.valid_until)
    await port.pause()
    section.inside = False
    await procedures.release(port, NAME, token, tombstone=False)
    again = await procedures.release(port, NAME, token, tombstone=False)
    assert isinstance(again, Gone)


def test_a_release_that_is_repeated_crosses_with_the_next_holder(make_server: Any) -> None:
    """The second one changes nothing."""
    report = run(
        make_server(),
        lambda world: [
            ("A", releases_twice(world.port("A"), "A")),
            ("B", releases_twice(world.port("B"), "B")),
            ("C", once(world.port("C"), "C", 0)),
        ],
        drawn=True,
    )
    assert report.orders > 100
    assert report.faults == []


async def dies(port: SteppingPort, who: str) -> None:
    """Hold and die; the parent says so, twice."""
    token, world = secrets.token_hex(16), port._world
    grant = await procedures.acquire(port, SPEC, token, "{}", 60)
    assert isinstance(grant, procedures.Grant)
    section = world.enter(who, grant.fence, grant.valid_until)
    await port.pause()
    section.inside = False
    await port.abandon(NAME, token, 0, "parent", "died")
    await port.abandon(NAME, token, 0, "parent", "died")


def test_giving_up_crosses_with_the_holders_death(make_server: Any) -> None:
    """The hand-off that the parent's word causes meets a waiter that is about to leave."""
    report = run(
        make_server(),
        lambda world: [
            ("A", dies(world.port("A"), "A")),
            ("B", gives_up(world.port("B"), "B")),
            ("C", once(world.port("C"), "C", 60)),
        ],
        tombstones=True,
        drawn=True,
    )
    assert report.orders > 100
    assert report.faults == []


WRITE = LockSpec(NAME, ttl_ms=30_000, max_hold_ms=0, limit=EVERYBODY, weight=EVERYBODY)
READ = LockSpec(NAME, ttl_ms=30_000, max_hold_ms=0, limit=EVERYBODY, weight=1)


async def shares(port: SteppingPort, spec: LockSpec, inside: dict[str, int], turn: bool) -> None:
    """Read or write for one stop; a writer may turn reader on the way."""
    token, kind = secrets.token_hex(16), "w" if spec is WRITE else "r"
    grant = await procedures.acquire(port, spec, token, "{}", 60)
    assert isinstance(grant, procedures.Grant)
    for one in (kind, "r") if turn else (kind,):
        inside[one] += 1
        if inside["w"] > 1 or (inside["w"] and inside["r"]):
            port._world.faults.append(f"{inside} together: {port._world.trace}")
        await port.pause()
        inside[one] -= 1
        if turn and one == "w":
            reply = await port.downgrade(NAME, token, 1, spec.ttl_ms)
            assert isinstance(reply, Granted)
    await procedures.release(port, NAME, token, tombstone=False)


def test_writers_readers_and_a_downgrade_in_every_order(make_server: Any) -> None:
    """A writer is alone; what it turns into lets readers in, and no writer between."""

    def contenders(world: World) -> Contenders:
        inside = {"r": 0, "w": 0}
        return [
            ("A", shares(world.port("A"), WRITE, inside, turn=True)),
            ("B", shares(world.port("B"), READ, inside, turn=False)),
            ("C", shares(world.port("C"), WRITE, inside, turn=False)),
        ]

    report = run(make_server(), contenders, limit=4000, holders=2)
    assert report.orders > 100
    assert report.faults == []
