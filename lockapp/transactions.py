"""Leases that are given back inside an open database transaction, and released when it has ended.

A lock that is released before the COMMIT lets the next holder read the old rows::

    t=0   A  BEGIN, takes the lock, sees no order, inserts one
    t=1   A  releases the lock                  B  takes it, sees no order, inserts one
    t=2   A  COMMIT                             B  COMMIT       two orders

Theory of operation
-------------------
* What counts is what is open where and when a lease is given back: on every connection of this
  thread, a block of ``atomic()``; without autocommit, whatever was begun since the last COMMIT.
  With several, the last end counts.
* The end is seen on the connection itself, by standing before the methods that bring it about:
  whatever calls them, each of Django's ways out leads there. ``on_commit()`` would not do: its
  callbacks are dropped by a rollback, also by that of a savepoint, and one that raises stops those
  behind it. The lease is released before the first of them runs.
* A COMMIT that fails is no end: the ROLLBACK, or the close, that Django lets follow is.
* The blocks that Django's TestCase opens round a test never end in it, and count for nothing.
  Inside them the end of the test's own outermost block is the end.

It does not see a COMMIT that goes past Django, as SQL of the application's own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from asgiref.local import Local
from django.db import connections

from lockapp.core.run import run_sync
from lockapp.lease import Lease
from lockapp.naming import readable
from lockapp.ways import settle

WATCH = "_lockapp_watch"
"""The attribute under which a connection has its watch."""
FROZEN = {"postgresql": ("REPEATABLE_READ", "SERIALIZABLE"), "mysql": ("REPEATABLE_READ", "NONE")}
"""Isolation levels whose snapshot lasts: on MySQL also the server's own, by default; but not its
SERIALIZABLE, which reads what is there and locks it."""
IN_TRANSACTION = 1
"""The bit of MySQL's server status."""


class DjangoTransactions:
    """What an engine asks about Django's transactions of this thread."""

    def vet(self, name: str) -> None:
        """Warn (RuntimeWarning) if one goes on reading what was there before a lock taken now."""
        for connection in _open_connections():
            if _has_old_snapshot(connection):
                warnings.warn(
                    f"{readable(name)!r}: the transaction on {connection.alias!r} has read before "
                    "this lock is taken. At its isolation level it goes on reading what was there "
                    "then, and does not see what an earlier holder has committed since. Take the "
                    "lock before the transaction",
                    RuntimeWarning,
                    stacklevel=_depth_of_caller(),
                )

    def put_off(self, lease: Lease) -> bool:
        """Have ``lease`` released when those that are open have ended; whether any is."""
        found = _open_connections()
        for connection in found:
            _watch_of(connection).keep(lease)
        return bool(found)


django_transactions = DjangoTransactions()


class Watch:
    """Sees the end of one connection's transactions; keeps the leases that wait for it.

    Stays with its connection for good: what stands before a method can't be taken away safely.
    """

    def __init__(self, connection: Any) -> None:
        self._leases: dict[Lease, None] = {}
        for name in ("_commit", "_rollback"):
            setattr(connection, name, self._ending(getattr(connection, name)))
        connection._close = self._closing(connection._close)
        connection._set_autocommit = self._switching(connection._set_autocommit)

    def keep(self, lease: Lease) -> None:
        """Keep ``lease`` until the transaction has ended."""
        if lease not in self._leases:
            self._leases[lease] = None
            lease.pins += 1

    def end(self) -> None:
        """Release what waits for nothing else. Trouble is logged; an interruption is raised."""
        leases, self._leases = list(self._leases), {}
        for lease in leases:
            lease.pins -= 1
        try:
            while leases:
                lease = leases.pop()
                if lease.put_off and not lease.pins:
                    _release(lease)
        finally:
            for lease in leases:  # interrupted: the watchdog does it
                if lease.put_off:
                    lease.let_go(lease.engine.sync)

    def _ending(self, method: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(method)
        def watched() -> Any:
            result = method()
            self.end()
            return result

        return watched

    def _closing(self, method: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(method)
        def watched() -> Any:
            try:
                return method()
            finally:  # whatever it says, nothing is committed over it any more
                self.end()

        return watched

    def _switching(self, method: Callable[[bool], Any]) -> Callable[[bool], Any]:
        @wraps(method)
        def watched(autocommit: bool) -> Any:
            result = method(autocommit)
            if autocommit:  # MySQL and SQLite commit what is open, PostgreSQL refuses
                self.end()
            return result

        return watched


class _Blocks(list[Any]):
    """The open blocks of a connection inside Django's TestCase."""

    def __init__(self, blocks: Iterable[Any], watch: Watch) -> None:
        super().__init__(blocks)
        self._watch = watch

    def pop(self, *at: Any) -> Any:
        block = super().pop(*at)
        if all(map(_of_testcase, self)):
            self._watch.end()
        return block


def _watch_of(connection: Any) -> Watch:
    watch = vars(connection).get(WATCH)
    if watch is None:
        watch = Watch(connection)
        setattr(connection, WATCH, watch)
    blocks = connection.atomic_blocks
    if blocks and _of_testcase(blocks[0]) and type(blocks) is not _Blocks:
        connection.atomic_blocks = _Blocks(blocks, watch)
    assert isinstance(watch, Watch)
    return watch


def _release(lease: Lease) -> None:
    port, lease.put_off = lease.engine.sync, False
    try:
        run_sync(lease.give_back(port, at_once=True))
    except BaseException as trouble:
        if not settle(trouble, lease, port, lease.name):
            raise


def _of_testcase(block: Any) -> bool:
    return getattr(block, "_from_testcase", False)


def _is_open(connection: Any) -> bool:
    """Whether, without autocommit, something is open that this program will end."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    blocks = connection.atomic_blocks
    return not all(map(_of_testcase, blocks)) if blocks else _has_begun(connection)


def _open_connections() -> list[Any]:
    """Return the connections of this thread, or of this coroutine, where a transaction is open.

    Django's own list of them costs microseconds, which is too much on the way of every lock. In a
    thread without event loop they are attributes of a ``threading.local``; where that is not so,
    Django is asked.
    """
    found: Iterable[Any]
    if STORAGE is not None and asyncio._get_running_loop() is None:
        found = vars(STORAGE).values()
    else:
        found = connections.all(initialized_only=True)
    return [one for one in found if not getattr(one, "autocommit", True) and _is_open(one)]


def _storage() -> threading.local | None:
    """Return where Django keeps the connections of each thread, if they lie there openly."""
    probe: Any = Local(thread_critical=True)
    probe.there = found = object()
    storage = getattr(probe, "_storage", None)
    if isinstance(storage, threading.local) and vars(storage).get("there") is found:
        return connections._connections._storage  # type: ignore[attr-defined,no-any-return]
    return None


STORAGE = _storage()


def _has_old_snapshot(connection: Any) -> bool:
    """Whether what the open transaction reads was settled before now. Makes no query."""
    blocks = connection.atomic_blocks
    level = getattr(connection, "isolation_level", None)
    word = str(getattr(level, "name", level)).upper().replace(" ", "_")
    if word not in FROZEN.get(connection.vendor, ()) or (blocks and _of_testcase(blocks[0])):
        return False
    return _has_begun(connection)


def _has_begun(connection: Any) -> bool:
    """Whether a statement was sent since the last end, as the driver has it; True if it can't say.

    PyMySQL keeps no status of what a SELECT answered, so the server is pinged. MySQLdb tells none.
    """
    driver = connection.connection
    if connection.vendor == "postgresql":
        return bool(driver.info.transaction_status)  # 0: idle
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    if not hasattr(driver, "server_status"):
        return True
    try:
        driver.ping(reconnect=False)
    except driver.Error:  # nothing is read or written over it any more
        return False
    return bool(driver.server_status & IN_TRANSACTION)


def _depth_of_caller() -> int:
    """How many frames above its caller the first one is that is not lockapp's."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("lockapp."):
        frame, depth = frame.f_back, depth + 1
    return depth
