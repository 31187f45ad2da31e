"""What others may do to a lease: take it away, ask for it, end it for a dead holder."""

from __future__ import annotations

import contextlib
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from lockapp.core.values import ForceOutcome
from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.contenders import Contender
from lockapp.engines.zookeeper.errors import translated
from lockapp.engines.zookeeper.listing import as_holder
from lockapp.engines.zookeeper.names import TOLD_NAMES, from_data, to_data
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.session import Session
from lockapp.engines.zookeeper.tokens import Tombstone
from lockapp.exceptions import EngineUnavailable
from lockapp.process import note_of


class Operators:
    """The steps of operators.

    Each compares: the node of one token is deleted, or one version of its data written over.
    """

    session: Session
    options: Any
    alias: str
    ask: Any
    now: Any

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        holders = await self._holders(name)
        for one, data, stat in holders:
            if (one.fence or stat.czxid) == fence:
                note = note_of(actor=actor, reason=reason)
                return await self._end(name, one, data, stat, "forced", note)
        return ForceOutcome.CHANGED if holders else ForceOutcome.NOT_HELD

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        while True:
            holders = await self._holders(name)
            asked_ms = str(self.session.now_ms())
            note = note_of(actor=actor, reason=reason, asked_ms=asked_ms)
            mine = [it for it in holders if (it[0].fence or it[2].czxid) == fence]
            if not mine:
                return ForceOutcome.CHANGED if holders else ForceOutcome.NOT_HELD
            one, data, stat = mine[0]
            if await self._write(name, one, data, stat, revoked=note):
                held_ms = as_holder(one, data, stat, now_ms=self.session.now_ms()).held_ms
                self._record("revoked", name, fence, held_ms, note)
                await self._tell(name)
                return ForceOutcome.ASKED

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        while True:
            mine = [it for it in await self._holders(name) if it[0].token == token]
            if not mine:
                return ForceOutcome.NOT_HELD
            one, data, stat = mine[0]
            if not grace_ms:
                least_ms = int(from_data(data).get("ttl_ms", 0))
                return await self._end(name, one, data, stat, "abandoned", note, least_ms=least_ms)
            if await self._write(name, one, data, stat, abandoned=note):
                path = f"{self.session.paths.lock(name)}/{one.node}"
                self.session.end_at(self.now() + grace_ms / 1000, path)
                await self._tell(name)
                return ForceOutcome.RELEASED

    async def _holders(self, name: str) -> list[tuple[Contender, bytes, Any]]:
        lock = self.session.paths.lock(name)
        batch: Batch = await self.ask(Request.children(lock))
        queue = order.queue(batch.values[0] or ())
        queue = queue[: order.holding(queue)]
        if not queue:
            return []
        batch = await self.ask(*(Request.get(f"{lock}/{one.node}") for one in queue))
        return [(one, *it) for one, it in zip(queue, batch.values, strict=True) if it]

    async def _write(
        self, name: str, one: Contender, data: bytes, stat: Any, **change: str
    ) -> bool:
        """Change what stands in a holder's node; False when it is another by now."""
        path = f"{self.session.paths.lock(name)}/{one.node}"
        written = to_data({**from_data(data), **change})
        error = (await self.ask(Request.set(path, written, stat.version))).errors[0]
        if error is None:
            return True
        if isinstance(error, BadVersionError | NoNodeError):
            return False
        raise translated(error, self.alias)

    async def _end(
        self, name: str, one: Contender, data: bytes, stat: Any, kind: str, note: str,
        *, least_ms: int = 0,
    ) -> ForceOutcome:  # fmt: skip
        """Delete a holder's node and leave word for it, in one step."""
        session = self.session
        lock, end = session.paths.lock(name), session.paths.end(one.token)
        held_ms = as_holder(one, data, stat, now_ms=session.now_ms()).held_ms

        def build(transaction: Any) -> None:
            transaction.delete(f"{lock}/{one.node}")
            # Ephemeral: an operator's process may end as soon as it has the answer.
            transaction.create(end, to_data({"kind": kind, "note": note}), ephemeral=True)

        def done(error: Exception | None) -> None:
            if error is None:
                self._record(kind, name, one.fence or stat.czxid, held_ms, note)

        batch: Batch = await self.ask(Request.together(build, done), Request.delete(lock))
        failed = [it for it in batch.values[0] or () if isinstance(it, Exception)]
        if any(isinstance(it, NoNodeError) for it in failed):
            return ForceOutcome.CHANGED
        if failed:
            raise translated(failed[0], self.alias)
        life_ms = max(self.options.tombstone_ms, least_ms)
        session.end_at(self.now() + life_ms / 1000, end)
        mine = session.tokens.nodes.get(one.token)
        if mine is not None:
            session.tokens.end(mine, Tombstone(self.now() + life_ms / 1000, kind, note))
        await self._tell(name)
        return ForceOutcome.RELEASED

    async def _tell(self, name: str) -> None:
        """Tell the holders of a lock, in every process, that something happened to it.

        Before the operator has the answer, since its process may end then. A hint: that it can't be
        given is no failure, and holders learn at their next renewal.
        """
        notices = self.session.paths.notices
        with contextlib.suppress(EngineUnavailable):
            while True:
                batch: Batch = await self.ask(Request.get(notices))
                if batch.errors[0] is not None:
                    return
                data, stat = batch.values[0]
                names = [*from_data(data).get("names", []), name][-TOLD_NAMES:]
                told = Request.set(notices, to_data({"names": names}), stat.version)
                if not isinstance((await self.ask(told)).errors[0], BadVersionError):
                    return

    def _record(self, kind: str, name: str, fence: int, held_ms: int, note: str) -> None:
        detail = {key: str(value) for key, value in from_data(note.encode()).items()}
        self.session.record(kind, name, fence, {"held_ms": str(held_ms), **detail})
