"""Listener: the thread in a worker's main process that learns of its children's deaths.

Each child keeps a connection to it, through which came the memory where it writes which leases it
holds (:mod:`lockapp.celery.lifeline`). The end of file is the kernel's word that the child is gone:
it comes after the last instruction of its last thread, however the child ended. Then, and for what
stands in the memory of that connection, the listener abandons; it never releases anything for the
living.

A child that has closed its end but lives, since its body closes descriptors that are not its own,
keeps its locks; only the end of the process makes the end of file true.

Its socket lies in a directory that only this user can enter. Stopping ends the thread, closes
every socket and removes the directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from lockapp.celery.sheet import Report, read
from lockapp.core.backoff import pause_s
from lockapp.core.flight import ABORTED
from lockapp.core.run import run_sync
from lockapp.core.values import ForceOutcome
from lockapp.engines.clock import boot_clock
from lockapp.exceptions import EngineUnavailable
from lockapp.handler import locks

logger = logging.getLogger("lockapp.celery")

PREFIX, NAME = "lockapp-", "lifeline"
BACKLOG = 1024
CHUNK = 4096
CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
LOOK_S = 0.01
"""How long between two looks whether a child has ended, in seconds."""
DYING_S = 1.0
"""How long a child may take to end after its end of file; it is far less."""
CLOSE_LIMIT_S = 0.5
"""How long the end of a worker may be delayed by deaths not dealt with yet."""


_AT_WORK = threading.Lock()
"""Held while the thread does what it has not done before. A fork waits for it: the new child would
have, for ever, the locks that the thread holds at that moment, as that of a module it imports. So
it is held for the first question to an engine as well, which has things made and imported: a fork
waits for one timeout then, once, if that engine does not answer. Not held while it abandons: the
main process has children to make, and all others to serve.
"""

os.register_at_fork(
    before=_AT_WORK.acquire, after_in_parent=_AT_WORK.release, after_in_child=_AT_WORK.release
)


@dataclass(slots=True)
class Child:
    """What came through a child's line."""

    memory: int | None = None
    """The descriptor of its sheet, which comes first."""
    rest: bytes = b""
    """The beginning of what is no whole line yet."""

    def close(self) -> None:
        """Close the descriptor."""
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None


@dataclass(slots=True)
class Left:
    """A lease that a dead child left behind."""

    report: Report
    since: float
    """When the end of file came, on the boot clock."""
    due: float
    failures: int = 0

    @property
    def until(self) -> float:
        """When its ttl is over at the latest."""
        return self.since + self.report.ttl_ms / 1000


class Listener:
    """Starts listening when it is made."""

    def __init__(self, actor: str) -> None:
        """Bind the socket and start the thread.

        Args:
            actor: who it is that abandons, for the audit log.

        Raises:
            OSError: no directory or socket could be made.
        """
        self._actor = actor
        self._lines: dict[socket.socket, Child] = {}
        self._left: list[Left] = []
        self._met: set[str] = set()
        self._closing = False
        _clear_away()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        self.address = str(self._folder / NAME)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bell, self._rope = socket.socketpair()
        unheard = self._folder / "new"
        try:
            self._door.bind(str(unheard))
        except OSError:
            self._shut()
            raise
        self._door.listen(BACKLOG)
        unheard.rename(self.address)  # so that under its name a socket answers, or is an orphan
        # poll() has no descriptor of its own that a fork would share.
        self._selector = selectors.PollSelector()
        for ours in (self._door, self._bell):
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="lockapp-lifelines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End. Deaths until now are dealt with first, if that takes less than CLOSE_LIMIT_S.

        A second call does nothing.
        """
        self._closing = True
        with contextlib.suppress(OSError):  # the thread has ended and closed it
            self._rope.send(b"!")
        self._thread.join(CLOSE_LIMIT_S)

    def drop(self) -> None:
        """Close the copies of the sockets in a forked process; the directory is the parent's."""
        for copy in (self._door, self._bell, self._rope, *self._lines):
            copy.close()
        for child in self._lines.values():
            child.close()

    def _shut(self) -> None:
        self.drop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._attend(self._pause_s())
            end = boot_clock() + CLOSE_LIMIT_S
            while (self._attend(LOOK_S) or self._left) and boot_clock() < end:
                pass
        except Exception:
            logger.exception("locks of children that die are free only within their ttl from now")
        finally:
            self._shut()

    def _pause_s(self) -> float | None:
        if not self._left:
            return None
        return max(min(left.due for left in self._left) - boot_clock(), 0.0)

    def _attend(self, timeout_s: float | None) -> bool:
        """See to what comes within the time, and to what is due; return whether something came."""
        ready = self._selector.select(timeout_s)
        with _AT_WORK:
            for key, _ in ready:
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source is self._door:
                    self._let_in()
                elif source is self._bell:
                    self._bell.recv(CHUNK)
                else:
                    self._hear(source)
        self._settle()
        return bool(ready)

    def _let_in(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            line, _ = self._door.accept()
            line.setblocking(False)
            self._lines[line] = Child()
            self._selector.register(line, selectors.EVENT_READ)

    def _hear(self, line: socket.socket) -> None:
        child = self._lines[line]
        try:
            if self._goes_on(line, child):
                return
            left = [] if child.memory is None else read(child.memory)
        except (TypeError, ValueError):
            logger.exception("a child's report makes no sense; it is not listened to any more")
            left = []
        self._selector.unregister(line)
        del self._lines[line]
        line.close()
        child.close()
        now = boot_clock()
        self._left += [Left(report, now, now) for report in left]

    def _goes_on(self, line: socket.socket, child: Child) -> bool:
        """Take in what a child sent; return whether it may send more."""
        try:
            data, memory, _, _ = socket.recv_fds(line, CHUNK, 1, CLOSED_ON_EXEC)
        except BlockingIOError:
            return True
        except ConnectionError:  # another way to say that nobody is there
            return False
        for descriptor in memory:
            child.close()
            child.memory = descriptor
        *names, child.rest = (child.rest + data).split(b"\n")
        self._meet({json.loads(name) for name in names if name})
        return bool(data)

    def _meet(self, engines: set[str]) -> None:
        """Ask each engine once for nothing: what has to be made and imported for it then is."""
        for alias in engines - self._met:
            self._met.add(alias)
            try:
                with contextlib.closing(locks[alias]) as engine:
                    engine.ping()
            except EngineUnavailable as down:
                logger.debug("nothing else is expected of it than to be made: %s", down)

    def _settle(self) -> None:
        """Abandon what is due."""
        now = boot_clock()
        waiting, self._left = self._left, []
        for left in waiting:
            early = left.due > now and not self._closing
            if early or not self._abandon(left):
                self._left.append(left)

    def _abandon(self, left: Left) -> bool:
        """Abandon one lease; return whether there is nothing more to be done about it."""
        report = left.report
        about = {"lockapp_name": report.name, "lockapp_task_id": report.task_id}
        if _lives(report.pid):
            left.due = boot_clock() + LOOK_S
            if left.due < left.since + DYING_S:
                return False
            logger.error(
                "%s has closed its line and lives; its lock %s ends with its ttl at the latest",
                report, report.name, extra=about,
            )  # fmt: skip
            return True
        try:
            with contextlib.closing(locks[report.engine]) as engine:
                outcome = engine.abandon(
                    report.name, report.token, actor=self._actor, reason=f"died: {report}"
                )
                if engine.supports_flights:
                    # Who waits for its result finds the lock free, as after a run that failed.
                    keep_ms = engine.options.seen_ms
                    run_sync(engine.sync.land(report.name, "", report.fence, ABORTED, keep_ms))
        except EngineUnavailable as down:
            now = boot_clock()
            left.failures += 1
            pause = pause_s(down.reason, left.failures, answered=True, left_s=left.until - now)
            if pause is not None and not self._closing:
                left.due = now + pause
                return False
            logger.error(
                "%s died; its lock %s, which could not be abandoned, ends with its ttl: %s",
                report, report.name, down, extra=about,
            )  # fmt: skip
        except Exception:
            logger.exception(
                "%s died; its lock %s ends with its ttl", report, report.name, extra=about
            )
        else:
            if outcome is ForceOutcome.RELEASED:
                logger.warning(
                    "%s died; its lock %s was abandoned", report, report.name, extra=about
                )
        return True


def _clear_away() -> None:
    """Remove the directories that killed workers of this user left behind: nobody answers there."""
    for address in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{NAME}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.setblocking(False)
            try:
                line.connect(str(address))
            except ConnectionRefusedError:
                shutil.rmtree(address.parent, ignore_errors=True)
            except OSError:
                continue  # too busy to answer, or another user's


def _lives(child: int) -> bool:
    """Whether a process is a child of this one that has not ended. Its outcome is left to others.

    Where nobody can ask so, the end of file is all there is to know.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
