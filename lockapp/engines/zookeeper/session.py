"""One ZooKeeper session of one process: its client, its nodes, and the thread that keeps both.

Theory of operation
-------------------
Everybody in the process, threads and event loops, shares one session. Nobody but the session's
own thread calls the client: a request is a function put into a queue (an interrupt that strikes
inside the client would leave it broken), and its answer is handed to who waits for it. So all
requests reach the server in the order in which they were made. One exception: when the client's
thread hears that a waiter may be next, it asks for the queue there and then, and the waiter is
woken by the answer. A look more, whenever it is made, does no harm.

The thread also keeps time. The server frees a node when its *session* ends; a lease that runs out
while its process lives is ended here:

====================  ====================================================================
what happens          what becomes of the nodes
====================  ====================================================================
a ttl passes          its node is deleted by this thread
a waiter falls        likewise, after two slices
silent
the connection        SUSPENDED: nobody can vouch for a lease (``lease.check()`` refuses); it
breaks                lives until its own deadline, which is earlier than the session's end
the session expires   LOST: all nodes are gone; every holder is told at once
the process dies      the server deletes them when the session times out
nothing is left       the session is closed after a while, and the thread ends
====================  ====================================================================
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import KazooState

from lockapp.core.options import EngineOptions
from lockapp.engines.clock import boot_clock
from lockapp.engines.process_log import SharedLog
from lockapp.engines.zookeeper.address import Address
from lockapp.engines.zookeeper.client import make_client
from lockapp.engines.zookeeper.errors import translated, unavailable
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.tokens import Node
from lockapp.engines.zookeeper.watching import Watching
from lockapp.exceptions import EngineUnavailable

logger = logging.getLogger("lockapp")


class Session(Watching):
    """A session that is there when it is asked for something. Any thread may use any method."""

    def __init__(
        self, address: Address, options: EngineOptions, alias: str, log: SharedLog
    ) -> None:
        super().__init__(alias, options.prefix)
        self.address = address
        self.options = options
        self.log = log
        self.suspended = False
        self.client: Any = None
        self._unsent: deque[tuple[float, Batch]] = deque()
        self._pending = 0  # requests that have no answer yet
        self._counting = threading.Lock()
        self._down_since: float | None = None

    @property
    def id(self) -> int:
        """The id of the present session; 0 while there is none."""
        client = self.client
        found = client.client_id if client is not None else None
        return found[0] if found and found[0] else 0

    def send(self, batch: Batch) -> None:
        """Send requests; their answers come to the batch."""
        self.call(lambda: self._send(batch))

    def look(self, node: Node, then: Callable[[], object]) -> None:
        """Look at the queue in which ``node`` waits, for it; then call ``then``, also without.

        For a thread of the client's: what it has just heard is acted upon without another thread.
        """

        def seen(batch: Batch) -> None:
            if batch.errors[0] is None:
                node.look = batch.sent_at, batch.values[0]
            then()

        if self._reachable:
            lock = self.paths.lock(node.spec.name)
            self._hand_over(Batch([Request.children(lock)], seen))
        else:
            then()

    # -------------------------------------------------------------- for the thread

    @property
    def _kept(self) -> bool:
        return bool(self.tokens.nodes)

    @property
    def _under_way(self) -> bool:
        return bool(self._pending or self._unsent or self.parents.next() is not None)

    def _next(self) -> float | None:
        times = [self._unsent[0][0]] if self._unsent else []
        if (at := self.parents.next()) is not None:
            times.append(at)
        return min(times, default=None)

    def _look_round(self, now: float) -> None:
        while self._unsent and self._unsent[0][0] <= now:
            self._down_since = self._down_since or now
            self._unsent.popleft()[1].fail(unavailable(self.alias, "connect"))
        self._tidy(now)

    def _close(self) -> None:
        client, self.client = self.client, None
        self._down_since = None
        self._stop_watching()
        if client is not None:
            client.remove_listener(client.lockapp_listener)
            try:
                client.stop()
                client.close()
            except Exception as error:  # noqa: BLE001 - of what is given up anyway
                logger.debug("lock engine %r: closing: %r", self.alias, error)
        self.suspended = False

    # -------------------------------------------------------------- the client

    def _send(self, batch: Batch) -> None:
        if batch.dropped:
            return
        if self.client is None:
            self._connect()
        if self._reachable:
            self._hand_over(batch)
            return
        if self._down_since is not None:
            batch.fail(unavailable(self.alias, "open"))
            return
        self._unsent.append((boot_clock() + self.options.connect_timeout_ms / 1000, batch))

    @property
    def _reachable(self) -> bool:
        """Whether requests are sent at once, and none is waiting for that."""
        client = self.client
        ready = client is not None and client.connected and client.granted_ms
        return bool(ready) and not self._unsent

    def _hand_over(self, batch: Batch) -> None:
        batch.sent, batch.sent_at = True, boot_clock()
        if batch.dropped:
            return
        with self._counting:
            self._pending += len(batch.requests)
        for at, request in enumerate(batch.requests):
            try:
                result = request.make(self.client)
            except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for it
                self._arrived(batch, at, None, error)
            else:
                result.rawlink(lambda done, at=at: self._answered(batch, at, done))

    def _answered(self, batch: Batch, at: int, done: Any) -> None:
        """Take an answer; called by a thread of the client's."""
        try:
            value, error = done.get(block=False), None
        except Exception as raised:  # noqa: BLE001 - handed on
            value, error = None, raised
        self._arrived(batch, at, value, error)

    def _arrived(self, batch: Batch, at: int, value: Any, error: Exception | None) -> None:
        try:
            batch.arrived(at, value, error, self._verdict(error))
        finally:
            with self._counting:
                self._pending -= 1

    def _verdict(self, error: Exception | None) -> Exception | None:
        """Say whether what came is a failure of the engine rather than an answer."""
        if error is None or isinstance(error, EngineUnavailable):
            return error
        found = translated(error, self.alias)
        return found if isinstance(found, EngineUnavailable) else None

    def _connect(self) -> None:
        client = make_client(self.address, self.options, lambda: self.call(self._connected))
        client.lockapp_listener = lambda state: self._changed(client, state)
        client.add_listener(client.lockapp_listener)
        self.client = client
        client.start_async()

    def _changed(self, client: Any, state: str) -> None:
        """Note a change of the session's state; called by the client's own thread."""
        if client is not self.client:
            return
        self.suspended = state == KazooState.SUSPENDED
        if state == KazooState.CONNECTED:
            return  # and soon ready
        client.granted_ms = 0
        self.call(self._disconnected)
        if state == KazooState.LOST:
            for node in self.tokens.lose_all():
                self.log_end(node, "expired", why="session")
                self._notice(node.spec.name)

    def _connected(self) -> None:
        if self.client is None or not self.client.granted_ms:
            return  # that was yesterday
        self._down_since = None
        while self._unsent:
            self._hand_over(self._unsent.popleft()[1])
        if self.listeners:
            self._listen()
            for node in self.tokens.held():  # what was told meanwhile was missed
                self._notice(node.spec.name)

    def _disconnected(self) -> None:
        self._stop_watching()

    def _ask(self, requests: list[Request], then: Callable[[Batch], object]) -> None:
        """Send requests of the session's own."""
        self._send(Batch(requests, then))

    def must_last(self, client: Any) -> None:
        """Do nothing if the server keeps a session for as long as holders believe.

        Raises:
            EngineUnavailable: it does not.
        """
        wanted_ms = self.options.session_timeout_ms
        if client.granted_ms < wanted_ms:
            raise unavailable(
                self.alias, "refused",
                f"the server keeps a silent session for {client.granted_ms / 1000:g} s, and the "
                f"option session_timeout asks for {wanted_ms / 1000:g} s: lower it, or raise "
                "the server's maxSessionTimeout",
            )  # fmt: skip
