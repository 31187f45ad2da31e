"""Lifeline: how a worker's child lets its parent know what it holds, and that it has died.

The child's side; that of the parent is :mod:`lockapp.celery.listener`. What it holds stands in
memory that both have (:mod:`lockapp.celery.sheet`). A socket between them carries the descriptor of
that memory and the aliases of the engines it uses, each once, and nothing that comes with a task.

Invariant: this end of the socket is open exactly as long as the process lives: other programs
don't inherit it, and a forked process closes it first of all. So the end of file at the other end
is the kernel's word that this process is gone.

To tell never blocks, fails or delays a run. What could not be told is not known at death, and its
lock ends with its ttl.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from types import TracebackType
from typing import Self

from lockapp.celery.execution import Execution
from lockapp.celery.sheet import Report, Sheet, shared_memory
from lockapp.lease import Lease
from lockapp.lock import Lock

logger = logging.getLogger("lockapp.celery")

# A broken line must not end a process that has made SIGPIPE deadly.
FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class Lifeline:
    """The line of this process. Without a parent it is never connected, and says nothing."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sheet: Sheet | None = None
        self._named: set[str] = set()
        self._warned = False

    @property
    def connected(self) -> bool:
        """Whether there is, or was, somebody to tell."""
        return self._sheet is not None

    def connect(self, address: str) -> None:
        """Connect to the listener at a path, at once or never; before the first task runs."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.setblocking(False)
            line.connect(address)
            memory = shared_memory()
            try:
                sheet = Sheet(memory)
                socket.send_fds(line, [b"\n"], [memory])
            finally:
                os.close(memory)
        except OSError as error:
            line.close()
            self._warn(error)
        else:
            self._socket, self._sheet = line, sheet

    def hold(self, report: Report) -> int | None:
        """Tell of a lease; return what over() wants, or None if it could not be told."""
        if self._sheet is None:
            return None
        if report.engine not in self._named:
            self._named.add(report.engine)
            self._name(report.engine)
        slot = self._sheet.put(report)
        if slot is None:
            self._warn("it holds too many at once, or one with too long a name")
        return slot

    def over(self, slot: int) -> None:
        """Tell that a lease has been given back. In a process forked meanwhile it says nothing."""
        if self._sheet is not None:
            self._sheet.clear(slot)

    def drop(self) -> None:
        """Close a copy of this end, in a process that was forked from here."""
        if self._socket is not None and self._sheet is not None:
            self._socket.close()
            self._sheet.close()
            self._socket = self._sheet = None

    def _name(self, engine: str) -> None:
        """Have the parent get ready to ask an engine: see the listener."""
        assert self._socket is not None
        try:
            self._socket.send(f"{json.dumps(engine)}\n".encode(), FLAGS)
        except OSError as error:  # it has ended, or does not read
            self._warn(error)

    def _warn(self, reason: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "process %d can't tell its worker of every lock it holds; after its death "
                "they are free within their ttl: %s", os.getpid(), reason,
            )  # fmt: skip


LIFELINE = Lifeline()

os.register_at_fork(after_in_child=LIFELINE.drop)


class Telling:
    """What one run tells; a context manager that is left after the release."""

    __slots__ = ("_slot",)

    def __init__(self) -> None:
        self._slot: int | None = None

    def holds(self, lease: Lease, lock: Lock, execution: Execution) -> None:
        """Tell that the lease was granted; before the body starts.

        Of a lock within this process, or of none (``on_unavailable``), there is nothing to tell.
        """
        if not LIFELINE.connected or lease.degraded or not lock.engine.shared_between_processes:
            return
        self._slot = LIFELINE.hold(
            Report(
                engine=lock.engine.alias,
                name=lease.name,
                token=lease.renew_item.token,
                fence=lease.fence,
                ttl_ms=lease.spec.ttl_ms,
                pid=os.getpid(),
                task=execution.task_name,
                task_id=execution.task_id,
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
        if self._slot is not None:
            LIFELINE.over(self._slot)
