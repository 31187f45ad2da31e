"""engines.memory: what the contract can't reach through an engine."""

from __future__ import annotations

import asyncio

import pytest

from lockapp.core.options import EngineOptions
from lockapp.core.values import Busy, Granted, LockSpec, Queued, Released
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.memory.ports import LoopInbox, ThreadInbox
from lockapp.engines.memory.server import MemoryServer

POLICY = EngineOptions()
NOON_US = 1_700_000_000_000_000


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.us = NOON_US

    def __call__(self) -> int:
        return self.us

    def on(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def server(clock: Hands) -> MemoryServer:
    return MemoryServer(clock)


def ask(
    server: MemoryServer, token: str, *, limit: int = 1, weight: int = 1, queue: bool = True,
    ttl_ms: int = 10_000, max_hold_ms: int = 0,
) -> object:  # fmt: skip
    spec = LockSpec("seats:1", ttl_ms, max_hold_ms, limit, weight)
    return server.acquire(POLICY, spec, token, "{}", ThreadInbox if queue else None)


def leave(server: MemoryServer, token: str) -> object:
    return server.release(POLICY, "seats:1", token, tombstone=False, why="")


def test_weights_never_exceed_the_limit(server: MemoryServer) -> None:
    """Three seats: two and one fit, the next waits."""
    assert isinstance(ask(server, "a", limit=3, weight=2), Granted)
    assert isinstance(ask(server, "b", limit=3, weight=2, queue=False), Busy)
    assert isinstance(ask(server, "c", limit=3), Granted)
    assert isinstance(ask(server, "d", limit=3, queue=False), Busy)
    assert len(server.inspect(["seats:1"], waiters=False)[1][0].holders) == 2


def test_a_small_request_does_not_pass_a_large_one_that_waits(server: MemoryServer) -> None:
    """First come, first served: else the large one would wait for ever."""
    ask(server, "a", limit=3, weight=2)
    assert isinstance(ask(server, "large", limit=3, weight=3), Queued)
    assert isinstance(ask(server, "small", limit=3), Queued)
    leave(server, "a")
    assert isinstance(ask(server, "large", limit=3, weight=3), Granted)
    assert isinstance(ask(server, "small", limit=3), Queued)
    leave(server, "large")
    assert isinstance(ask(server, "small", limit=3), Granted)


def test_capacity_is_handed_to_as_many_as_fit(server: MemoryServer) -> None:
    """One release, two grants in the same step."""
    ask(server, "a", limit=2, weight=2)
    ask(server, "b", limit=2)
    ask(server, "c", limit=2)
    assert isinstance(leave(server, "a"), Released)
    state = server.inspect(["seats:1"], waiters=True)[1][0]
    assert [holder.confirmed for holder in state.holders] == [False, False]
    assert state.waiter_count == 0


def test_a_claim_lives_for_its_window_and_a_full_life_once_taken_up(
    server: MemoryServer, clock: Hands
) -> None:
    """3 s, then the ttl."""
    ask(server, "a")
    ask(server, "b")
    leave(server, "a")
    state = server.inspect(["seats:1"], waiters=False)[1][0]
    assert state.holders[0].remaining_ms == 3000
    clock.on(2.9)
    granted = ask(server, "b")
    assert isinstance(granted, Granted)
    assert granted.deadline_ms - granted.now_ms == 10_000


def test_a_lapsed_claim_is_told_from_a_lease_that_ran_out(
    server: MemoryServer, clock: Hands
) -> None:
    """In the event, for who reads the history."""
    ask(server, "a")
    ask(server, "b")
    leave(server, "a")
    clock.on(3)
    ask(server, "c")
    clock.on(11)
    server.sweep(POLICY, ["seats:1"])
    ended = [e.detail["why"] for e in server.read_events("0-0", 100) if e.kind == "expired"]
    assert ended == ["claim", ""]
    assert server.records == {}


def test_tombstones_are_forgotten_with_the_next_step_of_any_name(
    server: MemoryServer, clock: Hands
) -> None:
    """A free name keeps one only for its time."""
    for number in range(50):
        server.release(POLICY, f"order:{number}", "t", tombstone=True, why="")
    assert len(server.records) == 50
    clock.on(60)
    ask(server, "a")
    leave(server, "a")
    assert server.records == {}
    assert server.buried == []


def test_a_waiter_of_a_closed_loop_is_passed_over(server: MemoryServer) -> None:
    """Nobody can ever take its grant up."""

    async def wait() -> None:
        server.acquire(POLICY, LockSpec("seats:1", 10_000, 0), "gone", "{}", LoopInbox)

    ask(server, "a")
    asyncio.run(wait())
    ask(server, "b")
    leave(server, "a")
    assert isinstance(ask(server, "b"), Granted)


def test_an_exception_in_the_middle_of_a_step_changes_nothing(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may strike anywhere; a step is put back as a whole, or not at all."""
    ask(server, "a")
    ask(server, "b")
    before = server.records["seats:1"].copy()

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "put", strike)
    with pytest.raises(KeyboardInterrupt):
        leave(server, "a")
    monkeypatch.undo()
    assert server.records["seats:1"] == before
    assert [event.kind for event in server.read_events("0-0", 10)] == ["acquired"]
    assert isinstance(leave(server, "a"), Released)


def test_engines_of_one_location_and_prefix_share_a_server() -> None:
    """Whatever their alias; another location or prefix is another world."""

    def made(location: str | None, prefix: str = "p") -> MemoryServer:
        return MemoryEngine("any", location, EngineOptions(prefix=prefix)).server

    assert made("here") is made("here")
    assert made("") is made(None)
    assert made("here") is not made("there")
    assert made("here") is not made("here", prefix="q")


@pytest.mark.parametrize("location", ["redis://localhost/0", 5, ["a"]])
def test_a_location_that_belongs_to_another_engine_is_refused(location: object) -> None:
    """A lock that locks nothing is worse than an error."""
    with pytest.raises(ValueError, match="memory engine"):
        MemoryEngine("any", location, EngineOptions())  # type: ignore[arg-type]


def test_it_says_that_other_processes_do_not_see_its_locks() -> None:
    """What the checks ask."""
    assert MemoryEngine.shared_between_processes is False
    assert MemoryEngine.supports_fencing
    assert MemoryEngine.supports_events
