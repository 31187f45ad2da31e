"""What stands in the nodes, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockapp.core.values import HolderState, LockState, WaiterState
from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.contenders import Contender
from lockapp.engines.zookeeper.names import from_data, lock_name
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.session import Session

SHOWN_WAITERS = 100
"""Waiters described when one lock is shown; the rest are counted."""


def as_holder(contender: Contender, data: bytes, stat: Any, *, now_ms: int) -> HolderState:
    """Describe a holder.

    What is left of its lease is what a renewal gives it: only its process knows when that was.
    """
    about = from_data(data)
    ttl_ms, max_hold_ms = int(about.get("ttl_ms", 0)), int(about.get("max_hold_ms", 0))
    granted_ms = int(about.get("granted_ms", 0)) or min(stat.ctime, now_ms)
    left_ms = ttl_ms
    if max_hold_ms:
        left_ms = max(min(left_ms, granted_ms + max_hold_ms - now_ms), 0)
    return HolderState(
        fence=contender.fence or stat.czxid,
        granted_ms=granted_ms,
        deadline_ms=now_ms + left_ms,
        ttl_ms=ttl_ms,
        remaining_ms=left_ms,
        held_ms=max(now_ms - granted_ms, 0),
        confirmed=True,
        description=about.get("who", {}),
        weight=contender.weight,
        revoked=str(about.get("revoked", "")),
    )


def as_waiter(
    contender: Contender, data: bytes, stat: Any, *, position: int, now_ms: int, seen_ms: int
) -> WaiterState:
    """Describe a waiter: its session lives, or its node would be gone."""
    return WaiterState(
        position=position,
        queued_ms=max(now_ms - stat.ctime, 0),
        seen_until_ms=now_ms + seen_ms,
        description=from_data(data).get("who", {}),
        weight=contender.weight,
    )


class Listing:
    """The steps that only look."""

    session: Session
    options: Any
    ask: Any

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """See StepPort. In the order of the names: who holds them until when isn't stored."""
        batch: Batch = await self.ask(Request.children(self.session.paths.locks))
        names = sorted(map(lock_name, batch.values[0] or ()))
        return len(names), names[offset : offset + count]

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """See StepPort."""
        locks = [self.session.paths.lock(name) for name in names]
        if not locks:
            return self.session.now_ms(), []
        batch: Batch = await self.ask(*map(Request.children, locks))
        queues = [order.queue(nodes or ()) for nodes in batch.values]
        shown = [
            queue[: order.holding(queue) + (SHOWN_WAITERS if waiters else 0)] for queue in queues
        ]
        paths = [
            f"{lock}/{one.node}" for lock, queue in zip(locks, shown, strict=True) for one in queue
        ]
        found: Batch | None = await self.ask(*map(Request.get, paths)) if paths else None
        about = dict(zip(paths, found.values, strict=True)) if found else {}
        now_ms = self.session.now_ms()
        states = [
            self._state(name, lock, queue, about, now_ms)
            for name, lock, queue in zip(names, locks, queues, strict=True)
        ]
        return now_ms, [state for state in states if state.holders]

    def _state(
        self, name: str, lock: str, queue: list[Contender], about: dict[str, Any], now_ms: int
    ) -> LockState:
        head = order.holding(queue)
        # Without data: it went between the two looks.
        known = [(one, about.get(f"{lock}/{one.node}")) for one in queue]
        holders = [as_holder(one, *it, now_ms=now_ms) for one, it in known[:head] if it]
        waiters = [
            as_waiter(one, *it, position=at, now_ms=now_ms, seen_ms=self.options.seen_ms)
            for at, (one, it) in enumerate(known[head:])
            if it
        ]
        return LockState(
            name=name,
            family=name.partition(":")[0],
            limit=min((one.limit for one in queue[:head]), default=0),
            holders=tuple(holders),
            waiter_count=len(queue) - head,
            waiters=tuple(waiters),
        )
