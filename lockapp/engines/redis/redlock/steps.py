"""The steps of a lock on several independent nodes, as an engine's port.

Each is one question to all nodes (:mod:`lockapp.engines.redis.redlock.procedures`), and what it
means. Nobody queues: who waits asks again after a random pause.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from lockapp.core.flight import Landing
from lockapp.core.options import EngineOptions
from lockapp.core.values import (
    AllGranted,
    Busy,
    Degraded,
    EventRecord,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    GrantMessage,
    LockSpec,
    LockState,
    Queued,
    Refused,
    Released,
    RenewItem,
    RenewReply,
    StreamIdentity,
    Undo,
)
from lockapp.engines.procedures import DONE
from lockapp.engines.redis.redlock import procedures, votes
from lockapp.engines.redis.redlock.attempts import Attempts, mark_of, marked
from lockapp.engines.redis.redlock.listing import (
    Grant,
    grants,
    states,
    unmarked,
    whole,
    with_waiters,
)
from lockapp.engines.redis.redlock.node import NodeSteps, refuse_twice
from lockapp.engines.redis.redlock.votes import Nodes, answers, ask_until_majority
from lockapp.engines.redis.sync_transport import twin_of
from lockapp.exceptions import EngineUnavailable
from lockapp.process import note_of

AGAIN_S = (0.05, 0.25)
"""Who waits asks again after a pause between these, each time another: two who got in each other's
way, neither with a majority, must not do so again. At the same moment they cost the nodes less than
25 commands a second."""
LOOK_GRACE_S = 0.05
"""So long who lists or takes away waits for nodes beyond a majority."""


class RedlockSteps:
    """An :class:`~lockapp.core.ports.EnginePort` on several nodes."""

    watchdog: Any
    parts = 1

    def __init__(
        self,
        nodes: Nodes,
        steps: Sequence[NodeSteps],
        options: EngineOptions,
        alias: str,
        attempts: Attempts,
        seen: dict[str, str],
    ) -> None:
        """Put them together.

        Args:
            nodes: asks all of them.
            steps: each by itself.
            options: the engine's.
            alias: the engine's.
            attempts: what this process knows of its tokens.
            seen: which server was found at which address.
        """
        self.nodes = nodes
        self.options = options
        self.alias = alias
        self.attempts = attempts
        self.now = nodes.now
        self.sleep = steps[0].transport.sleep
        self._steps = steps
        self._seen = seen
        self._hears = 0  # the node whose notices are heard

    def for_watchdog(self) -> Self:
        """See EnginePort."""
        twin = twin_of(self)
        twin._steps = [node.for_watchdog() for node in self._steps]
        twin.nodes = self.nodes.of(twin._steps)
        return twin

    def defer(self, undo: Undo) -> None:
        """See StepPort."""
        self.watchdog.defer(undo)

    async def rest(self) -> bool:
        """See StepPort."""
        return all([await node.rest() for node in self._steps])

    def forget(self) -> object:
        """See EnginePort."""
        return [node.forget() for node in self._steps]

    async def acquire(
        self, spec: LockSpec, token: str, description: str, *, queue: bool
    ) -> Granted | Queued | Busy | Refused:
        """See StepPort. In place of a queue there is the next attempt."""
        refuse_twice(self._seen, self.alias)  # who would count twice never gets to grant anything
        sent_at = self.now()
        attempt = self.attempts.begin(token, spec, sent_at)
        fence = 0 if self.options.two_phase_fencing else attempt.fence or self.attempts.next_fence()
        attempt.description = marked(description, token, fence)
        reply = await procedures.acquire(self.nodes, attempt, fence=fence, last=not queue)
        if type(reply) is Granted:
            life_ms = reply.deadline_ms - reply.now_ms
            self.attempts.granted(attempt, sent_at, self.now(), life_ms, reply.fence)
            return reply
        if type(reply) is Refused:
            self.attempts.ended(token, "", sent_at)
            return reply
        assert type(reply) is Busy
        busy = _unmarked(reply)
        if not queue:
            self.attempts.ended(token, "", sent_at)
            return busy
        attempt.waits = True
        ends_ms = busy.holder.deadline_ms if busy.holder else busy.now_ms + spec.ttl_ms
        return Queued(busy.now_ms, 0, ends_ms)

    async def acquire_all(
        self, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
    ) -> AllGranted | Busy:
        """See StepPort. Never asked for: they are taken one after the other, in order."""
        raise NotImplementedError

    def part_of(self, name: str) -> int:
        """See StepPort."""
        return 0

    def together(self, names: Sequence[str]) -> bool:
        """See StepPort. What one node can do in one step, several can't."""
        return False

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> GrantMessage | None:
        """See StepPort. Nothing ever comes: it is a pause."""
        await self.sleep(min(random.uniform(*AGAIN_S), timeout_s))  # noqa: S311
        return None

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Released | Gone:
        """See StepPort."""
        attempt = self.attempts.ending(token)
        reply = await procedures.release(
            self.nodes, name, token, attempt, tombstone=tombstone, why=why
        )
        if not isinstance(reply, Gone) or reply.kind in DONE:
            self.attempts.ended(token, "released", self.now(), why)
        else:  # who took it away has recorded that
            kind = "expired" if reply.kind in procedures.MISSING else ""
            self.attempts.ended(token, kind, self.now())
        return reply

    async def cancel(self, name: str, token: str, *, tombstone: bool) -> Granted | GaveUp | Gone:
        """See StepPort. Whatever some nodes gave goes back."""
        reply = await self.release(name, token, tombstone=tombstone, why="undone")
        outcomes = await self._look([name])
        holders = [holder for lock in self._states([name], outcomes) for holder in lock.holders]
        return GaveUp(reply.now_ms, holders[0] if holders else None)

    async def renew(self, leases: Sequence[RenewItem], part: int = 0) -> RenewReply:
        """See StepPort."""
        sent_at = self.now()
        reply = await procedures.renew(self.nodes, leases, self.attempts.get)
        for item, renewal in zip(leases, reply.renewals, strict=True):
            if renewal.deadline_ms:
                self.attempts.prolonged(item.token, sent_at, renewal.deadline_ms - reply.now_ms)
            else:
                mine = renewal.kind in procedures.MISSING
                self.attempts.ended(item.token, "expired" if mine else "", self.now())
        self.attempts.flush(self.now())
        return reply

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """See StepPort. Nothing shares here: it is only prolonged."""
        now_ms, (renewal,), _ = await self.renew([RenewItem(name, token, ttl_ms)])
        attempt = self.attempts.get(token)
        if not renewal.deadline_ms:
            return Gone(now_ms, renewal.kind, renewal.note)
        return Granted(now_ms, renewal.deadline_ms, attempt.fence if attempt else 0)

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort. On each node by the fence that the lease has there."""
        found = await self._sought(name, lambda grant: grant.fence == fence)
        if isinstance(found, ForceOutcome):
            return found
        await self._on_each(found, lambda node, its: node.force_release(name, its, actor, reason))
        self._taken("forced", name, fence, found, note_of(actor=actor, reason=reason))
        return ForceOutcome.RELEASED

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        found = await self._sought(name, lambda grant: grant.fence == fence)
        if isinstance(found, ForceOutcome):
            return found
        await self._on_each(found, lambda node, its: node.revoke(name, its, actor, reason))
        self._taken("revoked", name, fence, found, note_of(actor=actor, reason=reason))
        return ForceOutcome.ASKED

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """See StepPort."""
        found = await self._sought(name, lambda grant: grant.mark == mark_of(token))
        outcomes = await self._all(
            lambda node, _: node.abandon(name, token, grace_ms, actor, reason)
        )
        if ForceOutcome.RELEASED not in outcomes or isinstance(found, ForceOutcome):
            return ForceOutcome.NOT_HELD
        if not grace_ms:
            self._taken("abandoned", name, found.fence, found, note_of(actor=actor, reason=reason))
        return ForceOutcome.RELEASED

    def _taken(self, kind: str, name: str, fence: int, found: Grant, note: str) -> None:
        held_ms = max(it.held_ms for it in found.on.values())
        self.attempts.taken(kind, name, found.mark, fence, held_ms, note)

    async def _sought(self, name: str, sought: Any) -> Grant | ForceOutcome:
        """Return the lease that is meant, or what there is instead.

        Raises:
            EngineUnavailable: fewer than a majority answered.
        """
        outcomes = await self._look([name])
        found = grants(outcomes).get(name, [])
        answered = len(answers(outcomes))
        for grant in found:
            if sought(grant):
                return grant
        held = any(whole(grant, self.nodes.count, answered) for grant in found)
        return ForceOutcome.CHANGED if held else ForceOutcome.NOT_HELD

    async def _on_each(self, grant: Grant, step: Any) -> None:
        """Do something to a lease on every node that has it.

        Raises:
            EngineUnavailable: it may still be on a majority.
        """
        on = {id(self._steps[at]): holder.fence for at, holder in grant.on.items()}
        outcomes = await self.nodes.ask(
            lambda node, _: step(node, on[id(node)]), votes.all_in, among=list(grant.on)
        )
        votes.raise_misfit(outcomes)
        left = [at for at in grant.on if isinstance(outcomes[at], EngineUnavailable)]
        if len(left) >= votes.majority(self.nodes.count):
            votes.quorum_lost(self.nodes, outcomes)

    async def _all(self, step: votes.Step) -> votes.Outcomes:
        """Ask every node, and a while longer for those beyond a majority.

        Raises:
            EngineUnavailable: fewer than a majority answered.
        """
        outcomes = await self.nodes.ask(step, ask_until_majority(self.nodes), grace_s=LOOK_GRACE_S)
        votes.raise_misfit(outcomes)
        if len(answers(outcomes)) < votes.majority(self.nodes.count):
            votes.quorum_lost(self.nodes, outcomes)
        return outcomes

    async def _look(self, names: Sequence[str]) -> votes.Outcomes:
        return await self._all(lambda node, _: node.inspect(names, waiters=False))

    def _states(self, names: Sequence[str], outcomes: votes.Outcomes) -> list[LockState]:
        return states(names, outcomes, self.nodes.names)[1]

    async def sweep(self, names: Sequence[str], part: int = 0) -> int:
        """See StepPort."""
        outcomes = await self._all(lambda node, _: node.sweep(names))
        return max(int(outcomes[at]) for at in answers(outcomes))

    async def report(self, reports: Sequence[Degraded]) -> None:
        """See StepPort. Kept in this process, when the nodes can be asked again."""
        await self.ping()
        for it in reports:
            self.attempts.degraded(it)

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """See StepPort. About right while they change; what a minority has counts as well."""
        outcomes = await self._all(lambda node, _: node.deadlines(offset + count))
        pages = [outcomes[at] for at in answers(outcomes)]
        ends: dict[str, int] = {}
        for _, found in pages:
            for name, deadline_ms in found:
                ends[name] = max(deadline_ms, ends.get(name, 0))
        ordered = sorted(ends, key=lambda name: (ends[name], name))
        total = max(max(total for total, _ in pages), len(ordered))
        return total, ordered[offset : offset + count]

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """See StepPort. Nobody queues; those of this process that will ask again are known."""
        now_ms, locks = states(names, await self._look(names), self.nodes.names)
        now, seen_ms = self.now(), self.options.seen_ms
        return now_ms, [
            with_waiters(lock, self.attempts.waiting(lock.name), waiters, now, now_ms + seen_ms)
            for lock in locks
        ]

    async def listen(self) -> Any:
        """See WatchPort. On one node: whoever does something to a lease does it on all."""
        failure: EngineUnavailable | None = None
        for _ in self._steps:
            try:
                return await self._steps[self._hears].listen()
            except EngineUnavailable as error:
                failure = failure or error
                self._hears = (self._hears + 1) % len(self._steps)
        assert failure is not None
        raise failure

    async def ping(self) -> None:
        """See EnginePort. A majority must answer."""
        await self._all(lambda node, _: _pong(node))

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """See EnginePort. There is one shard: this process's log."""
        self.attempts.flush(self.now())
        return self.attempts.log.after(after, count)

    async def trim_events(self, shard: int, through: str) -> None:
        """See EnginePort."""
        self.attempts.log.trim(through)

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """See EnginePort."""
        return self.attempts.log.identity()

    async def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """See EnginePort. Refused where it is declared."""
        raise NotImplementedError

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        """See EnginePort. Refused where it is declared."""
        raise NotImplementedError


async def _pong(node: NodeSteps) -> bool:
    await node.ping()
    return True


def _unmarked(busy: Busy) -> Busy:
    holder = busy.holder
    if holder is None:
        return busy
    return busy._replace(holder=replace(holder, description=unmarked(holder.description)))
