"""The demo's promise: one command, true figures, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.demo import Demo
from tests.timing import wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
]


def test_once_ends_with_success_and_the_figures_of_the_promise(tmp_path: Path) -> None:
    """Twelve buyers, stock three: oversold without the lock, exactly three with it."""
    with Demo(tmp_path, "--once", "--buyers", "12", "--stock", "3") as demo:
        assert demo.wait_for_exit() == 0, demo.text
        assert "WRONG" not in demo.text
        assert int(demo.figure("POST /orders/unlocked/", "orders (oversold)")) > 3
        assert demo.figure("POST /orders/ (", "orders") == "3"
        assert demo.figure("POST /orders/ (", "stock left") == "0"
        assert demo.figure("POST /orders/ (", "buyers told that it is sold out") == "9"
        assert demo.figure("nightly_report", "bodies that ran") == "1"
        assert demo.figure("nightly_report", "copies that say they were skipped") == "9"
        assert demo.figure("Audit log", "product locks acquired") == "12"
        assert demo.figure("Audit log", "product locks released") == "12"
        assert demo.processes() == []
    assert "Traceback" not in demo.text
    assert not list(tmp_path.glob("lockapp-demo-*")), "the temporary directory is still there"


def test_ctrl_c_stops_every_process(tmp_path: Path) -> None:
    """Both doors answer while it is up; after the signal no process and no file is left."""
    with Demo(tmp_path, "--buyers", "4", "--stock", "1") as demo:
        demo.wait_until_open()
        assert len(demo.processes()) >= 8  # runner, Valkey, 2 web, beat, worker and its 2 children
        with httpx.Client(base_url=demo.url, trust_env=False) as client:
            assert client.get("/").status_code == 200
            order = {"product": 1, "buyer": 1}
            assert client.post("/orders/", json=order).status_code == 201
            assert client.post("/orders/unlocked/", json=order).status_code == 201
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait_for_exit() == 0, demo.text
        assert demo.processes() == []
    assert "Traceback" not in demo.text
    assert not list(tmp_path.glob("lockapp-demo-*"))


def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    """Somebody impatient, or a supervisor, stops it before anything is ready."""
    with Demo(tmp_path) as demo:
        wait_until(lambda: "Starting the web site" in demo.text, limit_s=60, every_s=0.05)
        demo.process.send_signal(signal.SIGTERM)
        assert demo.wait_for_exit() == 130, demo.text
        assert demo.processes() == []
    assert "Traceback" not in demo.text


def test_a_killed_runner_takes_its_processes_along(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to clean up: the kernel tells the children, at work or not."""
    with Demo(tmp_path, "--buyers", "4", "--stock", "1") as demo:
        demo.wait_until_up()
        demo.process.kill()
        demo.process.wait()
        wait_until(lambda: not demo.processes(), limit_s=30, every_s=0.1, what="all have ended")


def test_a_dead_worker_ends_the_demo_and_shows_its_log(tmp_path: Path) -> None:
    """A demo that lost a part must not look as if it ran."""
    with Demo(tmp_path, "--buyers", "4", "--stock", "1") as demo:
        demo.wait_until_open()
        worker = next(pid for pid in demo.processes() if _is_worker(pid, demo.process.pid))
        os.kill(worker, signal.SIGKILL)
        assert demo.wait_for_exit() == 1
        assert "Celery worker ended with exit code -9" in demo.text
        assert demo.processes() == []


def _is_worker(pid: int, parent: int) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    status = Path(f"/proc/{pid}/stat").read_text()
    return b"worker" in arguments and int(status.rpartition(")")[2].split()[1]) == parent
