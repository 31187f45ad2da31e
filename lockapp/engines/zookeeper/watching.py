"""What a session watches: the nodes in front of its waiters, and the notices of operators.

A notice is the name of a lock that somebody did something to. It stands in one node of the prefix,
which every process that holds leases watches; the lease's next renewal tells what it was.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError
from kazoo.protocol.states import EventType

from lockapp.engines.zookeeper.names import Paths, from_data, to_data
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.tokens import Tokens

TOLD_NAMES = 20
"""How many of the last names a notice repeats, for who missed one."""


class Watching(ABC):
    """The watches of a session. Those of a broken connection are gone: who waits asks again."""

    client: Any
    paths: Paths
    tokens: Tokens

    def __init__(self) -> None:
        self.listeners: weakref.WeakSet[Any] = weakref.WeakSet()  # watchdogs to be told
        self._watches: dict[str, set[Callable[[], None]]] = {}
        self._told = -1  # version of the notices that has been seen; -1: not watched

    @abstractmethod
    def call(self, function: Callable[[], None]) -> None:
        """Have the session's thread call ``function`` soon."""

    @abstractmethod
    def _ask(self, requests: list[Request], then: Callable[[Batch], object]) -> None:
        """Send requests of the session's own."""

    def watch(self, paths: Sequence[str], ring: Callable[[], None]) -> None:
        """Have ``ring`` called once, soon after one of these nodes has gone or changed."""
        self.call(lambda: self._watch(paths, ring))

    def unwatch(self, paths: Sequence[str], ring: Callable[[], None]) -> None:
        """Have it called no more."""
        for path in paths:
            self._watches.get(path, set()).discard(ring)

    def _stop_watching(self) -> None:
        self._told = -1
        for path in list(self._watches):
            self._ring(path)

    def _watch(self, paths: Sequence[str], ring: Callable[[], None]) -> None:
        if self.client is None or not self.client.connected:
            ring()
            return
        for path in paths:
            rings = self._watches.get(path)
            if rings is None:
                rings = self._watches[path] = set()
                look = Request.get(path, partial(self._gone, path))
                self._ask([look], partial(self._looked, path))
            rings.add(ring)
            if self._watches.get(path) is not rings:  # it has just gone
                ring()

    def _looked(self, path: str, batch: Batch) -> None:
        if batch.errors[0] is not None:
            self._ring(path)

    def _gone(self, path: str, _: object) -> None:
        self._ring(path)

    def _ring(self, path: str) -> None:
        for ring in list(self._watches.pop(path, ())):
            ring()

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

    def tell(self, name: str) -> None:
        """Tell the holders of ``name``, in every process, that something happened to it."""
        self.call(lambda: self._tell(name))

    def _tell(self, name: str) -> None:
        def write(batch: Batch) -> None:
            if batch.errors[0] is None:
                data, stat = batch.values[0]
                names = [*from_data(data).get("names", []), name][-TOLD_NAMES:]
                told = Request.set(self.paths.notices, to_data({"names": names}), stat.version)
                self._ask([told], again)

        def again(batch: Batch) -> None:
            if isinstance(batch.errors[0], BadVersionError):
                self.tell(name)

        self._ask([Request.get(self.paths.notices)], write)

    def _notice(self, name: str) -> None:
        for watchdog in list(self.listeners):
            watchdog.notice(name)
