"""The steps of a lock on ZooKeeper: each one request, or a few sent together. No client, no waits.

How a step keeps to one server-side decision:

* to acquire is to make a numbered node; whether it holds follows from the order of the nodes;
* whatever ends a lease deletes the node of exactly that token, which nobody ever makes again;
* what is changed of a node (asked to let go, cut short) is written over the version that was read.

A renewal is a look at the node, together with a request that has to pass the leader: a server that
is cut off from the ensemble may answer looks for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from lockapp.core.chance import chance
from lockapp.core.values import (
    AllGranted,
    Busy,
    Degraded,
    GaveUp,
    Gone,
    Granted,
    LockSpec,
    Queued,
    Refused,
    Released,
    Renewal,
    RenewItem,
    RenewReply,
)
from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.errors import translated
from lockapp.engines.zookeeper.names import from_data, lock_name
from lockapp.engines.zookeeper.requests import Request
from lockapp.engines.zookeeper.standing import Standing
from lockapp.engines.zookeeper.tokens import Node, Tombstone
from lockapp.exceptions import EngineUnavailable

LOOKED_AT = 200
"""Locks looked at for whether they are empty, each time anybody looks: a sample of all."""


class Steps(Standing):
    """The steps of :class:`~lockapp.core.ports.StepPort` on a session."""

    async def acquire(
        self, spec: LockSpec, token: str, description: str, *, queue: bool
    ) -> Granted | Queued | Busy | Refused:
        """See StepPort."""
        tokens = self.session.tokens
        while True:
            grave = tokens.buried(token, self.now())
            if grave:
                return Refused(self.session.now_ms(), grave.kind, grave.note)
            node = tokens.nodes.get(token)
            again = node is not None
            if node is None:
                node = self.session.enter(token, spec, description)
            elif not node.granted_ms:
                tokens.prolong(node, self.now(), self.options.seen_ms / 1000)
            try:
                reply = await self._acquire(node, again=again, queue=queue)
            except EngineUnavailable as error:
                if error.sent:
                    node.doubtful = True
                elif node.path is not None:
                    # Not this request, but an earlier one of the token has taken effect.
                    error.fields["reason"] = "reset"
                elif not node.doubtful:
                    tokens.leave(node)
                raise
            if reply is not None:
                return reply

    async def _acquire(
        self, node: Node, *, again: bool, queue: bool
    ) -> Granted | Queued | Busy | None:
        """Stand in the queue and look; None when the node has gone and one has to ask again."""
        asked, asked_ms = self.now(), self.session.now_ms()
        contenders, sent_at = await self._contenders(node, again)
        mine = order.place_of(contenders, node.token)
        if mine is None:
            await self._learn_end(node)
            return None
        head = order.holding(contenders)
        node.alone = len(contenders) == 1
        if mine < head:
            return self._granted(node, sent_at, asked, asked_ms)
        if not queue:
            return Busy(asked_ms, await self._withdraw(node, contenders[0]))
        node.waited = True
        lock = self.session.paths.lock(node.spec.name)
        node.watched = [f"{lock}/{one}" for one in order.to_watch(contenders, mine)]
        return Queued(asked_ms, mine - head, asked_ms + self.options.slice_ms)

    def _granted(self, node: Node, sent_at: float, now: float, now_ms: int) -> Granted | None:
        """Note that it holds, from the moment at which the request was sent that says so."""
        session, life_s = self.session, node.spec.ttl_ms / 1000
        if node.granted_ms:
            deadline = session.tokens.prolong(node, sent_at, life_s)
        else:
            deadline = session.tokens.grant(node, sent_at, now_ms, life_s)
            if deadline is not None:
                session.look_after(node, deadline)
                self._note_grant(node)
        if deadline is None:
            return None
        return Granted(now_ms, now_ms + round((deadline - now) * 1000), node.fence)

    def _note_grant(self, node: Node) -> None:
        spec, waited_ms = node.spec, 0
        if node.waited:
            waited_ms = node.granted_ms - node.queued_ms
            self.session.note_grant(node)
        self.session.record(
            "acquired", spec.name, node.fence,
            {
                "waited_ms": str(max(waited_ms, 0)), "ttl_ms": str(spec.ttl_ms),
                "weight": str(spec.weight), "limit": str(spec.limit),
                "max_hold_ms": str(spec.max_hold_ms), "description": node.description,
            },
        )  # fmt: skip

    async def acquire_all(
        self, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
    ) -> AllGranted | Busy:
        """See StepPort. Never asked for: they are taken one after the other, in order."""
        raise NotImplementedError

    def together(self, names: Sequence[str]) -> bool:
        """See StepPort. No transaction of ZooKeeper looks at a queue."""
        return len(names) < 2

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Released | Gone:
        """See StepPort."""
        tokens = self.session.tokens
        grave = tokens.buried(token, self.now())
        node = tokens.nodes.get(token)
        if tombstone and not grave:
            self._bury(token, "undone")
        if node is not None and node.path is None:
            await self._find(node)
        if node is None or node.path is None:
            if node is not None:
                tokens.leave(node)
            if grave is None and tokens.overdue(token):
                return Gone(self.session.now_ms(), "expired", "")
            return Gone(self.session.now_ms(), *(grave[1:] if grave else ("", "")))
        overdue = node.granted_ms and self.now() >= node.deadline

        def gone(error: Exception | None) -> None:
            if error is None and node.ended is None:
                self.session.log_end(node, "expired" if overdue else "released", why=why)

        batch = await self._delete(node, gone)
        now_ms = self.session.now_ms()
        if isinstance(batch.errors[0], NoNodeError):
            return Gone(now_ms, *await self._learn_end(node))
        tokens.leave(node)
        if node.ended is not None:
            return Gone(now_ms, node.ended.kind, node.ended.note)
        return Gone(now_ms, "expired", "") if overdue else Released(now_ms)

    async def cancel(self, name: str, token: str, *, tombstone: bool) -> Granted | GaveUp | Gone:
        """See StepPort."""
        tokens = self.session.tokens
        node = tokens.nodes.get(token)
        if node is not None and node.path is None:
            await self._find(node)
        if node is None or node.path is None:
            grave = tokens.buried(token, self.now())
            return Gone(self.session.now_ms(), *(grave[1:] if grave else ("", "")))
        asked, asked_ms = self.now(), self.session.now_ms()
        contenders, sent_at = await self._contenders(node, True)
        mine = order.place_of(contenders, token)
        if mine is None:
            return Gone(self.session.now_ms(), *await self._learn_end(node))
        if mine < order.holding(contenders):
            reply = self._granted(node, sent_at, asked, asked_ms)
            if reply is not None:
                return reply
        holder = await self._withdraw(node, contenders[0])
        return GaveUp(self.session.now_ms(), holder)

    parts = 1

    def part_of(self, name: str) -> int:
        """See StepPort."""
        return 0

    async def renew(self, leases: Sequence[RenewItem], part: int = 0) -> RenewReply:
        """See StepPort."""
        if not leases:
            return RenewReply(self.session.now_ms(), [], await self._empty_locks())
        asked, asked_ms = self.now(), self.session.now_ms()
        nodes = self.session.tokens.nodes
        looks = {
            item.token: Request.get(node.path)
            for item in leases
            if (node := nodes.get(item.token)) and node.path and not node.ended
        }
        seen: dict[str, tuple[Any, Exception | None]] = {}
        sent_at = asked
        if looks:
            # Deletes nothing, but only the leader can say so.
            leader = Request.delete(f"{self.session.paths.ended}/-")
            batch = await self.ask(*looks.values(), leader)
            answers = zip(batch.values, batch.errors, strict=True)
            seen, sent_at = dict(zip(looks, answers, strict=False)), batch.sent_at
        renewals = [
            await self._renewed(it, seen.get(it.token), sent_at, asked_ms - round(asked * 1000))
            for it in leases
        ]
        return RenewReply(asked_ms, renewals, [])

    async def _renewed(
        self,
        item: RenewItem,
        seen: tuple[Any, Exception | None] | None,
        sent_at: float,
        epoch_ms: int,
    ) -> Renewal:
        """Judge one look; ``epoch_ms`` is what the own clock lacks to the time of day."""
        tokens = self.session.tokens
        node = tokens.nodes.get(item.token)
        ended = node.ended if node else tokens.buried(item.token, sent_at)
        if ended:
            return Renewal(0, ended.kind, ended.note)
        if node is None or seen is None:
            return Renewal(0, "gone", "")
        found, error = seen
        if isinstance(error, NoNodeError):
            kind, note = await self._learn_end(node)
            return Renewal(0, kind or "gone", note)
        if error is not None:
            raise translated(error, self.alias)
        data, stat = found
        about = from_data(data)
        if stat.ephemeralOwner != self.session.id:
            return Renewal(0, "gone", "")
        if cut := about.get("abandoned"):
            node.ended = Tombstone(0.0, "abandoned", str(cut))
            return Renewal(0, "abandoned", str(cut))
        life_s = min(item.ttl_ms, node.spec.ttl_ms) / 1000
        deadline = tokens.prolong(node, sent_at, life_s)
        if deadline is None:
            return Renewal(0, "expired", "")
        revoked = str(about.get("revoked", ""))
        deadline_ms = epoch_ms + round(deadline * 1000)
        return Renewal(deadline_ms, "revoked" if revoked else "", revoked)

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """See StepPort. Another node takes the place of the old one, in one transaction."""
        node = self.session.tokens.nodes.get(token)
        now_ms, (renewal,), _ = await self.renew([RenewItem(name, token, ttl_ms)])
        if node is None or node.path is None or not renewal.deadline_ms:
            return Gone(now_ms, renewal.kind, renewal.note)
        lock, _, name_of_node = node.path.rpartition("/")
        old = order.parse(name_of_node)
        if old is None or old.weight <= weight:
            return Granted(now_ms, renewal.deadline_ms, node.fence)
        data, _ = (await self.ask(Request.get(node.path))).values[0] or (b"", None)
        new = f"{lock}/{order.reborn(old, weight, node.fence)}"

        def build(transaction: Any) -> None:
            transaction.delete(f"{lock}/{old.node}")
            transaction.create(new, data, ephemeral=True)

        def done(error: Exception | None) -> None:
            if error is None:
                node.path = new
                self.session.log_end(node, "downgraded", detail={"weight": str(weight)})

        batch = await self.ask(Request.together(build, done))
        if node.path != new:
            failed = next((it for it in batch.values[0] if isinstance(it, NoNodeError)), None)
            if failed is None:
                raise translated(batch.values[0][0], self.alias)
            return Gone(self.session.now_ms(), *await self._learn_end(node))
        return Granted(now_ms, renewal.deadline_ms, node.fence)

    async def _empty_locks(self) -> list[str]:
        """Return locks without contenders, which a dead process leaves: of a sample."""
        locks = self.session.paths.locks
        names = (await self.ask(Request.children(locks))).values[0] or []
        if len(names) > LOOKED_AT:
            names = chance.sample(names, LOOKED_AT)
        if not names:
            return []
        batch = await self.ask(*(Request.exists(f"{locks}/{name}") for name in names))
        empty = zip(names, batch.values, strict=True)
        return [lock_name(name) for name, stat in empty if stat and not stat.numChildren]

    async def sweep(self, names: Sequence[str], part: int = 0) -> int:
        """See StepPort. Holders end with their time or session; what is left is an empty lock."""
        paths = [self.session.paths.lock(name) for name in names]
        if not paths:
            return 0
        batch = await self.ask(*map(Request.delete, paths))
        for path in paths:
            self.session.parents.missing(path)
        return batch.errors.count(None)

    async def report(self, reports: Sequence[Degraded]) -> None:
        """See StepPort."""
        for it in reports:
            self.session.record(
                "degraded", it.name, 0,
                {
                    "mode": it.mode, "at_ms": str(it.at_ms), "reason": it.reason,
                    "description": it.description,
                },
            )  # fmt: skip
