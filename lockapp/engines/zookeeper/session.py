"""One ZooKeeper session of one process: its client, its nodes, and the thread that keeps both.

Theory of operation
-------------------
Everybody in the process, threads and event loops, shares one session. Nobody but the session's
own thread calls the client: a request is a function put into a queue (an interrupt that strikes
inside the client would leave it broken), and its answer is handed to who waits for it. So all
requests reach the server in the order in which they were made.

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

import heapq
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from kazoo.protocol.states import KazooState

from lockapp.core.options import EngineOptions
from lockapp.core.values import LockSpec
from lockapp.engines.clock import boot_clock, steady_clock_us
from lockapp.engines.process_log import SharedLog
from lockapp.engines.zookeeper.address import Address
from lockapp.engines.zookeeper.client import make_client
from lockapp.engines.zookeeper.errors import translated, unavailable
from lockapp.engines.zookeeper.names import Paths
from lockapp.engines.zookeeper.requests import Batch, Request
from lockapp.engines.zookeeper.tokens import Node, Tokens
from lockapp.engines.zookeeper.watching import Watching
from lockapp.exceptions import EngineUnavailable

logger = logging.getLogger("lockapp")

LINGER_S = 5.0
"""How long a session without nodes and requests waits for more before it is closed."""


class Session(Watching):
    """A session that is there when it is asked for something. Any thread may use any method."""

    def __init__(
        self, address: Address, options: EngineOptions, alias: str, log: SharedLog
    ) -> None:
        super().__init__()
        self.address = address
        self.options = options
        self.alias = alias
        self.log = log
        self.paths = Paths(options.prefix)
        self.clock_us = steady_clock_us()
        self.tokens = Tokens()
        self.parents: set[str] = set()  # locks whose own node was there when last seen
        self.suspended = False
        self.client: Any = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._unsent: deque[tuple[float, Batch]] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._later = 0  # how many deferred calls must be made before the session may close
        self._pending = 0  # requests that have no answer yet
        self._counting = threading.Lock()
        self._down_since: float | None = None
        self._idle_since: float | None = None
        self._hurried = False

    # -------------------------------------------------------------- for any thread

    def now_ms(self) -> int:
        """Return the time in epoch milliseconds, as this process sees it."""
        return self.clock_us() // 1000

    @property
    def id(self) -> int:
        """The id of the present session; 0 while there is none."""
        client = self.client
        found = client.client_id if client is not None else None
        return found[0] if found and found[0] else 0

    def call(self, function: Callable[[], None]) -> None:
        """Have the session's thread call ``function`` soon, in the order of the calls."""
        self._calls.put(function)
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    threading.Thread(
                        target=self._run, name=f"lockapp-zookeeper-{self.alias}", daemon=True
                    ).start()

    def send(self, batch: Batch) -> None:
        """Send requests; their answers come to the batch."""
        self.call(lambda: self._send(batch))

    def rest(self) -> None:
        """Close the session as soon as nothing needs it, without lingering."""
        self._hurried = True
        if self._thread is not None:
            self.call(lambda: None)

    def end_at(self, at: float, path: str) -> None:
        """Delete a node at ``at`` (own clock), whosever it is."""
        self.call(lambda: self._defer(at, lambda: self._delete(path)))

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        with self._guard:
            # A thread enters itself: a signal may interrupt start(), and it may run all the same.
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        while True:
            try:
                call = self._calls.get(timeout=self._pause_s())
            except queue.Empty:
                pass
            else:
                self._guarded(call)
            now = boot_clock()
            while self._due and self._due[0][0] <= now:
                self._guarded(heapq.heappop(self._due)[2])
            while self._unsent and self._unsent[0][0] <= now:
                self._down_since = self._down_since or now
                self._unsent.popleft()[1].fail(unavailable(self.alias, "connect"))
            if self._may_end(now):
                return

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("lock engine %r: a step of the session failed", self.alias)

    def _pause_s(self) -> float:
        now = boot_clock()
        times = [now + LINGER_S]
        if self._due:
            times.append(self._due[0][0])
        if self._unsent:
            times.append(self._unsent[0][0])
        if self._hurried and not (self.tokens.nodes or self._later):
            times.append(now if self._idle else now + 0.02)  # until the last answer is there
        return max(min(times) - now, 0.0)

    @property
    def _idle(self) -> bool:
        return not (self.tokens.nodes or self._later or self._pending or self._unsent)

    def _may_end(self, now: float) -> bool:
        if not self._idle:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        if not self._hurried and now < self._idle_since + LINGER_S:
            return False
        if not self._calls.empty():
            return False
        self._close()
        with self._guard:
            thread, self._thread = self._thread, None
            if not self._calls.empty() and self._thread is None:
                self._thread = thread
                return False
        return True

    def _close(self) -> None:
        client, self.client = self.client, None
        self._hurried = False
        self._idle_since = self._down_since = None
        self._stop_watching()
        self._due.clear()
        if client is not None:
            client.remove_listener(client.lockapp_listener)
            try:
                client.stop()
                client.close()
            except Exception as error:  # noqa: BLE001 - of what is given up anyway
                logger.debug("lock engine %r: closing: %r", self.alias, error)
        self.suspended = False

    def _defer(self, at: float, call: Callable[[], None]) -> None:
        def then() -> None:
            self._later -= 1
            call()

        self._later += 1
        heapq.heappush(self._due, (at, next(self._order), then))

    # -------------------------------------------------------------- the client

    def _send(self, batch: Batch) -> None:
        if batch.dropped:
            return
        if self.client is None:
            self._connect()
        if self.client.connected and self.client.granted_ms and not self._unsent:
            self._hand_over(batch)
            return
        if self._down_since is not None:
            batch.fail(unavailable(self.alias, "open"))
            return
        self._unsent.append((boot_clock() + self.options.connect_timeout_ms / 1000, batch))

    def _hand_over(self, batch: Batch) -> None:
        batch.sent = True
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

    # -------------------------------------------------------------- nodes

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
        heapq.heappush(self._due, (at, next(self._order), lambda: self._end_if_due(node, at)))

    def _end_if_due(self, node: Node, at: float) -> None:
        if node.look_at != at:  # an earlier look has come between
            return
        until = self.tokens.take_if_due(node, boot_clock())
        if until is not None:
            node.look_at = until
            self._look_at(node, until)
        elif node.overdue:
            why = "max_hold" if node.at_max_hold else ""
            self._delete(node.path or "", node, lambda: self.log_end(node, "expired", why=why))

    def _delete(
        self, path: str, node: Node | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        """Delete a node until it is certain that it is gone."""
        if not path:  # its name never arrived: who asked for it undoes it
            return
        parent = path.rpartition("/")[0]

        def done(batch: Batch) -> None:
            if batch.failure is not None and self.client is not None:
                self.call(lambda: self._defer(boot_clock() + 0.2, lambda: self._delete(path, node)))

        gone = Request.delete(path, lambda error: then() if error is None else None)
        self._ask([gone, *([Request.delete(parent)] if parent != self.paths.ended else [])], done)

    def log_end(self, node: Node, kind: str, *, why: str = "", detail: Any = None) -> None:
        """Record that a lease of this process has ended, if it had begun."""
        if node.granted_ms:
            held = {"held_ms": str(max(self.now_ms() - node.granted_ms, 0))}
            self.record(kind, node.spec.name, node.fence, {**held, **(detail or {"why": why})})

    def record(self, kind: str, name: str, fence: int, detail: dict[str, str]) -> None:
        """Record one transition."""
        self.log.add(kind, name, fence, detail, self.options.event_cap)
