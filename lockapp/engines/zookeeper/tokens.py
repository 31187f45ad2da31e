"""The attempts of one process: a token each, its node, and until when it may be relied on."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from lockapp.core.values import LockSpec
from lockapp.engines.clock import boot_clock
from lockapp.engines.zookeeper.names import from_data
from lockapp.engines.zookeeper.parents import Parents

REMEMBERED_S = 60.0
"""So long the holder of a lease that ran out may ask what became of it."""


class Node:
    """One attempt: a node in a queue, or one that is about to be made."""

    __slots__ = (
        "alone", "at_max_hold", "deadline", "description", "doubtful", "ended",
        "fence", "granted_at", "granted_ms",
        "look", "look_at", "overdue", "path", "queued_ms", "spec", "token", "waited", "watched",
    )  # fmt: skip

    def __init__(self, token: str, spec: LockSpec, description: str, deadline: float) -> None:
        self.token = token
        self.spec = spec
        self.description = description
        self.path: str | None = None  # None until the server has said it
        self.fence = 0
        self.deadline = deadline  # own clock: when the session's thread deletes the node
        self.look_at = 0.0  # when the session's thread looks whether it is time
        self.queued_ms = 0
        self.waited = False
        self.doubtful = False  # whether a request to make it got no answer
        self.granted_ms = 0  # 0: waits
        self.granted_at = 0.0
        self.alone = False  # in the queue, when it was last looked at
        self.overdue = False
        self.at_max_hold = False
        self.ended: Tombstone | None = None
        self.watched: list[str] = []  # of which one must go before it can hold
        self.look: tuple[float, list[str]] | None = None  # at the queue, and when it was asked for

    @property
    def lock(self) -> str:
        """The node of its lock, in whose queue it stands."""
        return (self.path or "").rpartition("/")[0]

    def about(self) -> dict[str, Any]:
        """What stands in it, for who looks."""
        about = {
            "who": from_data(self.description.encode()),
            "ttl_ms": self.spec.ttl_ms,
            "max_hold_ms": self.spec.max_hold_ms,
        }
        return {**about, "granted_ms": self.granted_ms} if self.granted_ms else about


class Tombstone(NamedTuple):
    """A token that is refused until ``until`` (own clock)."""

    until: float
    kind: str
    note: str


class Tokens:
    """Every attempt whose node exists or may exist.

    A deadline is looked at and moved under one guard, so that a node is either prolonged or taken
    to be deleted, never both.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.parents = Parents()
        self._overdue: dict[str, float] = {}  # token: until when it is remembered
        self._buried: dict[str, Tombstone] = {}
        self._guard = threading.Lock()

    def held(self) -> list[Node]:
        """Return those that hold."""
        return [node for node in list(self.nodes.values()) if node.granted_ms]

    def stands(self, node: Node, path: str, fence: int) -> bool:
        """Note that the server has made its node; return whether that is news."""
        with self._guard:
            if node.path is not None:
                return False
            node.path, node.fence = path, fence
            if self.nodes.setdefault(node.token, node) is not node:
                return False
            self.parents.enter(node.lock)
            return True

    def _forget(self, node: Node) -> None:
        del self.nodes[node.token]
        if node.path is not None:
            self.parents.leave(node.lock, boot_clock())

    def grant(self, node: Node, now: float, now_ms: int, life_s: float) -> float | None:
        """Note that it holds, and return its deadline; None when it was given up meanwhile."""
        with self._guard:
            if self.nodes.get(node.token) is not node:
                return None
            node.granted_at, node.granted_ms = now, now_ms
            node.deadline = self._cut(node, now + life_s)
            return node.deadline

    def prolong(self, node: Node, now: float, life_s: float) -> float | None:
        """Move a deadline on, never back and never past max_hold; None when it is too late."""
        with self._guard:
            if self.nodes.get(node.token) is not node or (node.granted_ms and now >= node.deadline):
                return None
            node.deadline = self._cut(node, max(now + life_s, node.deadline))
            return node.deadline

    def _cut(self, node: Node, deadline: float) -> float:
        if not (node.granted_ms and node.spec.max_hold_ms):
            return deadline
        end = node.granted_at + node.spec.max_hold_ms / 1000
        node.at_max_hold = end <= deadline
        return min(deadline, end)

    def take_if_due(self, node: Node, now: float) -> float | None:
        """Forget a node whose time is up (``overdue``); else return when to look again."""
        with self._guard:
            if self.nodes.get(node.token) is not node:
                return None
            if now < node.deadline:
                return node.deadline
            node.overdue = True
            self._overdue = {token: at for token, at in self._overdue.items() if at > now}
            self._overdue[node.token] = now + REMEMBERED_S
            self._forget(node)
            return None

    def overdue(self, token: str) -> bool:
        """Whether its time was up, a while ago at most."""
        return token in self._overdue

    def leave(self, node: Node) -> None:
        """Forget a node that is gone."""
        with self._guard:
            if self.nodes.get(node.token) is node:
                self._forget(node)

    def end(self, node: Node, tombstone: Tombstone) -> None:
        """Forget a node that was taken away, and refuse its token."""
        self.leave(node)
        self._buried[node.token] = tombstone

    def lose_all(self) -> list[Node]:
        """Forget the nodes that went with their session; return those that held."""
        with self._guard:
            lost = [node for node in self.nodes.values() if node.path is not None]
            for node in lost:
                self._forget(node)
        return [node for node in lost if node.granted_ms]

    def bury(self, token: str, tombstone: Tombstone, now: float) -> None:
        """Refuse this token from now on; what is over is forgotten."""
        with self._guard:
            self._buried = {t: it for t, it in self._buried.items() if it.until > now}
            self._buried[token] = tombstone

    def buried(self, token: str, now: float) -> Tombstone | None:
        """Return why a token is refused, if it is."""
        tombstone = self._buried.get(token)
        return tombstone if tombstone and tombstone.until > now else None
