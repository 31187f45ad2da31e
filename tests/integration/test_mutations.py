"""Each guard of the scripts is taken out in turn, and a check must notice.

A check is a few steps on a real server under virtual time, with the shipped scripts but for one
text. What no check notices is a guard that nobody would miss, or a promise that nobody tests. The
last test holds the table against the scripts: a condition that is neither in it nor excused fails.
"""

# ruff: noqa: E501  (the table has one line per guard)

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import pytest

from lockapp.core.flight import Landing
from lockapp.core.run import run_sync
from lockapp.core.values import (
    EVERYBODY,
    AllGranted,
    Busy,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    LockSpec,
    Queued,
    Refused,
    Released,
    RenewItem,
)
from lockapp.engines.redis import steps as redis_steps
from lockapp.engines.redis.redlock.node import NodeSteps
from lockapp.engines.redis.scripts import build_all, read
from lockapp.exceptions import EngineError
from tests.stepping import EPOCH_US, VIRTUAL_CLOCK, RedisWorldServer

NAME = "mutant:1"
T0_MS = EPOCH_US // 1000
TTL_MS = 30_000


class Renewed(NamedTuple):
    """What became of a renewal; ``kind`` is empty while the lease goes on."""

    deadline_ms: int
    kind: str
    note: str


class Stage:
    """One server under virtual time, and short words for its steps."""

    def __init__(self, server: RedisWorldServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.client = server.client
        self.process = "p1"
        monkeypatch.setattr(redis_steps, "process_id", lambda: self.process)

    def at(self, seconds: float) -> None:
        self.server.set_time(seconds)

    def key(self, what: str) -> str:
        return f"{self.server._base}{what}"

    def acquire(
        self, token: str, *, queue: bool = False, ttl_ms: int = TTL_MS, max_hold_ms: int = 0,
        limit: int = 1, weight: int = 1, process: str = "p1",
    ) -> Any:  # fmt: skip
        self.process = process
        spec = LockSpec(NAME, ttl_ms, max_hold_ms, limit, weight)
        return run_sync(self.server.steps.acquire(spec, token, f'{{"who":"{token}"}}', queue=queue))

    def reader(self, token: str, *, queue: bool = False) -> Any:
        return self.acquire(token, queue=queue, limit=EVERYBODY)

    def writer(self, token: str, *, queue: bool = False) -> Any:
        return self.acquire(token, queue=queue, limit=EVERYBODY, weight=EVERYBODY)

    def all(self, *asked: tuple[str, str]) -> Any:
        specs = [LockSpec(name, TTL_MS, 0) for name, _ in asked]
        return run_sync(self.server.steps.acquire_all(specs, [token for _, token in asked], "{}"))

    def release(self, token: str, *, tombstone: bool = False) -> Any:
        return run_sync(self.server.steps.release(NAME, token, tombstone=tombstone, why=""))

    def cancel(self, token: str, *, tombstone: bool = False) -> Any:
        return run_sync(self.server.steps.cancel(NAME, token, tombstone=tombstone))

    def renew(self, token: str, ttl_ms: int = TTL_MS) -> Renewed:
        reply = run_sync(self.server.steps.renew((RenewItem(NAME, token, ttl_ms),)))
        return Renewed(*reply.renewals[0])

    def revoke(self, fence: int) -> Any:
        return run_sync(self.server.steps.revoke(NAME, fence, "alice", "stuck"))

    def downgrade(self, token: str, weight: int = 1, ttl_ms: int = TTL_MS) -> Any:
        return run_sync(self.server.steps.downgrade(NAME, token, weight, ttl_ms))

    def accept(self, token: str, fence: int) -> Any:
        steps: Any = self.server.steps
        return run_sync(NodeSteps.accept(steps, NAME, token, fence))

    def force(self, fence: int) -> ForceOutcome:
        return run_sync(self.server.steps.force_release(NAME, fence, "alice", "stuck"))

    def abandon(self, token: str, grace_ms: int = 0) -> ForceOutcome:
        return run_sync(self.server.steps.abandon(NAME, token, grace_ms, "parent", "died"))

    def land(self, token: str, fence: int, outcome: str = "kept", keep_ms: int = 60_000) -> bool:
        return run_sync(self.server.steps.land(NAME, token, fence, outcome, keep_ms))

    def landing(self, since: int = 0) -> Any:
        """What a follower would be told at once."""
        return run_sync(self.server.steps.wait_landing(NAME, since, 0.001))

    def indexed(self) -> list[str]:
        """The names that the index says are held."""
        return run_sync(self.server.steps.page(0, 10))[1]

    def sweep(self) -> int:
        return run_sync(self.server.steps.sweep((NAME,)))

    def show(self) -> Any:
        """The lock's state, or None while nobody holds it."""
        _, found = run_sync(self.server.steps.inspect((NAME,), waiters=True))
        return found[0] if found else None

    def expired(self) -> list[str]:
        """What the index says has run out."""
        return run_sync(self.server.steps.renew(())).expired

    def granted(self, token: str) -> bool:
        """Whether a waiter would be woken."""
        return self.server.has_grant(NAME, token)

    def queued(self) -> list[str]:
        return [token.decode() for token in self.client.zrange(self.key(f"queue:{NAME}"), 0, -1)]

    def events(self) -> list[Any]:
        return run_sync(self.server.steps.read_events(0, "0-0", 1000))


Check = Callable[[Stage], None]


# ------------------------------------------------------------------ checks: exclusion


def one_holder_at_a_time(s: Stage) -> None:
    assert isinstance(s.acquire("a"), Granted)
    assert isinstance(s.acquire("b"), Busy)
    assert isinstance(s.acquire("c", queue=True), Queued)


def a_mutex_keeps_a_semaphore_out(s: Stage) -> None:
    s.acquire("a", limit=1)
    assert isinstance(s.acquire("b", limit=3), Busy)


def a_semaphore_keeps_a_mutex_out(s: Stage) -> None:
    s.acquire("a", limit=3)
    assert isinstance(s.acquire("b", limit=1), Busy)


def one_release_wakes_one_waiter(s: Stage) -> None:
    s.acquire("a")
    s.acquire("b", queue=True)
    s.acquire("c", queue=True)
    s.release("a")
    assert [s.granted("b"), s.granted("c")] == [True, False]
    assert s.queued() == ["c"]
    assert len(s.show().holders) == 1


def a_release_frees_what_the_token_held(s: Stage) -> None:
    """Whichever of them the server lists first."""
    s.acquire("a", limit=2)
    s.acquire("b", limit=2)
    first, second = (field.decode()[2:] for field in s.client.hkeys(s.key(f"lock:{NAME}")))
    assert isinstance(s.release(first), Released)
    assert len(s.show().holders) == 1
    assert isinstance(s.acquire("c", limit=2), Granted)
    assert isinstance(s.acquire("d", limit=2), Busy)
    assert s.renew(second).kind == ""


def a_stale_release_changes_nothing(s: Stage) -> None:
    s.acquire("a")
    s.at(31)
    s.acquire("b")
    before = s.show()
    assert isinstance(s.release("a"), Gone)
    assert isinstance(s.release("stranger", tombstone=True), Gone)
    assert s.show() == before


def all_or_none(s: Stage) -> None:
    s.acquire("a")
    reply = s.all(("mutant:0", "t0"), (NAME, "t1"))
    assert isinstance(reply, Busy)
    assert not s.client.exists(s.key("lock:mutant:0"))
    s.release("a")
    granted = s.all(("mutant:0", "t0"), (NAME, "t1"))
    assert isinstance(granted, AllGranted)
    assert s.all(("mutant:0", "t0"), (NAME, "t1")).grants == granted.grants


def all_respects_the_queue(s: Stage) -> None:
    s.reader("r")
    s.writer("w", queue=True)
    specs = [LockSpec(NAME, TTL_MS, 0, EVERYBODY, 1)]
    assert isinstance(run_sync(s.server.steps.acquire_all(specs, ["late"], "{}")), Busy)


def all_refuses_a_buried_token(s: Stage) -> None:
    s.release("late", tombstone=True)
    assert isinstance(s.all((NAME, "late")), Busy)


def all_hands_on_what_it_finds_expired(s: Stage) -> None:
    s.acquire("a")
    s.at(25)
    s.acquire("w", queue=True)
    s.at(31)
    assert isinstance(s.all((NAME, "late")), Busy)
    assert s.granted("w")


def all_settles_what_it_looked_at(s: Stage) -> None:
    s.all(("mutant:0", "t0"), ("mutant:1", "t1"))
    assert s.indexed() == ["mutant:0", "mutant:1"]
    s.at(31)
    s.acquire("a")
    assert isinstance(s.all(("mutant:0", "t2"), (NAME, "t3")), Busy)
    assert s.indexed() == [NAME]
    assert not s.client.exists(s.key("lock:mutant:0"))


def all_counts_who_is_turned_away(s: Stage) -> None:
    s.acquire("a")
    s.all((NAME, "t1"))
    assert s.client.hget(s.key("counts"), "contended:mutant") == b"1"


# ------------------------------------------------------------------ checks: the queue


def nobody_passes_a_live_waiter(s: Stage) -> None:
    s.reader("r")
    s.writer("w", queue=True)
    assert isinstance(s.reader("late"), Busy)
    s.release("r")
    assert s.granted("w")


def a_newcomer_hands_an_expired_lock_to_the_waiter(s: Stage) -> None:
    s.acquire("a")
    s.at(25)
    s.acquire("w", queue=True)
    s.at(31)
    assert isinstance(s.acquire("late"), Busy)
    assert s.granted("w")


def a_dead_waiter_is_passed_over(s: Stage) -> None:
    s.acquire("a")
    s.acquire("dead", queue=True)
    s.at(11)
    s.acquire("alive", queue=True)
    s.release("a")
    assert [s.granted("dead"), s.granted("alive")] == [False, True]


def the_last_to_leave_closes_the_queue(s: Stage) -> None:
    s.acquire("a")
    before = s.client.hgetall(s.key(f"lock:{NAME}"))
    s.acquire("w", queue=True)
    s.cancel("w", tombstone=False)
    assert s.client.hgetall(s.key(f"lock:{NAME}")) == before


def who_asks_without_waiting_waits_no_more(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.acquire("w")
    assert s.queued() == []


def a_waiter_without_a_record_is_passed_over(s: Stage) -> None:
    s.acquire("a")
    s.acquire("lost", queue=True)
    s.client.hdel(s.key(f"waiters:{NAME}"), "lost")
    s.acquire("w", queue=True)
    assert isinstance(s.release("a"), Released)
    assert s.granted("w")


def asking_again_keeps_a_waiter_alive_and_in_its_place(s: Stage) -> None:
    s.acquire("a", ttl_ms=120_000)
    s.acquire("w", queue=True)
    s.acquire("x", queue=True)
    for seconds in (5, 10, 15):
        s.at(seconds)
        assert s.acquire("w", queue=True).position == 0
    s.release("a")
    assert s.granted("w")
    assert s.events()[-1].detail["waited_ms"] == "15000"


def who_does_not_wait_is_not_queued(s: Stage) -> None:
    s.acquire("a")
    s.acquire("b")
    assert s.queued() == []


def a_claim_is_short(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    assert s.show().holders[0].deadline_ms == T0_MS + 3000
    assert not s.show().holders[0].confirmed


def a_claim_that_is_taken_up_is_whole(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    reply = s.acquire("w", queue=True)
    assert isinstance(reply, Granted)
    assert reply.deadline_ms == T0_MS + TTL_MS
    assert s.show().holders[0].confirmed
    assert not s.granted("w")


def a_lapsed_claim_drops_the_waiters_of_its_process(s: Stage) -> None:
    s.acquire("a", process="p0")
    s.acquire("w1", queue=True, process="p1")
    s.acquire("w2", queue=True, process="p1")
    s.acquire("w3", queue=True, process="p2")
    s.release("a")
    s.at(3.5)
    assert s.sweep() == 1
    assert [s.granted("w1"), s.granted("w2"), s.granted("w3")] == [False, False, True]
    assert s.queued() == []


def an_expired_lease_drops_no_waiters(s: Stage) -> None:
    s.acquire("a", process="p1", ttl_ms=5000)
    s.acquire("w", queue=True, process="p1")
    s.at(5.5)
    s.sweep()
    assert s.granted("w")


def a_grant_that_was_taken_away_is_not_in_the_inbox(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    assert s.granted("w")
    assert s.force(s.show().holders[0].fence) is ForceOutcome.RELEASED
    assert not s.granted("w")


def a_claim_that_is_released_leaves_no_grant(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    assert isinstance(s.release("w"), Released)
    assert s.server.keys() == []


def a_claim_that_is_released_in_an_emptier_lock_leaves_no_grant(s: Stage) -> None:
    s.acquire("a", limit=2)
    s.acquire("b", limit=2)
    s.acquire("w", queue=True, limit=2)
    s.release("a")
    s.release("b")
    assert isinstance(s.release("w"), Released)
    assert s.server.keys() == []


def a_writer_waits_for_every_reader(s: Stage) -> None:
    s.reader("a")
    s.reader("b")
    s.writer("w", queue=True)
    s.release("a")
    assert not s.granted("w")
    assert s.queued() == ["w"]


def a_claim_that_is_cancelled_stays_and_its_grant_goes(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    assert isinstance(s.cancel("w", tombstone=True), Granted)
    assert not s.granted("w")
    assert s.renew("w").kind == ""


def leaving_leaves_nothing_queued(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    reply = s.cancel("w")
    assert isinstance(reply, GaveUp)
    assert reply.holder is not None
    s.acquire("x", queue=True)
    assert isinstance(s.release("x"), Released)
    assert s.queued() == []
    assert isinstance(s.cancel("stranger"), Gone)


def leaving_lets_those_behind_go(s: Stage) -> None:
    s.reader("r")
    s.writer("w", queue=True)
    s.reader("r2", queue=True)
    s.cancel("w")
    assert s.granted("r2")


def a_waiters_release_lets_those_behind_go(s: Stage) -> None:
    s.reader("r")
    s.writer("w", queue=True)
    s.reader("r2", queue=True)
    s.release("w")
    assert s.granted("r2")


def leaving_a_lock_that_has_just_run_out(s: Stage) -> None:
    s.acquire("a", ttl_ms=5000)
    s.acquire("w", queue=True)
    s.at(5.5)
    reply = s.cancel("w")
    assert isinstance(reply, GaveUp)
    assert reply.holder is None
    assert s.server.keys() == []


# ------------------------------------------------------------------ checks: tombstones


def a_late_request_of_an_undone_token_is_refused(s: Stage) -> None:
    s.acquire("a")
    s.release("a", tombstone=True)
    assert isinstance(s.acquire("a"), Refused)
    assert isinstance(s.acquire("b"), Granted)
    s.cancel("late", tombstone=True)
    assert isinstance(s.acquire("late"), Refused)
    assert isinstance(s.acquire("late", queue=True), Refused)
    s.release("b")
    s.cancel("late2", tombstone=True)
    assert isinstance(s.acquire("late2"), Refused)


def a_tombstone_ends(s: Stage) -> None:
    s.acquire("a", ttl_ms=120_000)
    s.release("late", tombstone=True)
    s.at(61)
    assert isinstance(s.acquire("late"), Busy)


def undoing_does_not_hide_who_took_it(s: Stage) -> None:
    s.force(s.acquire("a").fence)
    assert s.release("a", tombstone=True).kind == "forced"
    assert s.acquire("a").kind == "forced"
    s.force(s.acquire("b").fence)
    assert s.cancel("b", tombstone=True).kind == "forced"
    assert s.acquire("b").kind == "forced"


# ------------------------------------------------------------------ checks: time


def a_lease_ends_by_itself(s: Stage) -> None:
    s.acquire("a")
    s.at(29.9)
    assert isinstance(s.acquire("b"), Busy)
    s.at(30.1)
    assert s.show() is None
    assert isinstance(s.acquire("b"), Granted)
    assert s.release("a") == Gone(T0_MS + 30_100, "", "")
    s.at(61)
    assert s.release("b").kind == "expired"


def a_late_release_says_that_it_expired(s: Stage) -> None:
    s.acquire("a")
    s.at(31)
    assert s.release("a") == Gone(T0_MS + 31_000, "expired", "")
    s.acquire("b", limit=2)
    s.acquire("c", limit=2, ttl_ms=60_000)
    s.at(62)
    assert s.release("b").kind == "expired"
    assert s.renew("c").kind == ""


def a_clock_set_back_prolongs_nothing(s: Stage) -> None:
    s.at(3600)
    s.acquire("a")
    s.at(0)
    assert isinstance(s.acquire("b"), Busy)
    s.at(29)
    assert isinstance(s.acquire("b"), Busy)
    s.at(31)
    assert isinstance(s.acquire("b"), Granted)


def a_renewal_clamps_after_a_clock_set_back(s: Stage) -> None:
    s.at(3600)
    s.acquire("a")
    s.at(0)
    assert s.renew("a").deadline_ms == T0_MS + TTL_MS


def fences_grow(s: Stage) -> None:
    s.at(10)
    first = s.acquire("a").fence
    s.release("a")
    second = s.acquire("a2").fence
    s.release("a2")
    s.at(0)
    third = s.acquire("b").fence
    assert first < second < third
    s.release("b")
    s.at(20)
    assert s.acquire("c").fence >= EPOCH_US + 20_000_000, "past the clock whenever that is ahead"
    assert first >= EPOCH_US, "past the clock, so that it grows also when the counter was lost"


def max_hold_ends_a_lease(s: Stage) -> None:
    assert s.acquire("a", max_hold_ms=5000).deadline_ms == T0_MS + 5000
    s.at(3)
    assert s.renew("a").deadline_ms == T0_MS + 5000
    assert s.acquire("a", max_hold_ms=5000).deadline_ms == T0_MS + 5000
    assert s.downgrade("a").deadline_ms == T0_MS + 5000
    s.at(6)
    s.sweep()
    assert s.events()[-1].detail["why"] == "max_hold"


def without_max_hold_there_is_no_end(s: Stage) -> None:
    assert s.acquire("a").deadline_ms == T0_MS + TTL_MS
    s.at(10)
    assert s.renew("a").deadline_ms == T0_MS + 10_000 + TTL_MS
    s.at(20)
    assert s.acquire("a").deadline_ms == T0_MS + 20_000 + TTL_MS
    s.at(25)
    assert s.downgrade("a").deadline_ms == T0_MS + 25_000 + TTL_MS
    s.at(60)
    s.sweep()
    assert s.events()[-1].detail["why"] == ""


def asking_again_is_the_same_lease(s: Stage) -> None:
    first = s.acquire("a", limit=3)
    s.at(5)
    second = s.acquire("a", limit=3)
    assert second.fence == first.fence
    assert second.deadline_ms == first.deadline_ms + 5000
    assert len([event for event in s.events() if event.kind == "acquired"]) == 1


# ------------------------------------------------------------------ checks: renewal


def only_the_holder_renews(s: Stage) -> None:
    s.acquire("a")
    s.at(10)
    assert s.renew("b").kind == "gone"
    assert s.show().holders[0].deadline_ms == T0_MS + TTL_MS


def a_renewal_creates_nothing(s: Stage) -> None:
    assert s.renew("a").kind == "gone"
    s.acquire("b")
    assert s.renew("a").kind == "gone"
    s.release("b")
    assert s.server.keys() == []


def a_renewal_comes_too_late(s: Stage) -> None:
    s.acquire("a")
    s.at(30)
    assert s.renew("a").kind == "expired"
    assert isinstance(s.acquire("b"), Granted)


def a_renewal_never_shortens(s: Stage) -> None:
    s.acquire("a")
    assert s.renew("a", ttl_ms=1000).deadline_ms == T0_MS + TTL_MS
    assert s.downgrade("a", ttl_ms=1000).deadline_ms == T0_MS + TTL_MS


def a_renewal_tells_who_took_it(s: Stage) -> None:
    s.force(s.acquire("a").fence)
    renewal = s.renew("a")
    assert renewal.kind == "forced"
    assert "alice" in renewal.note


def a_renewal_makes_a_claim_whole(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    s.renew("w")
    assert s.show().holders[0].confirmed


def the_index_knows_the_earliest_end(s: Stage) -> None:
    s.acquire("a", limit=3, ttl_ms=10_000)
    s.acquire("b", limit=3, ttl_ms=30_000)
    s.acquire("w", limit=2, queue=True)
    s.at(5)
    s.renew("b")
    s.at(9)
    assert s.expired() == []
    s.at(11)
    assert s.expired() == [NAME]


def a_joined_lock_is_indexed_by_its_earliest_end(s: Stage) -> None:
    s.acquire("a", limit=3, ttl_ms=10_000)
    s.acquire("b", limit=3, ttl_ms=30_000)
    s.at(11)
    assert s.expired() == [NAME]


def the_safety_expiry_is_after_the_latest_end(s: Stage) -> None:
    s.acquire("a", limit=3, ttl_ms=30_000)
    s.acquire("b", limit=3, ttl_ms=10_000)
    least = T0_MS + 30_000 + 86_400_000
    assert s.client.pexpiretime(s.key(f"lock:{NAME}")) >= least
    s.at(1)
    s.renew("b", 10_000)
    assert s.client.pexpiretime(s.key(f"lock:{NAME}")) >= least
    s.acquire("c", queue=True)
    for what in ("queue", "waiters"):
        assert s.client.pttl(s.key(f"{what}:{NAME}")) > 0
    s.release("a")
    s.release("b")
    assert s.client.pttl(s.key("grant:c")) > 0


def an_uncontended_lock_has_an_index_and_an_expiry(s: Stage) -> None:
    s.acquire("a")
    assert s.client.pttl(s.key(f"lock:{NAME}")) > 0
    assert run_sync(s.server.steps.page(0, 10)) == (1, [NAME])
    s.release("a")
    assert run_sync(s.server.steps.page(0, 10)) == (0, [])
    s.acquire("b")
    s.release("b", tombstone=True)
    assert run_sync(s.server.steps.page(0, 10)) == (0, [])
    assert s.client.pttl(s.key(f"lock:{NAME}")) > 0


# ------------------------------------------------------------------ checks: taking away


def force_names_a_fence(s: Stage) -> None:
    assert s.force(1) is ForceOutcome.NOT_HELD
    fence = s.acquire("a").fence
    assert s.force(fence - 1) is ForceOutcome.CHANGED
    assert s.renew("a").kind == ""
    s.acquire("w", queue=True)
    assert s.force(fence) is ForceOutcome.RELEASED
    assert s.granted("w")
    assert s.force(fence) is ForceOutcome.CHANGED
    assert s.release("w") == Released(T0_MS)


def a_holder_is_asked_to_let_go(s: Stage) -> None:
    assert s.revoke(1).value == "not_held"
    fence = s.acquire("a").fence
    assert s.revoke(fence - 1).value == "changed"
    assert s.renew("a").kind == ""
    assert s.revoke(fence).value == "asked"
    renewal = s.renew("a")
    assert renewal[:2] == (T0_MS + TTL_MS, "revoked")
    assert renewal.note.startswith('{"actor":"alice","reason":"stuck"')
    assert isinstance(s.acquire("b"), Busy)


def asking_somebody_to_let_go_hands_on_what_ran_out(s: Stage) -> None:
    fence = s.acquire("a").fence
    s.at(25)
    s.acquire("w", queue=True)
    s.at(31)
    assert s.revoke(fence).value == "not_held"
    assert s.granted("w")
    assert s.release("w") == Released(T0_MS + 31_000)
    fence = s.acquire("b").fence
    s.at(62)
    assert s.revoke(fence).value == "not_held"
    assert s.indexed() == []
    assert s.server.keys() == []


def what_was_taken_away_leaves_the_index(s: Stage) -> None:
    assert s.force(s.acquire("a").fence) is ForceOutcome.RELEASED
    assert s.indexed() == []
    s.acquire("b")
    assert s.abandon("b") is ForceOutcome.RELEASED
    assert s.indexed() == []


def a_request_to_let_go_ends_with_its_lease(s: Stage) -> None:
    s.acquire("b", limit=2)
    s.revoke(s.acquire("a", limit=2).fence)
    s.release("a")
    assert not s.client.hexists(s.key(f"lock:{NAME}"), "r:a")


def abandoning_ends_it_now(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    assert s.abandon("stranger") is ForceOutcome.NOT_HELD
    assert not s.granted("w")
    assert s.abandon("a") is ForceOutcome.RELEASED
    assert s.granted("w")
    assert s.renew("a").kind == "abandoned"


def abandoning_with_grace_cuts_it_short(s: Stage) -> None:
    s.acquire("a")
    assert s.abandon("a", 5000) is ForceOutcome.RELEASED
    assert isinstance(s.acquire("b"), Busy)
    assert s.renew("a").kind == "abandoned"
    assert s.downgrade("a").kind == "abandoned"
    assert s.acquire("a").kind == "abandoned"
    s.at(5.5)
    assert isinstance(s.acquire("b"), Granted)


def abandoning_prolongs_nothing(s: Stage) -> None:
    s.acquire("a")
    s.abandon("a", 300_000)
    assert s.show().holders[0].deadline_ms == T0_MS + TTL_MS


def an_abandoned_lease_is_refused_as_long_as_it_could_live(s: Stage) -> None:
    s.acquire("a", ttl_ms=120_000)
    s.abandon("a", 100_000)
    s.at(61)
    s.acquire("b")  # whoever opens the lock drops tombstones of no more use
    assert s.renew("a", 120_000).kind == "abandoned"


def sweeping_hands_on(s: Stage) -> None:
    s.acquire("a", ttl_ms=5000)
    s.acquire("w", queue=True)
    assert s.sweep() == 0
    s.at(5.5)
    assert s.sweep() == 1
    assert s.granted("w")
    s.release("w")
    assert s.server.keys() == []


def a_swept_lock_leaves_nothing(s: Stage) -> None:
    s.acquire("a")
    s.at(31)
    assert s.sweep() == 1
    assert s.server.keys() == []
    assert s.expired() == []


def asking_again_keeps_the_index_in_step(s: Stage) -> None:
    s.acquire("a")
    s.at(10)
    s.acquire("a")
    assert s.client.zscore(s.key("held"), NAME) == T0_MS + 40_000


def sweeping_puts_the_index_right(s: Stage) -> None:
    s.acquire("a")
    s.client.zadd(s.key("held"), {NAME: 1})
    s.sweep()
    assert s.client.zscore(s.key("held"), NAME) == T0_MS + 30_000


def only_the_writer_turns_reader(s: Stage) -> None:
    s.writer("w")
    s.reader("r", queue=True)
    assert isinstance(s.downgrade("stranger"), Gone)
    assert not s.granted("r")
    assert isinstance(s.downgrade("w"), Granted)
    assert s.granted("r")
    s.at(31)
    assert s.downgrade("w").kind == "expired"


def a_weight_never_grows(s: Stage) -> None:
    s.reader("r")
    s.downgrade("r", EVERYBODY)
    assert isinstance(s.reader("r2"), Granted)


def a_downgrade_makes_a_claim_whole(s: Stage) -> None:
    s.reader("r")
    s.writer("w", queue=True)
    s.release("r")
    s.downgrade("w")
    assert s.show().holders[0].confirmed


def a_downgrade_moves_the_end_in_the_index(s: Stage) -> None:
    s.writer("w")
    s.at(20)
    s.downgrade("w")
    s.at(31)
    assert s.expired() == []


def a_downgrade_tells_who_took_it(s: Stage) -> None:
    s.force(s.writer("w").fence)
    assert s.downgrade("w").kind == "forced"


# ------------------------------------------------------------------ checks: landing


def only_the_holder_announces_a_result(s: Stage) -> None:
    fence = s.acquire("a").fence
    assert not s.land("stranger", fence)
    assert s.landing() is None
    assert s.land("a", fence)
    assert s.landing(fence) == Landing(fence, "kept")


def who_holds_no_more_announces_nothing(s: Stage) -> None:
    fence = s.acquire("a").fence
    s.release("a")
    assert not s.land("a", fence)
    fence = s.acquire("b").fence
    s.at(31)
    assert not s.land("b", fence), "nobody has reclaimed it yet"
    assert s.landing() is None


def anybody_may_say_that_a_flight_is_over(s: Stage) -> None:
    assert s.land("", 7, "aborted")
    assert s.landing(7) == Landing(7, "aborted")


def landings_have_growing_numbers(s: Stage) -> None:
    assert s.land("", 7, "aborted")
    assert not s.land("", 7, "kept")
    assert not s.land("", 6, "kept")
    assert s.landing() == Landing(7, "aborted")
    assert s.land("", 8, "passed")
    assert s.landing(8) == Landing(8, "passed")


def the_last_landing_is_kept_for_a_while(s: Stage) -> None:
    for number in range(1, 300):
        s.land("", number, "aborted", keep_ms=5000)
    assert s.client.xlen(s.key(f"flight:{NAME}")) == 1
    assert 0 < s.client.pttl(s.key(f"flight:{NAME}")) <= 5000


# ------------------------------------------------------------------ checks: events, people


def a_broken_log_stops_no_lock(s: Stage) -> None:
    s.client.set(s.key("events"), "no stream")
    assert isinstance(s.acquire("a"), Granted)
    assert isinstance(s.release("a"), Released)
    assert s.client.hget(s.key("counts"), "failed") == b"2"
    s.client.delete(s.key("events"), s.key("number"))
    s.client.lpush(s.key("number"), "no number")
    assert isinstance(s.acquire("b"), Granted)
    assert [event.kind for event in s.events()] == ["acquired"]


def the_log_is_capped(s: Stage) -> None:
    for number in range(150):
        s.acquire(f"a{number}")
        s.release(f"a{number}")
    assert s.client.xlen(s.key("events")) <= 250


def a_lapsed_claim_is_called_one(s: Stage) -> None:
    s.acquire("a")
    s.acquire("w", queue=True)
    s.release("a")
    s.at(3.5)
    s.sweep()
    assert (s.events()[-1].kind, s.events()[-1].detail["why"]) == ("expired", "claim")


def the_holder_shown_is_the_one_that_ends_first(s: Stage) -> None:
    s.acquire("a", limit=2, ttl_ms=30_000)
    s.acquire("b", limit=2, ttl_ms=10_000)
    assert s.acquire("c", limit=2).holder.description["who"] == "b"
    s.release("b")
    s.acquire("d", limit=2, ttl_ms=60_000)
    assert s.acquire("c", limit=2).holder.description["who"] == "a"


def what_ran_out_is_not_shown(s: Stage) -> None:
    s.acquire("a", limit=2, ttl_ms=10_000)
    s.acquire("b", limit=2, ttl_ms=30_000)
    s.acquire("w", limit=2, queue=True)
    assert len(s.show().holders) == 2
    assert [waiter.description["who"] for waiter in s.show().waiters] == ["w"]
    s.at(11)
    assert len(s.show().holders) == 1


# ------------------------------------------------------------------ the table


def a_fence_is_accepted_of_its_holder_only(s: Stage) -> None:
    fence = s.acquire("a").fence
    assert s.accept("b", fence + 5) == Gone(T0_MS, "gone", "")
    assert s.accept("a", fence + 5).fence == fence + 5
    assert s.show().holders[0].fence == fence + 5
    s.at(TTL_MS / 1000)
    assert s.accept("a", fence + 6).kind == "expired"


def a_fence_is_accepted_only_by_an_older_grant(s: Stage) -> None:
    fence = s.acquire("a").fence
    assert s.accept("a", fence).kind == "overtaken"
    assert s.accept("a", fence - 1).kind == "overtaken"
    assert s.show().holders[0].fence == fence


def after_an_accepted_fence_come_larger_ones(s: Stage) -> None:
    fence = s.acquire("a").fence
    far = fence + 10**12
    s.accept("a", far)
    s.release("a")
    second = s.acquire("b").fence
    assert second > far
    s.client.set(s.key("fence"), far + 10)  # other names have gone on
    assert s.accept("b", far + 5).fence == far + 5
    s.release("b")
    assert s.acquire("c").fence > far + 10


class Guard(NamedTuple):
    """A text of a script, what stands there without it, and the check that notices."""

    script: str
    guard: str
    instead: str
    check: Check


HANDOFF, WAITERS, LOCK, GRANT, EVENTS = (
    f"_shared/{name}.lua" for name in ("handoff", "waiters", "lock", "grant", "events")
)
ANYBODY = "(select(2, next(lock.holders)))"
HAND_ON = ("hand_off(lock)\nsettle(lock)", "settle(lock)")
SETTLE = ("hand_off(lock)\nsettle(lock)", "hand_off(lock)")
# fmt: off
GUARDS = [
    Guard("acquire.lua", "if not flat[1] then", "if true then", one_holder_at_a_time),
    Guard("acquire.lua", "fits(lock, weight, limit)", "true", one_holder_at_a_time),
    Guard("acquire.lua", "if lock.tombstones[token] then", "if false then", a_late_request_of_an_undone_token_is_refused),
    Guard("acquire.lua", "\nhand_off(lock)\n", "\n", a_newcomer_hands_an_expired_lock_to_the_waiter),
    Guard("acquire.lua", "elseif known then\n", "elseif false then\n", who_asks_without_waiting_waits_no_more),
    Guard("acquire.lua", "if known and seen_ms > 0 then", "if known then", who_asks_without_waiting_waits_no_more),
    Guard("acquire.lua", "if known and seen_ms > 0 then", "if false then", asking_again_keeps_a_waiter_alive_and_in_its_place),
    Guard("acquire.lua", "if not known then\n", "if true then\n", asking_again_keeps_a_waiter_alive_and_in_its_place),
    Guard("acquire.lua", "if not known then\n", "if false then\n", one_release_wakes_one_waiter),
    Guard("acquire.lua", " and not lock.waiting", "", nobody_passes_a_live_waiter),
    Guard("acquire.lua", "if not mine and not lock", "if not lock", asking_again_is_the_same_lease),
    Guard("acquire.lua", "elseif mine then", "elseif false then", asking_again_is_the_same_lease),
    Guard("acquire.lua", "if mine.max_hold ~= '0' then", "if false then", max_hold_ends_a_lease),
    Guard("acquire.lua", "if mine.max_hold ~= '0' then", "if true then", without_max_hold_there_is_no_end),
    Guard("acquire.lua", "mine.state = 'held'", "", a_claim_that_is_taken_up_is_whole),
    Guard("acquire.lua", "  write_holder(lock, mine)\n  redis.call('DEL', KEYS[6] .. token)", "  write_holder(lock, mine)", a_claim_that_is_taken_up_is_whole),
    Guard("acquire.lua", "  write_holder(lock, mine)\n", "", a_claim_that_is_taken_up_is_whole),
    Guard("acquire.lua", "if mine then\n  settle", "if false then\n  settle", asking_again_is_the_same_lease),
    Guard("acquire.lua", "if seen_ms == 0 then", "if false then", who_does_not_wait_is_not_queued),
    Guard("acquire.lua", "'NX', ", "", asking_again_keeps_a_waiter_alive_and_in_its_place),
    Guard("acquire.lua", "redis.call('PEXPIREAT', lock.queue, safe)", "", the_safety_expiry_is_after_the_latest_end),
    Guard("acquire.lua", "redis.call('PEXPIREAT', lock.waiters, safe)", "", the_safety_expiry_is_after_the_latest_end),
    Guard("acquire_all.lua", "if lock.tombstones[ask.token] then", "if false then", all_refuses_a_buried_token),
    Guard("acquire_all.lua", "lock.holders[ask.token]\n    or ", "", all_or_none),
    Guard("acquire_all.lua", "not lock.waiting and ", "", all_respects_the_queue),
    Guard("acquire_all.lua", "fits(lock, ask.weight, ask.limit)", "true", all_or_none),
    Guard("acquire_all.lua", "if not may_have(ask) then", "if false then", all_or_none),
    Guard("acquire_all.lua", "if not mine then", "if true then", all_or_none),
    Guard("acquire_all.lua", "  hand_off(lock)\n", "", all_hands_on_what_it_finds_expired),
    Guard("acquire_all.lua", "      settle(other.lock)\n", "", all_settles_what_it_looked_at),
    Guard("acquire_all.lua", "  settle(lock)\n", "", all_settles_what_it_looked_at),
    Guard("acquire_all.lua", "count('contended', ask.lock.name)", "", all_counts_who_is_turned_away),
    Guard("release.lua", "if #flat == 2 and flat[1] == 'h:' .. token and", "if #flat == 2 and", a_stale_release_changes_nothing),
    Guard("release.lua", "#flat == 2 and", "", a_release_frees_what_the_token_held),
    Guard("release.lua", "and ARGV[7] == '0'", "", a_late_request_of_an_undone_token_is_refused),
    Guard("release.lua", "if deadline and tonumber(deadline) > now_ms then", "if deadline then", a_late_release_says_that_it_expired),
    Guard("release.lua", "if deadline and tonumber(deadline)", "if tonumber(deadline or '9e15')", a_claim_that_is_released_in_an_emptier_lock_leaves_no_grant),
    Guard("release.lua", "%d+ held ')", "%d+ %a+ ')", a_claim_that_is_released_in_an_emptier_lock_leaves_no_grant),
    Guard("release.lua", "if lock.holders[token] then", "token = next(lock.holders) or token\nif lock.holders[token] then", a_stale_release_changes_nothing),
    Guard("release.lua", "elseif lock.expired[token] then", "elseif false then", a_late_release_says_that_it_expired),
    Guard("release.lua", "elseif lock.tombstones[token] then", "elseif false then", undoing_does_not_hide_who_took_it),
    Guard("release.lua", "elseif redis.call('ZSCORE', lock.queue, token) then", "elseif false then", leaving_leaves_nothing_queued),
    Guard("release.lua", "if ARGV[7] == '1' and", "if false and", a_late_request_of_an_undone_token_is_refused),
    Guard("release.lua", "and not lock.tombstones[token]", "", undoing_does_not_hide_who_took_it),
    Guard("release.lua", *HAND_ON, a_waiters_release_lets_those_behind_go),
    Guard("release.lua", *SETTLE, a_release_frees_what_the_token_held),
    Guard("cancel.lua", "local mine = lock.holders[token]", f"local mine = {ANYBODY}", leaving_leaves_nothing_queued),
    Guard("cancel.lua", "leave(lock, token)\n", "", leaving_leaves_nothing_queued),
    Guard("cancel.lua", "if not mine and ", "if ", a_claim_that_is_cancelled_stays_and_its_grant_goes),
    Guard("cancel.lua", "ARGV[7] == '1' and", "false and", a_late_request_of_an_undone_token_is_refused),
    Guard("cancel.lua", " and not lock.tombstones[token]", "", undoing_does_not_hide_who_took_it),
    Guard("cancel.lua", "if mine then\n", "if false then\n", a_claim_that_is_cancelled_stays_and_its_grant_goes),
    Guard("cancel.lua", "elseif waited then", "elseif false then", leaving_leaves_nothing_queued),
    Guard("cancel.lua", *HAND_ON, leaving_lets_those_behind_go),
    Guard("cancel.lua", *SETTLE, leaving_a_lock_that_has_just_run_out),
    Guard("downgrade.lua", "local mine, tombstone = lock.holders[token],", f"local mine, tombstone = {ANYBODY},", only_the_writer_turns_reader),
    Guard("downgrade.lua", "if mine and not tombstone then", "if mine then", abandoning_with_grace_cuts_it_short),
    Guard("downgrade.lua", "if weight < tonumber(mine.weight) then", "if true then", a_weight_never_grows),
    Guard("downgrade.lua", "mine.state = 'held'", "", a_downgrade_makes_a_claim_whole),
    Guard("downgrade.lua", "if mine.max_hold ~= '0' then", "if false then", max_hold_ends_a_lease),
    Guard("downgrade.lua", "if mine.max_hold ~= '0' then", "if true then", without_max_hold_there_is_no_end),
    Guard("downgrade.lua", "math.max(mine.deadline, deadline)", "deadline", a_renewal_never_shortens),
    Guard("downgrade.lua", "elseif tombstone then", "elseif false then", a_downgrade_tells_who_took_it),
    Guard("downgrade.lua", "lock.expired[token] and 'expired'", "false", only_the_writer_turns_reader),
    Guard("downgrade.lua", *HAND_ON, only_the_writer_turns_reader),
    Guard("downgrade.lua", *SETTLE, a_downgrade_moves_the_end_in_the_index),
    Guard("force_release.lua", "if holder.fence == ARGV[6] then", "if true then", force_names_a_fence),
    Guard("force_release.lua", "next(lock.holders) and 'CHANGED'", "'CHANGED'", force_names_a_fence),
    Guard("force_release.lua", "    bury(lock, token, 'forced', ARGV[7], tonumber(ARGV[4]))\n", "", a_renewal_tells_who_took_it),
    Guard("force_release.lua", *HAND_ON, force_names_a_fence),
    Guard("force_release.lua", *SETTLE, what_was_taken_away_leaves_the_index),
    Guard("abandon.lua", "local holder = lock.holders[token]", f"local holder = {ANYBODY}", abandoning_ends_it_now),
    Guard("abandon.lua", "if holder then", "if false then", abandoning_ends_it_now),
    Guard("abandon.lua", "if grace_ms == 0 then", "if true then", abandoning_with_grace_cuts_it_short),
    Guard("abandon.lua", "if grace_ms == 0 then", "if false then", abandoning_ends_it_now),
    Guard("abandon.lua", "math.min(holder.deadline, now_ms + grace_ms)", "now_ms + grace_ms", abandoning_prolongs_nothing),
    Guard("abandon.lua", "math.max(tonumber(ARGV[4]), holder.ttl)", "tonumber(ARGV[4])", an_abandoned_lease_is_refused_as_long_as_it_could_live),
    Guard("abandon.lua", "  bury(lock, token, 'abandoned', ARGV[8], math.max(tonumber(ARGV[4]), holder.ttl))\n", "", abandoning_with_grace_cuts_it_short),
    Guard("abandon.lua", *HAND_ON, abandoning_ends_it_now),
    Guard("abandon.lua", *SETTLE, what_was_taken_away_leaves_the_index),
    Guard("renew.lua", "local field = 'h:' .. token", "local field = redis.call('HKEYS', key)[1] or 'h:'", only_the_holder_renews),
    Guard("renew.lua", "if record[2] then", "if false then", abandoning_with_grace_cuts_it_short),
    Guard("renew.lua", "elseif not record[1] then", "elseif false then", a_renewal_creates_nothing),
    Guard("renew.lua", "if tonumber(old) <= now_ms then", "if false then", a_renewal_comes_too_late),
    Guard("renew.lua", "if tonumber(max_hold) > 0 then", "if false then", max_hold_ends_a_lease),
    Guard("renew.lua", "if tonumber(max_hold) > 0 then", "if true then", without_max_hold_there_is_no_end),
    Guard("renew.lua", "math.max(deadline, math.min(tonumber(old), now_ms + tonumber(ttl)))", "deadline", a_renewal_never_shortens),
    Guard("renew.lua", "math.min(tonumber(old), now_ms + tonumber(ttl))", "tonumber(old)", a_renewal_clamps_after_a_clock_set_back),
    Guard("renew.lua", "'%.0f %s %s %s %s held %s'", "'%.0f %s %s %s %s claim %s'", a_renewal_makes_a_claim_whole),
    Guard("renew.lua", ", 'GT')", ")", the_safety_expiry_is_after_the_latest_end),
    Guard("renew.lua", "if redis.call('HLEN', key) > 1 then", "if false then", the_index_knows_the_earliest_end),
    Guard("renew.lua", "if string.sub(flat[i], 1, 2) == 'h:' and", "if", the_index_knows_the_earliest_end),
    Guard("renew.lua", "if record[3] then", "if false then", a_holder_is_asked_to_let_go),
    Guard("revoke.lua", "if holder.fence == ARGV[6] then", "if true then", a_holder_is_asked_to_let_go),
    Guard("revoke.lua", "next(lock.holders) and 'CHANGED'", "'CHANGED'", a_holder_is_asked_to_let_go),
    Guard("revoke.lua", "    redis.call('HSET', lock.key, 'r:' .. token, ARGV[7])\n", "", a_holder_is_asked_to_let_go),
    Guard("revoke.lua", *HAND_ON, asking_somebody_to_let_go_hands_on_what_ran_out),
    Guard("revoke.lua", *SETTLE, asking_somebody_to_let_go_hands_on_what_ran_out),
    Guard(LOCK, "  lock.dropped[#lock.dropped + 1] = 'r:' .. holder.token\n", "", a_request_to_let_go_ends_with_its_lease),
    Guard("sweep.lua", "  hand_off(lock)\n", "", sweeping_hands_on),
    Guard("sweep.lua", "if not settle(lock) or next(lock.expired) then", "if not settle(lock) then", sweeping_hands_on),
    Guard("sweep.lua", "if not settle(lock) or next(lock.expired) then", "if next(lock.expired) then", a_swept_lock_leaves_nothing),
    Guard("land.lua", "if ARGV[1] ~= '' then", "if false then", only_the_holder_announces_a_result),
    Guard("land.lua", "if ARGV[1] ~= '' then", "if true then", anybody_may_say_that_a_flight_is_over),
    Guard("land.lua", "'h:' .. ARGV[1])", "redis.call('HKEYS', KEYS[1])[1])", only_the_holder_announces_a_result),
    Guard("land.lua", "if not holder or tonumber", "if holder and tonumber", who_holds_no_more_announces_nothing),
    Guard("land.lua", " or tonumber(string.match(holder, '^%d+')) <= now_ms", "", who_holds_no_more_announces_nothing),
    Guard("land.lua", "if type(added) == 'table' and added.err then", "if false then", landings_have_growing_numbers),
    Guard("land.lua", "ARGV[2] .. '-1'", "'*'", landings_have_growing_numbers),
    Guard("land.lua", "redis.pcall('XADD'", "redis.call('XADD'", landings_have_growing_numbers),
    Guard("land.lua", "'MAXLEN', 1, ", "", the_last_landing_is_kept_for_a_while),
    Guard("land.lua", "redis.call('PEXPIRE', KEYS[2], ARGV[4])", "", the_last_landing_is_kept_for_a_while),
    Guard("sweep.lua", "  lock.changed = true", "", sweeping_puts_the_index_right),
    Guard(LOCK, "elseif field == 'q' then", "elseif false then", one_release_wakes_one_waiter),
    Guard(LOCK, "if not lock.changed then", "if true then", asking_again_keeps_the_index_in_step),
    Guard("inspect.lua", "if string.sub(flat[i], 1, 2) == 'h:' then", "if true then", what_ran_out_is_not_shown),
    Guard("inspect.lua", "if tonumber(deadline) > now_ms then", "if true then", what_ran_out_is_not_shown),
    Guard(HANDOFF, "if not token then", "if false then", a_claim_that_is_released_leaves_no_grant),
    Guard(HANDOFF, "waiter.seen <= now_ms then", "false then", a_dead_waiter_is_passed_over),
    Guard(HANDOFF, "if not waiter or", "if", a_waiter_without_a_record_is_passed_over),
    Guard(WAITERS, "if lock.waiting and redis.call('EXISTS', lock.queue) == 0 then", "if false then", the_last_to_leave_closes_the_queue),
    Guard(WAITERS, "if lock.waiting and redis.call('EXISTS', lock.queue) == 0 then", "if true then", leaving_lets_those_behind_go),
    Guard(WAITERS, "if not record then", "if false then", a_waiter_without_a_record_is_passed_over),
    Guard(HANDOFF, "elseif not fits(lock, waiter.weight, waiter.limit) then", "elseif false then", a_writer_waits_for_every_reader),
    Guard(HANDOFF, "math.min(limit_of(lock), limit)", "(limit + 0)", a_mutex_keeps_a_semaphore_out),
    Guard(HANDOFF, "math.min(limit_of(lock), limit)", "limit_of(lock)", a_semaphore_keeps_a_mutex_out),
    Guard(HANDOFF, "if not lock.limit then", "lock.limit = math.huge\n  if false then", a_mutex_keeps_a_semaphore_out),
    Guard(HANDOFF, "math.min(waiter.ttl, tonumber(ARGV[2]))", "waiter.ttl", a_claim_is_short),
    Guard(HANDOFF, "now_ms - waiter.queued)\n      drop_waiter(lock, token)", "now_ms - waiter.queued)", one_release_wakes_one_waiter),
    Guard(HANDOFF, "redis.call('PEXPIREAT', inbox, holder.deadline)", "", the_safety_expiry_is_after_the_latest_end),
    Guard(HANDOFF, "holder.state, holder.granted = state, ms_text", "holder.state, holder.granted = 'held', ms_text\n  state = 'held'", a_claim_is_short),
    Guard(LOCK, "if lock.dropped[1] then", "if true then", a_release_frees_what_the_token_held),
    Guard(WAITERS, "string.match(flat[i + 1], '^%d+ %d+ %d+ %d+ %d+ %d+ (%S+) ') == process", "process", a_lapsed_claim_drops_the_waiters_of_its_process),
    Guard(LOCK, "if why == 'claim' then", "if false then", a_lapsed_claim_drops_the_waiters_of_its_process),
    Guard(LOCK, "if why == 'claim' then", "if true then", an_expired_lease_drops_no_waiters),
    Guard(LOCK, "if holder.state == 'claim' then\n    redis", "if false then\n    redis", a_grant_that_was_taken_away_is_not_in_the_inbox),
    Guard(LOCK, "if holder.state == 'claim' then\n    why", "if false then\n    why", a_lapsed_claim_is_called_one),
    Guard(LOCK, "elseif holder.max_hold ~= '0' and now_ms >= holder.granted + holder.max_hold then", "elseif false then", max_hold_ends_a_lease),
    Guard(LOCK, "elseif holder.max_hold ~= '0' and ", "elseif ", without_max_hold_there_is_no_end),
    Guard(LOCK, "lock.expired[holder.token] = true", "", a_late_release_says_that_it_expired),
    Guard(LOCK, "lock.used = lock.used - holder.weight", "", one_release_wakes_one_waiter),
    Guard(LOCK, "if holder.deadline > now_ms + holder.ttl then", "if false then", a_clock_set_back_prolongs_nothing),
    Guard(LOCK, "write_holder(lock, clamped[i])", "", a_clock_set_back_prolongs_nothing),
    Guard(LOCK, "elseif holder.deadline <= now_ms then", "elseif false then", a_lease_ends_by_itself),
    Guard(LOCK, "if tag == 'h:' then", "if false then", a_stale_release_changes_nothing),
    Guard(LOCK, "elseif tag == 't:' then", "elseif false then", a_late_request_of_an_undone_token_is_refused),
    Guard(LOCK, "if tonumber(ends) <= now_ms then", "if false then", a_tombstone_ends),
    Guard(LOCK, "if not earliest or deadline < earliest then", "if not earliest or deadline > earliest then", a_joined_lock_is_indexed_by_its_earliest_end),
    Guard(LOCK, "if not latest or deadline > latest then", "if not latest or deadline < latest then", the_safety_expiry_is_after_the_latest_end),
    Guard(LOCK, "    flush_dropped(lock)\n    index(", "    index(", a_release_frees_what_the_token_held),
    Guard(LOCK, "if earliest then\n", "if false then\n", one_release_wakes_one_waiter),
    Guard(LOCK, "redis.call('ZREM', KEYS[1], lock.name)", "", an_uncontended_lock_has_an_index_and_an_expiry),
    Guard(LOCK, "if lock.buried_until > now_ms then", "if false then", a_late_request_of_an_undone_token_is_refused),
    Guard(LOCK, "now_ms then\n    flush_dropped(lock)", "now_ms then", a_late_request_of_an_undone_token_is_refused),
    Guard(LOCK, "redis.call('PEXPIREAT', lock.key, lock.buried_until)", "redis.call('PERSIST', lock.key)", an_uncontended_lock_has_an_index_and_an_expiry),
    Guard(LOCK, "if not first or holder.deadline < first.deadline then", "if not first or holder.deadline > first.deadline then", the_holder_shown_is_the_one_that_ends_first),
    Guard(LOCK, "if not first then", "if false then", leaving_a_lock_that_has_just_run_out),
    Guard(GRANT, "if max_hold ~= '0' then", "if false then", max_hold_ends_a_lease),
    Guard(GRANT, "if max_hold ~= '0' then", "if true then", without_max_hold_there_is_no_end),
    Guard(GRANT, "if last and tonumber(last) >= now_us then", "if false then", fences_grow),
    Guard(GRANT, "if last and tonumber(last) >= now_us then", "if last then", fences_grow),
    Guard(GRANT, "redis.call('PEXPIREAT', key, whole(latest + ARGV[1]))", "", an_uncontended_lock_has_an_index_and_an_expiry),
    Guard(GRANT, "redis.call('ZADD', KEYS[1], whole(earliest), name)", "", an_uncontended_lock_has_an_index_and_an_expiry),
    Guard(EVENTS, "if type(number) == 'table' then", "if false then", a_broken_log_stops_no_lock),
    Guard(EVENTS, "redis.pcall('XADD'", "redis.call('XADD'", a_broken_log_stops_no_lock),
    Guard(EVENTS, "if type(appended) == 'table' and appended.err then", "if false then", a_broken_log_stops_no_lock),
    Guard(EVENTS, "if number % 100 == 0 then", "if false then", the_log_is_capped),
    Guard("accept.lua", "if not record then", "if false then", a_fence_is_accepted_of_its_holder_only),
    Guard("accept.lua", "if tonumber(deadline) <= now_ms then", "if false then", a_fence_is_accepted_of_its_holder_only),
    Guard("accept.lua", "if tonumber(fence) >= tonumber(ARGV[2]) then", "if false then", a_fence_is_accepted_only_by_an_older_grant),
    Guard("accept.lua", "tonumber(fence) >= tonumber(ARGV[2])", "tonumber(fence) > tonumber(ARGV[2])", a_fence_is_accepted_only_by_an_older_grant),
    Guard("accept.lua", "if not last or tonumber(last) < tonumber(ARGV[2]) then", "if false then", after_an_accepted_fence_come_larger_ones),
    Guard("accept.lua", "if not last or tonumber(last) < tonumber(ARGV[2]) then", "if true then", after_an_accepted_fence_come_larger_ones),
    Guard("_shared/number.lua", "string.format('%.0f', number)", "tostring(number)", force_names_a_fence),
]
# fmt: on
EXCUSED = {
    ("renew.lua", "if tonumber(ARGV[2]) > 0 then"): "options allow no sweep_limit below 1",
}


@pytest.fixture
def stage(
    make_server: Callable[..., RedisWorldServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Stage]:
    """Build a stage, with some script texts replaced."""
    return lambda sources=None: Stage(make_server(sources, event_cap=100), monkeypatch)


NOTICED = (AssertionError, EngineError, IndexError, KeyError, TypeError, AttributeError)
CHECKS = list(dict.fromkeys(guard.check for guard in GUARDS))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_scripts_pass(stage: Callable[..., Stage], check: Check) -> None:
    """With every guard in its place."""
    check(stage())


def name_of(guard: Guard) -> str:
    line = guard.guard.strip().splitlines()[0][:40]
    return f"{guard.script.removesuffix('.lua')}: {line} → {guard.instead.strip()[:12]}"


@pytest.mark.parametrize("guard", GUARDS, ids=name_of)
def test_a_missing_guard_is_noticed(stage: Callable[..., Stage], guard: Guard) -> None:
    """The check that passes with the guard fails without it."""
    text = read(guard.script)
    assert guard.guard in text, f"{guard.script} has no {guard.guard!r} any more: adapt the table"
    sources = {guard.script: text.replace(guard.guard, guard.instead)}
    without = stage(sources)
    for script in build_all({"_shared/clock.lua": VIRTUAL_CLOCK, **sources}).values():
        without.client.script_load(script.text)  # a script that does not compile proves nothing
    with pytest.raises(NOTICED):
        guard.check(without)


def conditions() -> Iterator[tuple[str, str]]:
    """Every line of the scripts that decides something, and its file."""
    top = files("lockapp.engines.redis") / "lua"
    paths = [entry.name for entry in top.iterdir() if entry.name.endswith(".lua")]
    paths += [f"_shared/{entry.name}" for entry in (top / "_shared").iterdir()]
    for path in sorted(path for path in paths if path.endswith(".lua")):
        for line in read(path).splitlines():
            if re.match(r"\s*(else)?if ", line):
                yield path, line.strip()


def test_every_condition_of_the_scripts_is_in_the_table() -> None:
    """A new condition needs a check that misses it, or an excuse."""
    known: dict[str, list[str]] = {}
    for guard in GUARDS:
        known.setdefault(guard.script, []).extend(
            line.strip() for line in guard.guard.splitlines() if line.strip()
        )
    missing = [
        (path, line)
        for path, line in conditions()
        if (path, line) not in EXCUSED
        and not any(text in line for text in known.get(path, ()) if len(text) > 4)
    ]
    assert missing == []
