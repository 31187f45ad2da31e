"""What a session watches: the nodes in front of its waiters, and the notices of operators.

A notice is the name of a lock that somebody did something to. It stands in one node of the prefix,
which every process that holds leases watches; the lease's next renewal tells what it was.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import NodeExistsError
from kazoo.protocol.states import EventType

from lockapp.engines.zookeeper.keeping import Keeping
from lockapp.engines.zookeeper.names import TOLD_NAMES, from_data
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.tokens import Node

Ring = Callable[[], None]


class Watching(Keeping):
    """The watches of a session. Those of a broken connection are gone: who waits asks again."""

    def __init__(self, alias: str, prefix: str) -> None:
        super().__init__(alias, prefix)
        self.listeners: weakref.WeakSet[Any] = weakref.WeakSet()  # watchdogs to be told
        self._watches: dict[str, dict[Ring, Node]] = {}
        self._told = -1  # version of the notices that has been seen; -1: not watched

    @abstractmethod
    def look(self, node: Node, then: Ring) -> None:
        """Look at the queue in which ``node`` waits, for it; then call ``then``, also without."""

    def watch(self, node: Node, ring: Ring) -> None:
        """Have ``ring`` called soon after one of those has gone or changed that ``node`` waits for.

        Before that, its queue is looked at. The bell may ring more than once, and for nothing.
        """
        self.call(lambda: self._watch(node, node.watched, ring))

    def unwatch(self, paths: Sequence[str], ring: Ring) -> None:
        """Have it called no more."""
        for path in paths:
            self._watches.get(path, {}).pop(ring, None)

    def _stop_watching(self) -> None:
        self._told = -1
        for path in list(self._watches):
            for ring in list(self._watches.pop(path, {})):
                ring()

    def _watch(self, node: Node, paths: Sequence[str], ring: Ring) -> None:
        if self.client is None or not self.client.connected:
            ring()
            return
        for path in paths:
            rings = self._watches.get(path)
            if rings is None:
                rings = self._watches[path] = {}
                look = Request.get(path, partial(self._gone, path))
                self._ask([look], partial(self._looked, path))
            rings[ring] = node
            if self._watches.get(path) is not rings:  # it has just gone
                ring()

    def _looked(self, path: str, batch: Batch) -> None:
        if batch.errors[0] is not None:
            self._gone(path, None)

    def _gone(self, path: str, _: object) -> None:
        for ring, node in list(self._watches.pop(path, {}).items()):
            self.look(node, ring)

    @property
    def listening(self) -> bool:
        """Whether notices of other processes arrive."""
        return self._told >= 0

    def listen(self, watchdog: Any) -> None:
        """Tell ``watchdog`` from now on what operators do to locks."""
        self.listeners.add(watchdog)
        self.call(self._listen)

    def _listen(self) -> None:
        """Look at the notices and watch them, if that is not being done."""
        if self._told == -1 and self.client is not None and self.client.connected:
            self._told = -2
            self._look()

    def _look(self) -> None:
        def changed(event: Any) -> None:
            if event.type != EventType.NONE:  # that is the connection's end
                self.call(self._look)

        self._ask([Request.get(self.paths.notices, changed)], self._heard)

    def _heard(self, batch: Batch) -> None:
        if batch.errors[0] is not None:
            self.call(self._forget_notices)
            return
        data, stat = batch.values[0]
        missed = stat.version - self._told if self._told >= 0 else 0
        self._told = stat.version
        names = from_data(data).get("names", [])
        if missed > TOLD_NAMES:
            names = [node.spec.name for node in self.tokens.held()]
        for name in names[-missed:] if missed else ():
            self._notice(name)

    def _forget_notices(self) -> None:
        self._told = -1
        if self.listeners and self.client is not None and self.client.connected:
            # Nobody has made the place yet.
            made = [Request.create(path) for path in self.paths.lasting]
            self._ask(made, self._made_place)

    def _made_place(self, batch: Batch) -> None:
        if isinstance(batch.errors[-1], NodeExistsError | None):
            self.call(self._listen)

    def _notice(self, name: str) -> None:
        for watchdog in list(self.listeners):
            watchdog.notice(name)
