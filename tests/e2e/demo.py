"""One running demo: its output in a file, its processes found by a mark in their environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.timing import scaled, wait_until

PROJECT = Path(__file__).parents[2]
MARK = "LOCKAPP_E2E_MARK"
SHOP = "│ Shop"
STAYS = "stays open"
START_LIMIT_S = 120.0
END_LIMIT_S = 60.0


class Demo:
    """`python -m demo_site.run` with the arguments given. Nothing of it outlives the block."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder.resolve()
        self.output = folder / f"{self.mark}.txt"
        # What the suite sets for itself is nothing that a user has.
        foreign = ("DJANGO_SETTINGS_MODULE", "PYTHONDEVMODE", "PYTHONWARNINGS", "DATABASE_URL")
        environment = {key: value for key, value in os.environ.items() if key not in foreign}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo_site.run", "--port", "0", *arguments],
                cwd=PROJECT,
                env={**environment, MARK: self.mark, "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(scaled(END_LIMIT_S))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_text()

    @property
    def url(self) -> str:
        """Where it says the shop is."""
        return self._after("Shop").rstrip("/")

    @property
    def password(self) -> str:
        """The superuser's password it prints."""
        return self._after("Login").removeprefix("admin / ")

    def wait_until_up(self) -> None:
        """Wait until all its processes are ready; the race begins."""
        self._wait_for(SHOP)

    def wait_until_open(self) -> None:
        """Wait until the race is over and the shop stays open."""
        self._wait_for(STAYS)

    def wait_for_exit(self) -> int:
        """Wait until it has ended and return its exit code."""
        return self.process.wait(scaled(START_LIMIT_S))

    def processes(self) -> list[int]:
        """Return the ids of its processes, also of those whose parent is gone. Linux only.

        Valkey writes its title over its environment, but works in the demo's directory.
        """
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "cwd").readlink().is_relative_to(self.folder)
                if inside or wanted in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue  # it ended meanwhile, or is somebody else's
        return found

    def figure(self, group: str, what: str) -> str:
        """Return the actual value of a line of the verdict."""
        section = self.text.partition(f"│ {group}")[2]
        match = re.search(rf"│\s+{re.escape(what)}\s+│\s*(.*?)\s*│\s*(\d+) │", section)
        assert match, f"no figure {group} / {what} in:\n{self.text}"
        return match[2]

    def _wait_for(self, words: str) -> None:
        wait_until(
            lambda: words in self.text or self.process.poll() is not None,
            limit_s=START_LIMIT_S,
            every_s=0.1,
            what=f"the demo to say {words!r}",
        )
        assert words in self.text, self.text

    def _after(self, label: str) -> str:
        match = re.search(rf"│ {label}\s+(.*?)\s*│", self.text)
        assert match, self.text
        return match[1]
