"""A TCP proxy whose faults are switched while it runs: the bad network of the fault tests.

It forwards bytes and knows just enough of the Redis protocol to count commands. What goes towards
the server is a *request*, what comes back a *reply*. Faults act on what arrives from then on; bytes
that were already forwarded are gone.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.timing import wait_until

CHUNK = 65536


class CommandCounter:
    """Finds the command names in one connection's requests, whatever way they are cut up.

    Expects what client libraries send: arrays of bulk strings. Anything else ends the counting on
    that connection, since the place where the next command starts is unknown.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._parts_left = 0
        self._is_name = False
        self._lost = False

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the upper-case names of commands that start in them."""
        if self._lost:
            return []
        self._buffer += data
        names = []
        while (line_end := self._buffer.find(b"\r\n")) >= 0:
            kind, number = self._buffer[:1], self._buffer[1:line_end]
            if kind != (b"$" if self._parts_left else b"*") or not number.isdigit():
                self._lost, self._buffer = True, b""
                break
            if kind == b"*":
                self._parts_left, self._is_name = int(number), True
                self._buffer = self._buffer[line_end + 2 :]
                continue
            start, end = line_end + 2, line_end + 2 + int(number)
            if len(self._buffer) < end + 2:
                break
            if self._is_name:
                names.append(self._buffer[start:end].decode("ascii", "replace").upper())
            self._is_name = False
            self._parts_left -= 1
            self._buffer = self._buffer[end + 2 :]
        return names


class Fault(enum.Enum):
    """What happens to bytes that arrive."""

    NONE = "forwarded at once"
    DROP_REQUESTS = "requests are swallowed; the server never sees them"
    DROP_REPLIES = "the server acts, its replies are swallowed"
    BLACK_HOLE = "nothing is forwarded in either direction until heal(), nothing is lost"
    HOLD_REQUESTS = "requests wait until heal(), also when their client has gone by then"
    CUT_ON_REPLY = "the server acts; instead of its reply the client sees the connection break"


class TcpProxy:
    """Listens on a free loopback port and forwards to `127.0.0.1:target_port`.

    Use as a context manager. Every thread it starts has ended when stop() returns.

    Args:
        target_port: The real server's port.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.request_bytes = 0
        self.reply_bytes = 0
        self.connections_made = 0
        self.commands: Counter[str] = Counter()
        """Commands that arrived, by upper-case name, whether or not they were forwarded."""
        self._changed = threading.Condition()
        self._fault = Fault.NONE
        self._once = False
        self._delay_s = {"request": 0.0, "reply": 0.0}
        self._stopping = False
        self._listener: socket.socket | None = None
        self._refusing: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._links: set[_Link] = set()

    @property
    def url(self) -> str:
        """The proxy's address as `redis://127.0.0.1:port/0`."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def stopping(self) -> bool:
        """Whether stop() was called."""
        return self._stopping

    @property
    def open_connections(self) -> int:
        """How many client connections are being forwarded now."""
        with self._changed:
            return len(self._links)

    def start(self) -> Self:
        """Listen and forward."""
        self._listen()
        return self

    def stop(self) -> None:
        """Close everything and wait for the threads; quiet when it was stopped already."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._stop_listening()
        self._give_up_port()
        self.cut()
        wait_until(lambda: self.open_connections == 0, what="the proxy's connections to end")

    # Faults

    def inject(self, fault: Fault, *, once: bool = False) -> None:
        """Switch to `fault`, for all connections; `once` ends it after the first chunk it meets."""
        with self._changed:
            self._fault, self._once = fault, once
            self._changed.notify_all()

    def heal(self) -> None:
        """End all faults and delays, listen again after refuse(); held bytes go on their way."""
        with self._changed:
            self._delay_s = {"request": 0.0, "reply": 0.0}
        self.inject(Fault.NONE)
        if self._listener is None:
            self._listen()

    def delay(self, seconds: float, *, requests: bool = True, replies: bool = False) -> None:
        """Forward each chunk `seconds` late."""
        with self._changed:
            self._delay_s = {
                "request": seconds if requests else 0.0,
                "reply": seconds if replies else 0.0,
            }

    def cut(self) -> None:
        """Reset all present connections (the client sees ECONNRESET); new ones are served."""
        with self._changed:
            links = list(self._links)
        for link in links:
            link.reset()

    def refuse(self) -> None:
        """Refuse new connections and reset the present ones, as a dead host does, until heal()."""
        self._stop_listening()
        self._keep_port()
        self.cut()

    def forget_counts(self) -> None:
        """Set all counters to zero."""
        with self._changed:
            self.request_bytes = self.reply_bytes = self.connections_made = 0
            self.commands.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # For _Link

    def arrived(self, direction: str, data: bytes, names: list[str]) -> Fault:
        """Count a chunk, wait out what must wait, and say what to do with it."""
        with self._changed:
            if direction == "request":
                self.request_bytes += len(data)
                self.commands.update(names)
            else:
                self.reply_bytes += len(data)
            if self._delay_s[direction]:
                self._changed.wait_for(lambda: self._stopping, self._delay_s[direction])
            waiting = {Fault.BLACK_HOLE}
            if direction == "request":
                waiting.add(Fault.HOLD_REQUESTS)
            self._changed.wait_for(lambda: self._stopping or self._fault not in waiting)
            fault = self._fault
            if self._stopping and fault in waiting:
                return fault
            concerned = {
                "request": {Fault.DROP_REQUESTS},
                "reply": {Fault.DROP_REPLIES, Fault.CUT_ON_REPLY},
            }[direction]
            if fault not in concerned:
                return Fault.NONE
            if self._once:
                self._fault, self._once = Fault.NONE, False
            return fault

    def link_ended(self, link: _Link) -> None:
        with self._changed:
            self._links.discard(link)

    # Listening

    def _keep_port(self) -> None:
        """Stay bound without listening: connects are refused, and nobody else gets the port."""
        if self._refusing is None:
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", self.port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # as long as it is held
            self._refusing = held

    def _give_up_port(self) -> None:
        held, self._refusing = self._refusing, None
        if held is not None:
            held.close()

    def _listen(self) -> None:
        self._give_up_port()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener,), name=f"proxy-{self.port}-accept", daemon=True
        )
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                _reset(client)
                continue
            upstream.settimeout(None)
            link = _Link(self, client, upstream)
            with self._changed:
                self.connections_made += 1
                self._links.add(link)
                stopping = self._stopping
            link.start()
            if stopping:
                link.reset()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        acceptor, self._acceptor = self._acceptor, None
        if listener is not None:
            # close() alone leaves a thread blocked in accept(); shutdown() wakes it.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if acceptor is not None:
            acceptor.join()


class _Link:
    """One client connection and its counterpart, with a thread for each direction."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._lock = threading.Lock()
        self._running = 2
        self._under_way = False  # a request was read and may still have to reach the server
        self._broken = False
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for pump in (self._pump_requests, self._pump_replies):
            name = f"proxy-{self._proxy.port}{pump.__name__}"
            threading.Thread(target=self._run, args=(pump,), name=name, daemon=True).start()

    def reset(self) -> None:
        """Break the client's connection; a request that is under way still reaches the server."""
        self._broken = True
        _reset(self._client)
        with self._lock:
            if not self._under_way or self._proxy.stopping:
                _wake(self._upstream, socket.SHUT_RDWR)

    def _run(self, pump: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            pump()
        with self._lock:
            self._running -= 1
            last = not self._running
        if last:
            self._client.close()
            self._upstream.close()
            self._proxy.link_ended(self)

    def _pump_requests(self) -> None:
        counter = CommandCounter()
        try:
            while data := self._client.recv(CHUNK):
                with self._lock:
                    self._under_way = True
                if self._proxy.arrived("request", data, counter.feed(data)) is Fault.NONE:
                    self._upstream.sendall(data)
                with self._lock:
                    self._under_way = False
        finally:
            _wake(self._upstream, socket.SHUT_WR)

    def _pump_replies(self) -> None:
        try:
            while data := self._upstream.recv(CHUNK):
                fault = self._proxy.arrived("reply", data, [])
                if fault is Fault.CUT_ON_REPLY:
                    self.reset()
                elif fault is Fault.NONE:
                    # A client that left must not stop those of its requests that are still held.
                    with contextlib.suppress(OSError):
                        self._client.sendall(data)
        finally:
            # After reset() an orderly end would overtake the reset on its way to the client.
            if not self._broken:
                _wake(self._client, socket.SHUT_RDWR)


def _wake(end: socket.socket, how: int) -> None:
    """Shut down one end, which also wakes a thread that is blocked on it."""
    with contextlib.suppress(OSError):
        end.shutdown(how)


def _reset(end: socket.socket) -> None:
    """Close so that the other side sees "connection reset", not an orderly end."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The reset leaves with the last reference, and a thread blocked in recv() holds one.
        end.shutdown(socket.SHUT_RD)
    end.close()
