"""The demo's child processes: none is left behind, whenever it is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo_site.runner.children import running


class Stopped(BaseException):
    """As that of the demo."""


def test_a_signal_while_a_process_is_started_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the process is there and nobody knows of it yet."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_and_be_stopped(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    def stop(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(subprocess, "Popen", start_and_be_stopped)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        with pytest.raises(Stopped), running("sleeper", command, tmp_path / "log"):
            pytest.fail("it was stopped before")
        (process,) = started
        assert process.returncode is not None
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in started:
            process.kill()
            process.wait()
