"""How an attempt gets its node in the queue of a lock, finds it again, and gives it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError

from lockapp.core.options import EngineOptions
from lockapp.core.values import HolderState
from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.contenders import Contender
from lockapp.engines.zookeeper.errors import translated
from lockapp.engines.zookeeper.listing import as_holder
from lockapp.engines.zookeeper.names import from_data, to_data
from lockapp.engines.zookeeper.requests import Batch, Request, Then
from lockapp.engines.zookeeper.session import Session
from lockapp.engines.zookeeper.tokens import Node, Tombstone
from lockapp.exceptions import EngineError, EngineUnavailable

FRESH = 0.25
"""A look at the queue that was asked for this part of a ttl ago is looked at no more: what holds by
it holds, but a lease that counts from then would be short."""
ATTEMPTS = 50
"""To make a node below a lock whose own node others delete in the same moment, again and again."""


class Standing(ABC):
    """What all steps do to a node. The lock's own node comes and goes with the contenders."""

    session: Session
    options: EngineOptions
    alias: str

    @abstractmethod
    async def ask(self, *requests: Request) -> Batch:
        """Send requests together and wait for all the answers."""

    @abstractmethod
    def now(self) -> float:
        """See StepPort."""

    async def _contenders(self, node: Node, again: bool) -> tuple[list[Contender], float]:
        """Return the queue, in which ``node`` stands from now on, and when that was asked for."""
        lock, parents = self.session.paths.lock(node.spec.name), self.session.parents
        if again and node.path is None:
            await self._find(node)
        if node.path is not None:
            look, node.look = node.look, None
            if look is not None and self.now() < look[0] + node.spec.ttl_ms / 1000 * FRESH:
                return order.queue(look[1]), look[0]
            return await self._look(lock)
        stem = order.stem(node.token, node.spec.limit, node.spec.weight)
        contend = Request.contend(
            f"{lock}/{stem}",
            to_data(node.about()),
            self.session.must_last,
            partial(self._made, node),
        )
        for attempt in range(ATTEMPTS):
            # Who is the first below a lock that is new need not look who is ahead.
            known = attempt == 0 and parents.known(lock)
            make = [] if known else [Request.create(lock)]
            look_too = [Request.children(lock)] if known else []
            batch = await self.ask(*make, contend, *look_too)
            error = batch.errors[len(make)]
            if error is None:
                if known:
                    return order.queue(batch.values[1] or ()), batch.sent_at
                own = order.parse(batch.values[1][0].rpartition("/")[2])
                if own is not None and own.sequence == 0:
                    return [own], batch.sent_at
                return await self._look(lock)
            if not isinstance(error, NoNodeError):
                raise translated(error, self.alias)
            parents.missing(lock)
            if make and isinstance(batch.errors[0], NoNodeError):
                lasting = [Request.create(path) for path in self.session.paths.lasting]
                if isinstance((await self.ask(*lasting)).errors[0], NoNodeError):
                    raise EngineUnavailable(
                        f"lock engine {self.alias!r}: the chroot of its address does not exist",
                        alias=self.alias, reason="refused",
                    )  # fmt: skip
        raise EngineError(f"lock engine {self.alias!r}: {lock} can't be made", alias=self.alias)

    async def _look(self, lock: str) -> tuple[list[Contender], float]:
        batch = await self.ask(Request.children(lock))
        return order.queue(batch.values[0] or ()), batch.sent_at

    def _made(self, node: Node, made: Any, error: Exception | None) -> None:
        """Note a node that has been made, whoever still waits for it."""
        if error is None and self.session.tokens.stands(node, made[0], made[1].czxid):
            self.session.look_after(node, node.deadline)

    async def _find(self, node: Node) -> None:
        """Look for a node whose making was not answered; it must be of the present session."""
        lock = self.session.paths.lock(node.spec.name)
        batch = await self.ask(Request.children(lock))
        contenders = order.queue(batch.values[0] or ())
        mine = order.place_of(contenders, node.token)
        if mine is None or node.path is not None:
            return
        path = f"{lock}/{contenders[mine].node}"
        stat = (await self.ask(Request.exists(path))).values[0]
        if stat is not None and stat.ephemeralOwner == self.session.id:
            self._made(node, (path, stat), None)

    async def _withdraw(self, node: Node, first: Contender) -> HolderState | None:
        """Leave the queue; return who is at its head."""
        lock = self.session.paths.lock(node.spec.name)
        head = f"{lock}/{first.node}"
        batch = await self.ask(Request.delete(node.path or ""), Request.get(head))
        self.session.tokens.leave(node)
        if head == node.path or batch.errors[1] is not None:
            return None
        return as_holder(first, *batch.values[1], now_ms=self.session.now_ms())

    async def _delete(self, node: Node, then: Then) -> Batch:
        """Delete a node and, unless others were seen in the queue, the lock's own."""
        assert node.path is not None
        gone = Request.delete(node.path, then)
        if not node.alone:
            return await self.ask(gone)
        batch = await self.ask(gone, Request.delete(node.lock))
        if batch.errors[1] is None:
            self.session.tokens.leave(node)
            self.session.parents.missing(node.lock)
        return batch

    async def _learn_end(self, node: Node) -> tuple[str, str]:
        """Forget a node that somebody else deleted; return how and the note, if that was left."""
        batch = await self.ask(Request.get(self.session.paths.end(node.token)))
        self.session.tokens.leave(node)
        if batch.errors[0] is not None:
            return "", ""
        told = from_data(batch.values[0][0])
        kind, note = str(told.get("kind", "")), str(told.get("note", ""))
        self._bury(node.token, kind, note)
        return kind, note

    def _bury(self, token: str, kind: str, note: str = "", *, least_ms: int = 0) -> None:
        now, life_ms = self.now(), max(self.options.tombstone_ms, least_ms)
        self.session.tokens.bury(token, Tombstone(now + life_ms / 1000, kind, note), now)
