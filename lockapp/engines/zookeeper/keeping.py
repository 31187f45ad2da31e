"""How a session keeps its nodes: each ends when its time is up, whatever its process is doing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from lockapp.core.options import EngineOptions
from lockapp.core.values import LockSpec
from lockapp.engines.clock import boot_clock, steady_clock_us
from lockapp.engines.process_log import SharedLog
from lockapp.engines.zookeeper.errands import Errands
from lockapp.engines.zookeeper.names import Paths, to_data
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.tokens import Node, Tokens

AGAIN_S = 0.2
"""After which a node is deleted that could not be, again and again."""
NOTED_AFTER_S = 0.25
"""After which it is noted in the node of who had to wait since when it holds. Shorter is not worth
a request: until then it is shown to hold since it queued."""


class Keeping(Errands):
    """The part of a session that has nodes, and ends them."""

    client: Any
    options: EngineOptions
    log: SharedLog

    def __init__(self, alias: str, prefix: str) -> None:
        super().__init__(alias)
        self.paths = Paths(prefix)
        self.clock_us = steady_clock_us()
        self.tokens = Tokens()
        self.parents = self.tokens.parents

    @abstractmethod
    def _ask(self, requests: list[Request], then: Callable[[Batch], object]) -> None:
        """Send requests of the session's own."""

    def now_ms(self) -> int:
        """Return the time in epoch milliseconds, as this process sees it."""
        return self.clock_us() // 1000

    def enter(self, token: str, spec: LockSpec, description: str) -> Node:
        """Note an attempt that is about to be made."""
        node = Node(token, spec, description, boot_clock() + self.options.seen_ms / 1000)
        node.queued_ms = self.now_ms()
        self.tokens.nodes[token] = node
        life_ms = min(spec.ttl_ms, spec.max_hold_ms or spec.ttl_ms, self.options.seen_ms)
        self.look_after(node, boot_clock() + life_ms / 1000)
        return node

    def look_after(self, node: Node, at: float) -> None:
        """See that the node ends when its time is up, which may be at ``at``."""
        if not node.look_at or at < node.look_at:
            node.look_at = at
            self.call(lambda: self._look_at(node, at))

    def _look_at(self, node: Node, at: float) -> None:
        self._at(at, lambda: self._end_if_due(node, at))

    def _end_if_due(self, node: Node, at: float) -> None:
        if node.look_at != at:  # an earlier look has come between
            return
        until = self.tokens.take_if_due(node, boot_clock())
        if until is not None:
            node.look_at = until
            self._look_at(node, until)
        elif node.overdue:
            why = "max_hold" if node.at_max_hold else ""
            self._delete(node.path or "", lambda: self.log_end(node, "expired", why=why))

    def end_at(self, at: float, path: str) -> None:
        """Delete a node at ``at`` (own clock), whosever it is."""
        self.call(lambda: self._defer(at, lambda: self._delete(path)))

    def _delete(self, path: str, then: Callable[[], None] = lambda: None) -> None:
        """Delete a node until it is certain that it is gone."""
        if not path:  # its name never arrived: who asked for it undoes it
            return

        def done(batch: Batch) -> None:
            if batch.failure is not None and self.client is not None:
                self.call(lambda: self._defer(boot_clock() + AGAIN_S, lambda: self._delete(path)))

        gone = Request.delete(path, lambda error: then() if error is None else None)
        parent = path.rpartition("/")[0]
        self._ask([gone, *([Request.delete(parent)] if parent != self.paths.ended else [])], done)

    def _tidy(self, now: float) -> None:
        """Delete the nodes of locks that this process has left; of those in use it fails."""
        hurried = self._hurried and not self._kept
        for lock in self.parents.take_due(now, all_left=hurried):
            self._ask([Request.delete(lock)], partial(self._tidied, lock))

    def _tidied(self, lock: str, batch: Batch) -> None:
        if batch.failure is not None and self.client is not None and not self._hurried:
            self.parents.put_off(lock, boot_clock())

    def note_grant(self, node: Node) -> None:
        """Write into the node of who has waited since when it holds; nobody waits for that."""
        self.call(lambda: self._at(boot_clock() + NOTED_AFTER_S, lambda: self._note_grant(node)))

    def _note_grant(self, node: Node) -> None:
        if self.tokens.nodes.get(node.token) is node:
            # The first version: no operator's word is written over.
            noted = Request.set(node.path or "", to_data(node.about()), 0)
            self._ask([noted], lambda _: None)

    def log_end(self, node: Node, kind: str, *, why: str = "", detail: Any = None) -> None:
        """Record that a lease of this process has ended, if it had begun."""
        if node.granted_ms:
            held = {"held_ms": str(max(self.now_ms() - node.granted_ms, 0))}
            self.record(kind, node.spec.name, node.fence, {**held, **(detail or {"why": why})})

    def record(self, kind: str, name: str, fence: int, detail: dict[str, str]) -> None:
        """Record one transition."""
        self.log.add(kind, name, fence, detail, self.options.event_cap)
