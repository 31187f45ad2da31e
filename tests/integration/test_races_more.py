"""Taking several at once, turning reader, asking to let go and landing cross everything else.

As `test_races`; who is where is kept per lock here, since these steps concern several locks, or
several holders of one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockapp.core.deadline import valid_until
from lockapp.core.run import run_sync
from lockapp.core.values import EVERYBODY, ForceOutcome, Gone, Granted, LockSpec, RenewItem
from lockapp.engines import procedures
from lockapp.engines.redis.scripts import read
from lockapp.exceptions import LeaseLost
from tests.integration.orders import Contenders, Once, passing, run
from tests.stepping import SteppingPort, World

LEFT, RIGHT = "both:left", "both:right"


@dataclass
class Stay:
    """One holder in a room, until when it may rely on its lease."""

    who: str
    weight: int
    until: float
    inside: bool = True


@dataclass
class Rooms:
    """Who is where."""

    world: World
    stays: dict[str, list[Stay]] = field(default_factory=dict)

    def enter(self, name: str, who: str, until: float, weight: int = EVERYBODY) -> Stay:
        """Go in; more weight than fits is a fault."""
        now, room = self.world.time_s, self.stays.setdefault(name, [])
        there = [stay for stay in room if stay.inside and stay.until > now]
        if until > now and sum(stay.weight for stay in there) + weight > EVERYBODY:
            self.world.faults.append(f"{who} entered {name} beside {there}: {self.world.trace}")
        room.append(Stay(who, weight, until))
        return room[-1]


def spec_of(name: str, weight: int = EVERYBODY) -> LockSpec:
    return LockSpec(name, ttl_ms=30_000, max_hold_ms=0, limit=EVERYBODY, weight=weight)


async def one(port: SteppingPort, rooms: Rooms, who: str, name: str, wait_s: float) -> None:
    """Take one lock, work for a stop, release."""
    await port.pause()
    token = secrets.token_hex(16)
    grant = await procedures.acquire(port, spec_of(name), token, "{}", wait_s)
    if isinstance(grant, procedures.NoGrant):
        return
    stay = rooms.enter(name, who, grant.valid_until)
    await port.pause()
    stay.inside = False
    await procedures.release(port, name, token, tombstone=grant.doubtful)


# ------------------------------------------------------------------ several at once


async def both(port: SteppingPort, rooms: Rooms, who: str, *names: str) -> None:
    """Take several at once, work for a stop, release them one after the other."""
    tokens = [secrets.token_hex(16) for _ in names]
    specs = [spec_of(name) for name in names]
    grants = await procedures.acquire_all(port, specs, tokens, "{}")
    if isinstance(grants, procedures.NoGrant):
        return
    assert len(grants) == len(names)
    stays = [
        rooms.enter(name, who, grant.valid_until) for name, grant in zip(names, grants, strict=True)
    ]
    await port.pause()
    for name, token, stay in zip(names, tokens, stays, strict=True):
        stay.inside = False
        await procedures.release(port, name, token, tombstone=False)


def two_that_take_both(world: World) -> Contenders:
    """Named in opposite orders, among those who want one of them."""
    rooms = Rooms(world)
    return [
        ("A", both(world.port("A"), rooms, "A", LEFT, RIGHT)),
        ("B", both(world.port("B"), rooms, "B", RIGHT, LEFT)),
        ("C", one(world.port("C"), rooms, "C", LEFT, 60)),
        ("D", one(world.port("D"), rooms, "D", RIGHT, 0)),
    ]


def test_several_at_once_cross_with_those_who_want_one(make_server: Any) -> None:
    """All or none: nobody meets anybody, nobody who waits is passed."""
    report = run(make_server(), two_that_take_both, LEFT, RIGHT, drawn=True, limit=600)
    assert report.faults == []


def test_several_at_once_cross_with_expiry_and_hand_off(make_server: Any) -> None:
    """A lease that runs out while somebody waits goes to that one."""

    def contenders(world: World) -> Contenders:
        rooms = Rooms(world)
        return [
            ("A", one(world.port("A"), rooms, "A", LEFT, 0)),
            ("B", both(world.port("B"), rooms, "B", LEFT, RIGHT)),
            ("C", one(world.port("C"), rooms, "C", LEFT, 60)),
            ("T", passing(world.port("T"), 31)),
        ]

    report = run(make_server(), contenders, LEFT, RIGHT, drawn=True, limit=800)
    assert report.faults == []


async def interrupted(port: SteppingPort, after: int) -> None:
    """Be interrupted at a stop of an acquisition of both."""
    tokens = [secrets.token_hex(16) for _ in range(2)]
    work = procedures.acquire_all(port, [spec_of(LEFT), spec_of(RIGHT)], tokens, "{}")
    try:
        for _ in range(after):
            await Once(work.send(None))
        work.throw(KeyboardInterrupt())
    except StopIteration as done:  # it had its answer before that stop
        if not isinstance(done.value, procedures.NoGrant):
            for name, token in zip((LEFT, RIGHT), tokens, strict=True):
                await procedures.release(port, name, token, tombstone=False)
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("after", [1, 2])
def test_interrupting_several_at_once_leaves_none_held(make_server: Any, after: int) -> None:
    """Before the request goes out, and after it was carried out: the other one gets both."""
    got: list[bool] = []

    async def then_takes_both(port: SteppingPort) -> None:
        await port.sleep(1)  # nothing else is to be done by then
        tokens = [secrets.token_hex(16) for _ in range(2)]
        specs = [spec_of(LEFT), spec_of(RIGHT)]
        grants = await procedures.acquire_all(port, specs, tokens, "{}")
        got.append(not isinstance(grants, procedures.NoGrant))
        for name, token in zip((LEFT, RIGHT), tokens, strict=True):
            await procedures.release(port, name, token, tombstone=False)

    report = run(
        make_server(),
        lambda world: [
            ("A", one(world.port("A"), Rooms(world), "A", LEFT, 0)),
            ("B", interrupted(world.port("B"), after)),
            ("C", then_takes_both(world.port("C"))),
        ],
        LEFT, RIGHT, slow_replies=True, tombstones=True,
    )  # fmt: skip
    assert report.complete
    assert report.faults == []
    assert got == [True] * report.orders


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("fits(lock, ask.weight, ask.limit)", "true"),
        ("  if not may_have(ask) then\n", "  if i == 1 and not may_have(ask) then\n"),
    ],
)
def test_the_harness_sees_several_that_are_not_all_free(
    make_server: Any, guard: str, instead: str
) -> None:
    """Were only the first of them looked at, or none, two would meet."""
    text = read("acquire_all.lua")
    assert guard in text
    server = make_server({"acquire_all.lua": text.replace(guard, instead)})
    report = run(server, two_that_take_both, LEFT, RIGHT, drawn=True, limit=300)
    assert any("entered" in fault for fault in report.faults)


# ------------------------------------------------------------------ turning reader


async def turns_reader(port: SteppingPort, rooms: Rooms, who: str) -> None:
    """Write, read on with the same lease if it is still there, release."""
    token = secrets.token_hex(16)
    grant = await procedures.acquire(port, spec_of(LEFT), token, "{}", 60)
    assert isinstance(grant, procedures.Grant)
    stay = rooms.enter(LEFT, who, grant.valid_until)
    await port.pause()
    sent_at = port.now()
    stay.inside = False  # what it wrote is complete
    reply = await port.downgrade(LEFT, token, 1, 30_000)
    if isinstance(reply, Granted):
        until = valid_until(sent_at, reply.now_ms, reply.deadline_ms)
        stay = rooms.enter(LEFT, who, until, weight=1)
        await port.pause()
        stay.inside = False
    else:
        assert isinstance(reply, Gone)
    await procedures.release(port, LEFT, token, tombstone=False)


async def reads(port: SteppingPort, rooms: Rooms, who: str) -> None:
    """Read for one stop."""
    token = secrets.token_hex(16)
    grant = await procedures.acquire(port, spec_of(LEFT, weight=1), token, "{}", 60)
    assert isinstance(grant, procedures.Grant)
    stay = rooms.enter(LEFT, who, grant.valid_until, weight=1)
    await port.pause()
    stay.inside = False
    await procedures.release(port, LEFT, token, tombstone=False)


async def forces(port: SteppingPort, rooms: Rooms, name: str) -> None:
    """Look who holds, think, and take the first one's lease away."""
    _, locks = await port.inspect((name,), waiters=False)
    await port.pause()
    if locks and (
        await port.force_release(name, locks[0].holders[0].fence, "alice", "stuck")
        is ForceOutcome.RELEASED
    ):
        for stay in rooms.stays.get(name, ()):
            stay.inside = False  # the one exception: a forced holder may not know yet


def with_one_that_turns_reader(world: World) -> Contenders:
    """Readers wait behind it, a writer behind them, and time passes."""
    rooms = Rooms(world)
    return [
        ("A", turns_reader(world.port("A"), rooms, "A")),
        ("B", reads(world.port("B"), rooms, "B")),
        ("C", turns_reader(world.port("C"), rooms, "C")),
        ("T", passing(world.port("T"), 31)),
    ]


def test_turning_reader_crosses_with_expiry_readers_and_writers(make_server: Any) -> None:
    """What ran out is told, and not brought back to life beside the next writer."""
    report = run(make_server(), with_one_that_turns_reader, LEFT, drawn=True, limit=800, holders=3)
    assert report.faults == []


def test_turning_reader_crosses_with_a_forced_release(make_server: Any) -> None:
    """What was taken away does not come back as a reader's."""
    told: list[str] = []

    async def told_at_most(port: SteppingPort, rooms: Rooms, who: str) -> None:
        try:
            await turns_reader(port, rooms, who)
        except LeaseLost:  # forced away between the hand-off and taking it up
            told.append(who)

    def contenders(world: World) -> Contenders:
        rooms = Rooms(world)
        return [
            ("A", told_at_most(world.port("A"), rooms, "A")),
            ("C", told_at_most(world.port("C"), rooms, "C")),
            ("F", forces(world.port("F"), rooms, LEFT)),
        ]

    report = run(make_server(), contenders, LEFT, drawn=True, limit=800, holders=2, tombstones=True)
    assert report.faults == []
    assert told


def test_the_harness_sees_a_downgrade_that_asks_for_no_lease(make_server: Any) -> None:
    """Were whoever asks made a reader, a writer that ran out would read beside the next one."""
    guard = "local mine, tombstone = lock.holders[token],"
    assert guard in (text := read("downgrade.lua"))  # noqa: RUF018
    anybody = "local mine, tombstone = select(2, next(lock.holders)),"
    server = make_server({"downgrade.lua": text.replace(guard, anybody)})
    report = run(server, with_one_that_turns_reader, LEFT, drawn=True, limit=300, holders=3)
    assert any("entered" in fault for fault in report.faults)


# ------------------------------------------------------------------ asking to let go


class Asked:
    """Which leases were asked for, and who was told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: set[int] = set()
        self.told: set[int] = set()

    async def asks(self, port: SteppingPort) -> None:
        """Look who holds, think, and ask that one to let go."""
        _, locks = await port.inspect((LEFT,), waiters=False)
        await port.pause()
        if locks:
            fence = locks[0].holders[0].fence
            if await port.revoke(LEFT, fence, "alice", "stuck") is ForceOutcome.ASKED:
                self.asked.add(fence)

    async def holds(self, port: SteppingPort, rooms: Rooms, who: str, wait_s: float) -> None:
        """Hold over a renewal; note whether it was asked to let go."""
        token = secrets.token_hex(16)
        grant = await procedures.acquire(port, spec_of(LEFT), token, "{}", wait_s)
        if isinstance(grant, procedures.NoGrant):
            return
        stay = rooms.enter(LEFT, who, grant.valid_until)
        await port.pause()
        asked = grant.fence in self.asked
        reply = await port.renew((RenewItem(LEFT, token, 30_000),))
        deadline_ms, kind, note = reply.renewals[0]
        if kind == "revoked":
            self.told.add(grant.fence)
            assert "alice" in note
        if (kind == "revoked") < asked and deadline_ms:
            self.world.faults.append(f"{who} was asked and not told: {self.world.trace}")
        stay.inside = deadline_ms > 0
        await port.pause()
        stay.inside = False
        await procedures.release(port, LEFT, token, tombstone=False)
        if self.told - self.asked:
            self.world.faults.append(f"{who} was told and not asked: {self.world.trace}")


def with_one_that_asks(world: World) -> Contenders:
    """The page may be stale by then; a request is for the lease that was shown, and no other."""
    asked, rooms = Asked(world), Rooms(world)
    return [
        ("A", asked.holds(world.port("A"), rooms, "A", 0)),
        ("B", asked.holds(world.port("B"), rooms, "B", 60)),
        ("R", asked.asks(world.port("R"))),
        ("T", passing(world.port("T"), 31)),
    ]


def test_asking_to_let_go_crosses_with_renewal_release_and_expiry(make_server: Any) -> None:
    """Who was asked is told at its next renewal; the next holder is told nothing."""
    report = run(make_server(), with_one_that_asks, LEFT, drawn=True, limit=800)
    assert report.faults == []


@pytest.mark.parametrize(
    ("script", "guard"),
    [
        ("revoke.lua", "if holder.fence == ARGV[6] then"),
        ("renew.lua", "if record[3] then"),
    ],
)
def test_the_harness_sees_a_request_that_goes_astray(
    make_server: Any, script: str, guard: str
) -> None:
    """To the wrong holder, or to nobody."""
    text, instead = read(script), "if true then" if script == "revoke.lua" else "if false then"
    assert guard in text
    server = make_server({script: text.replace(guard, instead)})
    report = run(server, with_one_that_asks, LEFT, drawn=True, limit=300)
    assert any("told" in fault for fault in report.faults)


# ------------------------------------------------------------------ landing


class Landings:
    """What the leaders of one world announced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.granted: list[int] = []
        self.forced: set[int] = set()

    async def leads(self, port: SteppingPort, wait_s: float) -> None:
        """Compute for a stop, announce, release; say that there is nothing when it was refused."""
        token = secrets.token_hex(16)
        try:
            grant = await procedures.acquire(port, spec_of(LEFT), token, "{}", wait_s)
        except LeaseLost:  # time passed over its grant, and it was forced out before it asked again
            return
        if isinstance(grant, procedures.NoGrant):
            return
        self.granted.append(grant.fence)
        began = port.now()
        await port.pause()
        landed = await port.land(LEFT, token, grant.fence, "kept", 600_000)
        if landed and port.now() > began + 30:
            self.fault("announced a result after its lease")
        if landed and max(self.granted) > grant.fence:
            self.fault("announced a result under the next leader")
        if landed and grant.fence in self.forced:
            self.fault("announced a result after it was forced out")
        await procedures.release(port, LEFT, token, tombstone=False)
        if not landed:
            await port.land(LEFT, "", grant.fence, "aborted", 600_000)
        landing = run_sync(port._steps.wait_landing(LEFT, grant.fence, 0.001))
        if landing is None:
            self.fault("left its followers without news")

    async def forces(self, port: SteppingPort) -> None:
        _, locks = await port.inspect((LEFT,), waiters=False)
        await port.pause()
        if locks:
            fence = locks[0].holders[0].fence
            if await port.force_release(LEFT, fence, "alice", "") is ForceOutcome.RELEASED:
                self.forced.add(fence)

    def fault(self, what: str) -> None:
        self.world.faults.append(f"{what}: {self.world.trace}")


def three_leaders(world: World) -> Contenders:
    """One after the other, an operator and the clock among them."""
    landings = Landings(world)
    return [
        ("A", landings.leads(world.port("A"), 0)),
        ("B", landings.leads(world.port("B"), 0)),
        ("C", landings.leads(world.port("C"), 0)),
        ("F", landings.forces(world.port("F"))),
        ("T", passing(world.port("T"), 31)),
    ]


def test_landing_crosses_with_expiry_force_and_the_next_leader(make_server: Any) -> None:
    """Only a live lease announces a result, and nobody's followers are left without news."""
    report = run(make_server(), three_leaders, LEFT, drawn=True, limit=800, tombstones=True)
    assert report.faults == []


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("if ARGV[1] ~= '' then", "if false then"),
        (" or tonumber(string.match(holder, '^%d+')) <= now_ms", ""),
    ],
)
def test_the_harness_sees_a_landing_without_a_lease(
    make_server: Any, guard: str, instead: str
) -> None:
    """Were the token or the deadline not looked at, a stale result would be believed."""
    text = read("land.lua")
    assert guard in text
    server = make_server({"land.lua": text.replace(guard, instead)})
    report = run(server, three_leaders, LEFT, drawn=True, limit=300, tombstones=True)
    assert any("announced" in fault for fault in report.faults)


# ------------------------------------------------------------------ every order


@pytest.mark.parametrize(
    ("scenario", "who"),
    [
        (two_that_take_both, "ABC"),
        (two_that_take_both, "ABD"),
        (with_one_that_turns_reader, "ABC"),
        (with_one_that_turns_reader, "ABT"),
        (with_one_that_asks, "ABR"),
        (with_one_that_asks, "ART"),
        (three_leaders, "ABF"),
        (three_leaders, "ABT"),
        (three_leaders, "AFT"),
    ],
)
def test_every_order_of_three_of_them(
    make_server: Any, scenario: Callable[[World], Contenders], who: str
) -> None:
    """What is too much to walk through above, in parts that are not."""

    def some(world: World) -> Contenders:
        everybody = scenario(world)
        for name, work in everybody:
            if name not in who:
                work.close()
        return [(name, work) for name, work in everybody if name in who]

    holders = 3 if scenario is with_one_that_turns_reader else 1
    report = run(make_server(), some, LEFT, RIGHT, limit=5000, tombstones=True, holders=holders)
    assert report.complete
    assert report.orders > 150
    assert report.faults == []
