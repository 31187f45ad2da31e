"""The four kinds of processes that make the site, started together and waited for one by one."""

import errno
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from demo_site.celery import app
from demo_site.runner.children import Child, running, wait_until

HOST = "127.0.0.1"
WEB_PROCESSES = 2
WORKER_CHILDREN = 2


@dataclass
class Site:
    """The running site; its processes end with the ``stack``, the last one started first."""

    stack: ExitStack
    logs: Path
    port: int = 0
    children: list[Child] = field(default_factory=list)
    _ready: list[Callable[[], None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where the shop is, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    def start_worker(self) -> None:
        """Start a Celery worker with two prefork children."""
        command = ["worker", "--concurrency", str(WORKER_CHILDREN), "--pool", "prefork"]
        command += ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
        child = self._start("Celery worker", self._celery(*command), "worker.log")
        self._ready.append(partial(wait_until, _worker_answers, child))

    def start_beat(self) -> None:
        """Start beat. It shows that it lives by what it sends: the audit log fills up."""
        schedule = str(self.logs / "beat-schedule")
        command = ["beat", "--schedule", schedule, "--pidfile=", "--loglevel", "INFO"]
        self._start("Celery beat", self._celery(*command), "beat.log")

    def start_web(self, port: int, threads: int) -> None:
        """Start the web processes on ``port``, or on a free one if that is taken."""
        listener = self.stack.enter_context(_listen(port))
        self.port = listener.getsockname()[1]
        for number in range(1, WEB_PROCESSES + 1):
            ready, write = os.pipe()
            command = [sys.executable, "-m", "demo_site.runner.web"]
            command += [str(listener.fileno()), str(write), str(threads)]
            child = self._start(
                f"Web process {number}",
                command,
                f"web-{number}.log",
                pass_fds=(listener.fileno(), write),
            )
            os.close(write)
            self._ready.append(partial(_wait_for_byte, ready, child))

    def wait_until_ready(self) -> None:
        """Wait for each process.

        Raises:
            ChildFailed: One ended, or took a minute.
        """
        while self._ready:
            self._ready.pop(0)()

    def require_alive(self) -> None:
        """Raise ChildFailed if a process has ended by itself."""
        for child in self.children:
            child.require_alive()

    def _start(
        self, name: str, command: list[str], log: str, pass_fds: tuple[int, ...] = ()
    ) -> Child:
        child = self.stack.enter_context(running(name, command, self.logs / log, pass_fds=pass_fds))
        self.children.append(child)
        return child

    @staticmethod
    def _celery(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "--app", "demo_site", *arguments]


def _listen(port: int) -> socket.socket:
    for candidate in (port, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, candidate))
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or candidate == 0:
                raise
        else:
            listener.listen(256)
            return listener
    raise AssertionError("port 0 is always free")


def _worker_answers() -> bool:
    return bool(app.control.ping(timeout=0.5))


def _wait_for_byte(fd: int, child: Child) -> None:
    try:
        wait_until(lambda: bool(select.select([fd], [], [], 0)[0]), child)
        if not os.read(fd, 1):  # end of file: it ended without a word
            child.process.wait()
            child.require_alive()
    finally:
        os.close(fd)
