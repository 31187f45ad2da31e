"""The scripts against a small model: any sequence of steps, on a real server, under virtual time.

The model is what the reference says about holders with weights under a limit and a FIFO queue, in
a few lines of Python and without keys, records or scripts. After every step the reply is compared
with the model's, and so is what `inspect` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockapp.core.run import run_sync
from lockapp.core.values import (
    EVERYBODY,
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
from lockapp.engines.redis.scripts import read
from tests.stepping import EPOCH_US, RedisWorldServer

NAME = "model:1"
CLAIM_MS, SEEN_MS, TOMBSTONE_MS = 3000, 10_000, 60_000
TOKENS = [f"t{number}" for number in range(6)]
PROCESS = {token: f"p{number % 2}" for number, token in enumerate(TOKENS)}
SHAPES = [(1, 1), (3, 1), (3, 2), (EVERYBODY, 1), (EVERYBODY, EVERYBODY)]
"""Limit and weight: a mutex, a semaphore, a reader, a writer. All of one name exclude each other
by the smallest limit."""
T0_MS = EPOCH_US // 1000


@dataclass
class Holder:
    token: str
    deadline: int
    ttl: int
    limit: int
    weight: int
    granted: int
    max_hold: int
    claim: bool
    fence: int = 0


@dataclass
class Waiter:
    token: str
    seen: int
    ttl: int
    limit: int
    weight: int
    max_hold: int


class Model:
    """One lock."""

    def __init__(self) -> None:
        self.now = T0_MS
        self.holders: dict[str, Holder] = {}
        self.queue: list[Waiter] = []
        self.tombs: dict[str, tuple[str, int]] = {}
        self.ended: list[str] = []  # tokens that ran out in the step at hand
        self.handed: list[str] = []  # tokens that were handed the lock in the step at hand

    def open(self) -> None:
        """What every step that changes something begins with."""
        self.ended, self.handed = [], []
        self.tombs = {token: tomb for token, tomb in self.tombs.items() if tomb[1] > self.now}
        for token, holder in list(self.holders.items()):
            if holder.deadline <= self.now:
                del self.holders[token]
                self.ended.append(token)
                if holder.claim:
                    self.queue = [
                        it for it in self.queue if PROCESS[it.token] != PROCESS[token]
                    ]  # fmt: skip

    def fits(self, limit: int, weight: int) -> bool:
        least = min([limit, *(holder.limit for holder in self.holders.values())])
        return sum(holder.weight for holder in self.holders.values()) + weight <= least

    def grant(self, token: str, it: Any, life: int, claim: bool) -> Holder:
        if it.max_hold:
            life = min(life, it.max_hold)
        self.holders[token] = Holder(
            token, self.now + life, it.ttl, it.limit, it.weight, self.now, it.max_hold, claim
        )
        return self.holders[token]

    def hand_off(self) -> None:
        while self.queue and self.fits(EVERYBODY, 1):  # of a full lock the queue is not looked at
            first = self.queue[0]
            if first.seen > self.now:
                if not self.fits(first.limit, first.weight):
                    return
                self.grant(first.token, first, min(first.ttl, CLAIM_MS), claim=True)
                self.handed.append(first.token)
            self.queue.pop(0)

    def waiting(self, token: str) -> Waiter | None:
        return next((it for it in self.queue if it.token == token), None)

    def leave(self, token: str) -> None:
        self.queue = [it for it in self.queue if it.token != token]

    def bury(self, token: str, kind: str, life: int = TOMBSTONE_MS) -> None:
        self.tombs[token] = (kind, self.now + life)

    def prolong(self, holder: Holder, life: int) -> None:
        deadline = self.now + life
        if holder.max_hold:
            deadline = min(deadline, holder.granted + holder.max_hold)
        holder.deadline = max(holder.deadline, deadline)
        holder.claim = False


class Machine(RuleBasedStateMachine):
    """Steps in any order; what the server says must be what the model says."""

    server: RedisWorldServer

    def __init__(self) -> None:
        super().__init__()
        self.server.reset()
        self.steps: Any = self.server.steps
        self.model = Model()
        self.fences: list[int] = []
        self.events = 0

    # ------------------------------------------------------------------ rules

    @rule(
        token=st.sampled_from(TOKENS),
        shape=st.sampled_from(SHAPES),
        ttl=st.sampled_from([2000, 5000, 30_000, 30_000]),
        max_hold=st.sampled_from([0, 0, 7000]),
        queue=st.booleans(),
    )
    def acquire(
        self, token: str, shape: tuple[int, int], ttl: int, max_hold: int, queue: bool
    ) -> None:
        model, (limit, weight) = self.model, shape
        asked = Waiter(token, model.now + SEEN_MS, ttl, limit, weight, max_hold)
        spec = LockSpec(NAME, ttl, max_hold, limit, weight)
        Machine.process = PROCESS[token]
        reply = run_sync(self.steps.acquire(spec, token, "{}", queue=queue))
        model.open()
        if token in model.tombs:
            assert type(reply) is Refused
            assert reply.kind == model.tombs[token][0]
            return
        known = model.waiting(token)
        if known is not None and queue:  # seen again, and what it asks for now is what counts
            model.queue[model.queue.index(known)] = asked
        elif known is not None:  # who asks without waiting waits no more
            model.queue.remove(known)
        model.hand_off()
        mine = model.holders.get(token)
        if mine is not None:
            model.prolong(mine, mine.ttl)
            model.handed = [it for it in model.handed if it != token]  # answered: no need to wake
        elif not model.queue and model.fits(limit, weight):
            mine = model.grant(token, asked, ttl, claim=False)
        if mine is not None:
            assert type(reply) is Granted
            assert reply.deadline_ms == mine.deadline
            mine.fence = mine.fence or reply.fence
            assert mine.fence == reply.fence
        elif not queue:
            assert type(reply) is Busy
        else:
            if model.waiting(token) is None:
                model.queue.append(asked)
            assert type(reply) is Queued
            assert reply.position == [it.token for it in model.queue].index(token)
            assert reply.next_deadline_ms == min(it.deadline for it in model.holders.values())

    @rule(data=st.data(), tombstone=st.sampled_from([False, False, True]))
    def release(self, data: Any, tombstone: bool) -> None:
        token = self.pick(data)
        model = self.model
        reply = run_sync(self.steps.release(NAME, token, tombstone=tombstone, why=""))
        model.open()
        if model.holders.pop(token, None):
            assert type(reply) is Released
        elif token in model.ended:
            assert reply == Gone(model.now, "expired", "")
        elif token in model.tombs:
            assert type(reply) is Gone
            assert reply.kind == model.tombs[token][0]
        elif model.waiting(token):
            model.leave(token)
            assert type(reply) is Released
        else:
            assert reply == Gone(model.now, "", "")
        if tombstone and token not in model.tombs:
            model.bury(token, "undone")
        model.hand_off()

    @rule(data=st.data(), tombstone=st.sampled_from([False, False, True]))
    def cancel(self, data: Any, tombstone: bool) -> None:
        token = self.pick(data)
        model = self.model
        reply = run_sync(self.steps.cancel(NAME, token, tombstone=tombstone))
        model.open()
        waited, mine = model.waiting(token), model.holders.get(token)
        model.leave(token)
        if mine is None and tombstone and token not in model.tombs:
            model.bury(token, "undone")
        model.hand_off()
        if mine is not None:
            assert type(reply) is Granted
            assert reply.deadline_ms == mine.deadline
        else:
            assert type(reply) is (GaveUp if waited else Gone)

    @rule(data=st.data(), ttl=st.sampled_from([1000, 5000, 30_000]))
    def renew(self, data: Any, ttl: int) -> None:
        token = self.pick(data)
        model = self.model
        ttl = self.at_most(token, ttl)
        (renewal,) = run_sync(self.steps.renew((RenewItem(NAME, token, ttl),))).renewals
        mine = model.holders.get(token)
        if token in model.tombs and (mine or renewal.deadline_ms == 0):
            # A renewal only reads: a tombstone that has just ended may still be there.
            assert renewal.deadline_ms == 0
        elif mine is None:
            assert renewal[:2] == (0, "gone")
        elif mine.deadline <= model.now:
            assert renewal[:2] == (0, "expired")
        else:
            model.prolong(mine, ttl)
            assert renewal.deadline_ms == mine.deadline

    @rule(data=st.data(), weight=st.sampled_from([1, 2]))
    def downgrade(self, data: Any, weight: int) -> None:
        token = self.pick(data)
        model, ttl = self.model, self.at_most(token, 5000)
        reply = run_sync(self.steps.downgrade(NAME, token, weight, ttl))
        model.open()
        mine = model.holders.get(token)
        if mine is not None and token not in model.tombs:
            mine.weight = min(mine.weight, weight)
            model.prolong(mine, ttl)
            assert type(reply) is Granted
            assert reply.deadline_ms == mine.deadline
        else:
            assert type(reply) is Gone
        model.hand_off()

    @precondition(lambda self: self.model.holders)
    @rule(data=st.data(), off=st.sampled_from([0, 0, 1]))
    def force(self, data: Any, off: int) -> None:
        model = self.model
        token = data.draw(st.sampled_from(sorted(model.holders)))
        fence = model.holders[token].fence + off
        outcome = run_sync(self.steps.force_release(NAME, fence, "alice", ""))
        model.open()
        found = next((it.token for it in model.holders.values() if it.fence == fence), None)
        if found is None:
            want = ForceOutcome.CHANGED if model.holders else ForceOutcome.NOT_HELD
        else:
            want = ForceOutcome.RELEASED
            del model.holders[found]
            model.bury(found, "forced")
        assert outcome is want
        model.hand_off()

    @rule(data=st.data(), grace=st.sampled_from([0, 0, 2000]))
    def abandon(self, data: Any, grace: int) -> None:
        token = self.pick(data)
        model = self.model
        outcome = run_sync(self.steps.abandon(NAME, token, grace, "parent", ""))
        model.open()
        mine = model.holders.get(token)
        assert outcome is (ForceOutcome.RELEASED if mine else ForceOutcome.NOT_HELD)
        if mine is not None:
            model.bury(token, "abandoned", max(TOMBSTONE_MS, mine.ttl))
            mine.deadline = min(mine.deadline, model.now + grace)
            if not grace:
                del model.holders[token]
        model.hand_off()

    @rule()
    def sweep(self) -> None:
        run_sync(self.steps.sweep((NAME,)))
        self.model.open()
        self.model.hand_off()

    @rule(ms=st.sampled_from([1, 500, 1999, 2000, 3000, 5000, 10_000, 30_000, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.model.now += ms
        self.server.set_time((self.model.now - T0_MS) / 1000)
        self.model.handed = []

    def pick(self, data: Any) -> str:
        """A token, and most often one that holds or waits."""
        known = [*self.model.holders, *self.model.holders, *(it.token for it in self.model.queue)]
        return data.draw(st.sampled_from([*known, *known, *TOKENS]))

    def at_most(self, token: str, ttl: int) -> int:
        """A holder never asks for more than the ttl it came with."""
        mine = self.model.holders.get(token)
        return ttl if mine is None else min(ttl, mine.ttl)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def shows_the_same(self) -> None:
        """Holders, queue and inboxes are the model's; fences grow; nothing else is there."""
        model = self.model
        _, found = run_sync(self.steps.inspect((NAME,), waiters=True))
        shown = found[0].holders if found else ()
        live = [it for it in model.holders.values() if it.deadline > model.now]
        want = sorted((it.deadline, it.ttl, it.weight, not it.claim) for it in live)
        assert sorted((it.deadline_ms, it.ttl_ms, it.weight, it.confirmed) for it in shown) == want
        queue = self.server.client.zrange(f"{self.server._base}queue:{NAME}", 0, -1)
        assert [token.decode() for token in queue] == [it.token for it in model.queue]
        for token in model.handed:
            assert self.server.has_grant(NAME, token)
        events = run_sync(self.steps.read_events(0, "0-0", 10_000))
        for event in events[self.events :]:
            if event.kind == "acquired":
                assert event.fence > max(self.fences, default=0)
                self.fences.append(event.fence)
        self.events = len(events)
        # Hand-offs happen in the order of their events.
        for token in [it for it in model.handed if it in model.holders]:
            model.holders[token].fence = model.holders[token].fence or next(
                fence for fence in self.fences if self._unclaimed(fence)
            )
        if not model.holders and not model.queue and not model.tombs:
            # A grant that was taken up by a renewal stays in its inbox until the claim's end, on
            # the server's own clock.
            left = self.server.keys()
            assert [key for key in left if ":grant:" not in key] == []

    def _unclaimed(self, fence: int) -> bool:
        """Whether it belongs to none that is known: the one of the hand-off at hand."""
        known = {it.fence for it in self.model.holders.values()}
        return fence not in known and fence not in self.settled

    def teardown(self) -> None:
        self.server.reset()

    @property
    def settled(self) -> set[int]:
        """Fences of leases that are over, by the event stream."""
        events = run_sync(self.steps.read_events(0, "0-0", 10_000))
        return {it.fence for it in events if it.kind not in ("acquired", "downgraded")}


@pytest.fixture(autouse=True)
def its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps come from the process that the machine chose."""
    monkeypatch.setattr(redis_steps, "process_id", lambda: Machine.process)


def explore(server: RedisWorldServer, *, examples: int, phases: Sequence[Phase]) -> None:
    """Run that many sequences of steps; the same ones each time."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(type("Bound", (Machine,), {"server": server}), settings=chosen)


def test_the_scripts_do_what_the_model_says(make_server: Callable[..., RedisWorldServer]) -> None:
    """Any steps in any order, several shapes of one name at once."""
    explore(make_server(), examples=250, phases=[Phase.generate, Phase.shrink])


@pytest.mark.parametrize(
    ("script", "guard", "instead"),
    [
        ("acquire.lua", " and not lock.waiting", ""),
        ("acquire.lua", "if lock.tombstones[token] then", "if false then"),
        ("renew.lua", "if tonumber(old) <= now_ms then", "if false then"),
        ("_shared/handoff.lua", "math.min(limit_of(lock), limit)", "(limit + 0)"),
        ("_shared/handoff.lua", "waiter.seen <= now_ms then", "false then"),
        ("abandon.lua", "if grace_ms == 0 then", "if true then"),
    ],
)
def test_the_model_sees_a_missing_guard(
    make_server: Callable[..., RedisWorldServer], script: str, guard: str, instead: str
) -> None:
    """The machine is worth something only if it finds faults."""
    text = read(script)
    assert guard in text
    broken = make_server({script: text.replace(guard, instead)})
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        explore(broken, examples=250, phases=[Phase.generate])
