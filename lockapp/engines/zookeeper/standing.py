"""How an attempt gets its node in the queue of a lock, finds it again, and gives it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError, NotEmptyError

from lockapp.core.options import EngineOptions
from lockapp.core.values import HolderState
from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.contenders import Contender
from lockapp.engines.zookeeper.errors import translated
from lockapp.engines.zookeeper.listing import as_holder
from lockapp.engines.zookeeper.names import from_data, to_data
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.session import Session
from lockapp.engines.zookeeper.tokens import Node, Tombstone
from lockapp.exceptions import EngineError, EngineUnavailable

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

    async def _contenders(self, node: Node, again: bool) -> list[Contender]:
        """Return the queue, in which ``node`` stands from now on."""
        lock, parents = self.session.paths.lock(node.spec.name), self.session.parents
        if again and node.path is None:
            await self._find(node)
        if node.path is not None:
            batch = await self.ask(Request.children(lock))
            return order.queue(batch.values[0] or ())
        about = {
            "who": from_data(node.description.encode()),
            "ttl_ms": node.spec.ttl_ms,
            "max_hold_ms": node.spec.max_hold_ms,
        }
        stem = order.stem(node.token, node.spec.limit, node.spec.weight)
        contend = Request.contend(
            f"{lock}/{stem}", to_data(about), self.session.must_last, partial(self._made, node)
        )
        for _ in range(ATTEMPTS):
            # Who is the first below a lock that is new need not look who is ahead.
            known = lock in parents
            make = [] if known else [Request.create(lock)]
            look = [Request.children(lock)] if known else []
            batch = await self.ask(*make, contend, *look)
            error = batch.errors[len(make)]
            if error is None:
                self._note_parent(lock, there=True)
                if known:
                    return order.queue(batch.values[1] or ())
                own = order.parse(batch.values[1][0].rpartition("/")[2])
                if own is not None and own.sequence == 0:
                    return [own]
                return order.queue((await self.ask(Request.children(lock))).values[0] or ())
            if not isinstance(error, NoNodeError):
                raise translated(error, self.alias)
            parents.discard(lock)
            if make and isinstance(batch.errors[0], NoNodeError):
                lasting = [Request.create(path) for path in self.session.paths.lasting]
                if isinstance((await self.ask(*lasting)).errors[0], NoNodeError):
                    raise EngineUnavailable(
                        f"lock engine {self.alias!r}: the chroot of its address does not exist",
                        alias=self.alias, reason="refused",
                    )  # fmt: skip
        raise EngineError(f"lock engine {self.alias!r}: {lock} can't be made", alias=self.alias)

    def _made(self, node: Node, made: Any, error: Exception | None) -> None:
        """Note a node that has been made, whoever still waits for it."""
        if error is None:
            node.path, stat = made
            node.fence = stat.czxid
            if self.session.tokens.nodes.setdefault(node.token, node) is node:
                self.session.look_after(node, node.deadline)

    def _note_parent(self, lock: str, *, there: bool) -> None:
        parents = self.session.parents
        if not there or len(parents) > 1000:
            parents.discard(lock)
        else:
            parents.add(lock)

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
        batch = await self._delete(node, Request.get(head))
        self.session.tokens.leave(node)
        if head == node.path or batch.errors[2] is not None:
            return None
        return as_holder(first, *batch.values[2], now_ms=self.session.now_ms())

    async def _delete(self, node: Node, *more: Request, ended: Any = None) -> Batch:
        """Delete a node and, if it was the last, the lock's own."""
        assert node.path is not None
        lock = self.session.paths.lock(node.spec.name)
        batch = await self.ask(Request.delete(node.path, ended), Request.delete(lock), *more)
        self._note_parent(lock, there=isinstance(batch.errors[1], NotEmptyError))
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
