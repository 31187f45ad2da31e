"""The processes of the demo: each in a group of its own, with a log file, stopped for certain.

A group of its own, because Ctrl-C in a terminal goes to the whole foreground group: Redis would
stop before the worker that still needs it. Only the runner hears it, and stops the others in an
order that makes sense.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

TETHER = Path(__file__).with_name("tether.py")
PROJECT = Path(__file__).resolve().parents[2]
POLL_S = 0.05
TAIL_LINES = 25


class ChildFailed(Exception):
    """A process of the demo ended by itself or never became ready; carries the end of its log."""

    def __init__(self, child: "Child", what: str) -> None:
        super().__init__(f"{child.name} {what}")
        self.child = child
        self.tail = child.tail()


class Child:
    """One process. Start it with ``running()``."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, pass_fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                start_new_session=True,
                pass_fds=pass_fds,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self.process.pid

    def require_alive(self) -> None:
        """Raise ChildFailed if it has ended, with whatever exit code: none should end by itself."""
        code = self.process.poll()
        if code is not None:
            raise ChildFailed(self, f"ended with exit code {code}")

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end, wait up to ``grace_s`` seconds, then kill what is left of its group."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(grace_s)
        finally:
            # Usually nobody is left in the group; a worker killed by hand may leave its children.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(
    name: str, command: Sequence[str], log: Path, *, pass_fds: Sequence[int] = ()
) -> Iterator[Child]:
    """Start a process for the length of the block."""
    child = None
    try:
        with _held_back(signal.SIGINT, signal.SIGTERM):
            child = Child(name, command, log, pass_fds=pass_fds)
        yield child
    finally:
        if child is not None:
            child.stop()


@contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Have signals wait for the end of the block.

    A handler that raises while a process is being started leaves one that nobody knows of.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda it, _: came.append(it)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def wait_until(condition: Callable[[], bool], child: Child, *, limit_s: float = 60.0) -> None:
    """Wait until ``condition()`` holds, as long as the child that is to bring it about lives.

    Raises:
        ChildFailed: It ended, or ``limit_s`` seconds passed.
    """
    end = time.monotonic() + limit_s
    while not condition():
        child.require_alive()
        if time.monotonic() > end:
            raise ChildFailed(child, f"was not ready after {limit_s:.0f} s")
        time.sleep(POLL_S)
