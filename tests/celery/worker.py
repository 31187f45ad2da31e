"""Celery's real processes: each its own process group, ended by the id that was started here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.server_process import STOP_LIMIT_S, Watcher
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 20


class CeleryProcess:
    """A process of the suite's application; use as a context manager.

    Args:
        arguments: What follows `celery -A app` on its command line.
        log: The file it writes to.
        environment: Added to this process's environment.
        app: The module of the application.
        ready: What it writes once it is ready; a pattern.
    """

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        environment: dict[str, str],
        *,
        app: str = "tests.celery.app",
        ready: str,
    ) -> None:
        self.environment = environment
        self._command = [sys.executable, "-m", "celery", "-A", app, *arguments]
        self._log = log
        self._ready = re.compile(ready)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @property
    def pid(self) -> int:
        """The process id of its main process."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> Self:
        """Start; return at once. wait_ready() waits."""
        inherited = {
            key: value
            for key, value in os.environ.items()
            if key not in ("DJANGO_SETTINGS_MODULE", "PYTHONDEVMODE")
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**inherited, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watcher = Watcher(self._process.pid, group=True)
        return self

    def wait_ready(self) -> Self:
        """Wait until it does its work."""
        process = self._process
        assert process is not None

        def ready() -> bool:
            assert process.poll() is None, f"it ended at start:\n{self.log()}"
            return self._ready.search(self.log()) is not None

        wait_until(ready, limit_s=START_LIMIT_S, every_s=0.05, what="a process of Celery's")
        return self

    def kill(self) -> None:
        """Kill it and its children as a power cut would."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.dismiss()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(scaled(STOP_LIMIT_S))

    def terminate(self) -> None:
        """Ask it to end once what runs has ended."""
        assert self._process is not None
        self._process.terminate()

    def wait(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Wait until it has ended."""
        assert self._process is not None
        self._process.wait(scaled(limit_s))

    def stop(self) -> None:
        """Let it finish what runs, but not for long."""
        if self._process is not None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(scaled(STOP_LIMIT_S))
        self.kill()

    def __enter__(self) -> Self:
        return self.start().wait_ready()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Worker(CeleryProcess):
    """One worker.

    Args:
        queue: The queue it takes from; also its name, unless that is given.
        log: See CeleryProcess.
        environment: See CeleryProcess.
        name: What it is called.
        children: How many processes (or threads, or greenlets) run tasks.
        pool: Celery's word for what runs them.
        app: See CeleryProcess.
    """

    def __init__(
        self,
        queue: str,
        log: Path,
        environment: dict[str, str],
        *,
        name: str = "",
        children: int = 2,
        pool: str = "prefork",
        app: str = "tests.celery.app",
    ) -> None:
        self.queue = queue
        self.node = f"{environment.get('LOCKAPP_TEST_QUEUES', '')}{name or queue}@localhost"
        arguments = ["worker", "--pool", pool, "--concurrency", str(children)]
        arguments += ["-Q", queue, "-n", self.node, "--loglevel", "INFO"]
        arguments += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        super().__init__(arguments, log, environment, app=app, ready=r"@localhost ready\.")
