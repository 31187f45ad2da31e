"""Server processes that a test starts: on a free loopback port, and never longer than the tests.

Each keeps its files in a temporary directory, and is killed by the process id that was started
here: by `stop()`, or by a watcher when the test process itself dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.timing import scaled

STOP_LIMIT_S = 5.0


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with its log."""


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago (start again if it was taken)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Watcher:
    """Kills a process, or its group, once this process is gone, however it ended.

    The watcher's `read` ends when this process's end of the pipe is closed. That also covers
    SIGKILL, and unlike PR_SET_PDEATHSIG it is not tied to the starting thread.

    Args:
        pid: The process, or the leader of the group.
        group: Whether all of its group is meant.
        directory: Removed afterwards.
    """

    def __init__(self, pid: int, *, group: bool = False, directory: Path | None = None) -> None:
        # Without "--" before the negative number, which not every shell's kill knows.
        script = 'read -r line; kill -9 "$1"; [ -z "$2" ] || rm -rf "$2"'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", f"{'-' * group}{pid}", str(directory or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C reaches the whole group; the watcher must outlive the test process.
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End it: before the end of what it watches, or it could kill who gets the same id next."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Server(ABC):
    """One server process on 127.0.0.1. Its port stays the same over restarts.

    Use as a context manager, or call start() and stop().
    """

    title: ClassVar[str]
    """What it is called in messages, and part of its directory's name."""
    start_limit_s: ClassVar[float] = 10.0

    def __init__(self) -> None:
        self.port = 0
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @property
    def directory(self) -> Path:
        """The server's own directory: log, socket, data."""
        assert self._directory is not None, "the server was never started"
        return self._directory

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive (a paused one is)."""
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def _command(self) -> list[str]:
        """How the process is started."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether *this* process answers on the port, and has loaded its data."""

    def start(self) -> Self:
        """Start and wait until the server answers.

        Raises:
            ServerFailed: It ended or did not answer within start_limit_s seconds (scaled).
        """
        keep_port = bool(self.port)
        attempts = 1 if keep_port else 5
        for attempt in range(1, attempts + 1):
            if not keep_port:
                self.port = free_port()
            try:
                self.launch()
                self.wait_until_ready()
            except ServerFailed:
                self._end_process(signal.SIGKILL)
                # Another process may have taken the port between the look and the start.
                if attempt == attempts:
                    if not keep_port:
                        self._remove_directory()
                    raise
            else:
                return self
        raise AssertionError("unreachable")

    def launch(self) -> None:
        """Start the process; it may take a while to answer."""
        assert not self.running, "the server is running already"
        if self._directory is None:
            # Directly below /tmp: a unix socket's path may have 107 bytes at most.
            made = tempfile.mkdtemp(prefix=f"lockapp-{self.title.lower()}-", dir="/tmp")
            self._directory = Path(made)
        self.port = self.port or free_port()
        command = self._command()
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._watcher = Watcher(self._process.pid, directory=self.directory)

    def wait_until_ready(self) -> None:
        """Wait until a process that was launched answers.

        Raises:
            ServerFailed: See start().
        """
        end = time.monotonic() + scaled(self.start_limit_s)
        while time.monotonic() < end:
            if not self.running:
                raise ServerFailed(f"{self.title} ended at start:\n{self.log()[-2000:]}")
            if self._answers():
                return
            time.sleep(0.01)
        raise ServerFailed(f"{self.title} did not answer in time:\n{self.log()[-2000:]}")

    def kill(self) -> None:
        """Kill the process as a crash would; start() brings it back on the same port."""
        self._end_process(signal.SIGKILL)

    def stop(self) -> None:
        """Kill the server and remove its directory; quiet when it has stopped already."""
        self.kill()
        self._remove_directory()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Return what the server has logged."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _end_process(self, how: signal.Signals) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.dismiss()
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(scaled(STOP_LIMIT_S))

    def _remove_directory(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
