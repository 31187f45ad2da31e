"""Lifeline: the socket through which a worker's child tells its parent what it holds.

The child's side; that of the parent is :mod:`lockapp.celery.listener`.

Invariant: this end is open exactly as long as the process lives. It is never closed while there is
something left to run here, also when nothing more can be said through it, and no other process has
it: other programs don't inherit it, and a forked process closes it first of all. So the end of
file at the other end is the kernel's word that this process is gone.

To tell never blocks, fails or delays a run. What could not be told is not known at death, and its
lock ends with its ttl.
"""

from __future__ import annotations

import logging
import os
import socket
from types import TracebackType
from typing import Self

from lockapp.celery.execution import Execution
from lockapp.celery.report import Report, held, over
from lockapp.lease import Lease
from lockapp.lock import Lock

logger = logging.getLogger("lockapp.celery")

# A broken line must not end a process that has made SIGPIPE deadly.
FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
ROOM = 1 << 20
"""Bytes that may wait for a parent that is busy; the kernel gives as many as it allows. What it
gives by itself is less than 300 lines, and a line without room is the last one."""


class Lifeline:
    """The line of this process. Without a parent it is never connected, and says nothing."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._lost = False

    @property
    def connected(self) -> bool:
        """Whether there is somebody to tell."""
        return self._socket is not None and not self._lost

    def connect(self, address: str) -> None:
        """Connect to the listener at a path, at once or never; before the first task runs."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        try:
            line.connect(address)
        except OSError as error:
            line.close()
            _warn(error)
        else:
            self._socket = line

    def send(self, line: bytes) -> None:
        """Send a line whole, or this and all later ones not at all.

        In one call, which the kernel does not mix with that of another thread.
        """
        if self._socket is None or self._lost:
            return
        try:
            if self._socket.send(line, FLAGS) == len(line):
                return
            reason: object = "the parent does not read"
        except OSError as error:
            reason = error
        self._lost = True
        _warn(reason)

    def drop(self) -> None:
        """Close a copy of this end, in a process that was forked from here."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _warn(reason: object) -> None:
    logger.warning(
        "process %d can't tell its worker which locks it holds; after its death they are free "
        "within their ttl: %s", os.getpid(), reason,
    )  # fmt: skip


LIFELINE = Lifeline()

os.register_at_fork(after_in_child=LIFELINE.drop)


class Telling:
    """What one run tells; a context manager that is left after the release."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = ""

    def holds(self, lease: Lease, lock: Lock, execution: Execution) -> None:
        """Tell that the lease was granted; before the body starts.

        Of a lock within this process, or of none (``on_unavailable``), there is nothing to tell.
        """
        if not LIFELINE.connected or lease.degraded or not lock.engine.shared_between_processes:
            return
        self._token = lease.renew_item.token
        LIFELINE.send(
            held(
                Report(
                    engine=lock.engine.alias,
                    name=lease.name,
                    token=self._token,
                    fence=lease.fence,
                    ttl_ms=lease.spec.ttl_ms,
                    pid=os.getpid(),
                    task=execution.task_name,
                    task_id=execution.task_id,
                )
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token:
            LIFELINE.send(over(self._token))
