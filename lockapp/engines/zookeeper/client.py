"""How kazoo's client is set up here; kazoo does the rest."""

from __future__ import annotations

import logging
import queue
import select
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from lockapp.core.options import EngineOptions
from lockapp.engines.zookeeper.address import Address

logger = logging.getLogger("lockapp.kazoo")

Sockets = list[Any]
Ready = tuple[Sockets, Sockets, Sockets]


class _AtOnce(queue.Queue[Any]):
    """Calls what is put into it, instead of waking a thread that would: it never blocks here."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if not callable(item):  # the word to stop
            super().put(item, block, timeout)
            return
        try:
            item()
        except Exception:
            logger.exception("a callback failed")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Goes on to the next server of an ensemble after the connect timeout.

    kazoo would give each as long as the session may last.
    """

    connect_timeout_s: float

    def __init__(self) -> None:
        super().__init__()
        self.completion_queue = _AtOnce()
        self.callback_queue = _AtOnce()

    def select(self, rlist: Sockets, wlist: Sockets, _: Sockets, timeout: float | None) -> Ready:
        """Wait until something can be read or written.

        kazoo's own makes a selector each time, up to five for a request: half of its work.
        """
        poller = select.poll()
        for socket in rlist:
            poller.register(socket, select.POLLIN)
        for socket in wlist:
            poller.register(socket, select.POLLOUT)
        ready = {number for number, _ in poller.poll(None if timeout is None else timeout * 1000)}
        reads = [socket for socket in rlist if socket.fileno() in ready]
        return reads, [socket for socket in wlist if socket.fileno() in ready], []

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs.get("timeout") or 1e9, self.connect_timeout_s)
        return super().create_connection(*args, **kwargs)


def make_client(address: Address, options: EngineOptions, ready: Callable[[], None]) -> Any:
    """Make a client that is not connected, and calls ``ready`` whenever it is.

    Its ``granted_ms`` is then how long the server keeps a session; 0 while it is not connected.

    With a digest identity, what it makes belongs to that user alone.
    """
    handler = _Handler()
    handler.connect_timeout_s = options.connect_timeout_ms / 1000
    again = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=0.5, max_jitter=0.3)
    client = KazooClient(
        hosts=address.hosts + address.chroot,
        timeout=options.session_timeout_ms / 1000,
        handler=handler,
        connection_retry=again,
        auth_data=[("digest", address.digest)] if address.digest else None,
        default_acl=CREATOR_ALL_ACL if address.digest else OPEN_ACL_UNSAFE,
        logger=logger,
    )
    client.granted_ms = 0
    connection = client._connection
    connect = connection._connect

    def connected(*args: Any) -> Any:
        # The server may grant less than was asked for, which kazoo keeps to itself; it reads for
        # two thirds of that.
        read_ms, connect_ms = connect(*args)
        client.granted_ms = round(read_ms * 1.5)
        ready()
        return read_ms, connect_ms

    connection._connect = connected
    return client
