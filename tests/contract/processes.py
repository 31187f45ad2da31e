"""Processes for contract tests: actors on Redis, and forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.contract.places import RedisPlace
from tests.timing import scaled

ROOT = Path(__file__).parents[2]


@contextmanager
def actor(
    place: RedisPlace, verb: str, *arguments: str, name: str = "order:1"
) -> Iterator[subprocess.Popen[str]]:
    """Start `tests.contract.actor`; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.actor", place.url, place.prefix, name, verb,
         *arguments],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that an actor says."""
    watcher = threading.Timer(scaled(20), process.kill)
    watcher.start()
    try:
        assert process.stdout is not None
        return process.stdout.readline().rstrip("\n")
    finally:
        watcher.cancel()
        watcher.join()


def freeze(process: subprocess.Popen[Any]) -> None:
    """Stop a process (SIGSTOP) and wait until it stands still, with all its threads.

    Until the thread that gets the signal has been given time, the others go on.
    """
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it has ended"


def in_forked_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked child (JSON), or fail with the child's traceback."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking with threads about; that it works is what is shown here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = {"value": work()}
        except BaseException:  # noqa: BLE001 - told to the parent
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = json.load(pipe)
    os.waitpid(pid, 0)
    assert "error" not in told, told["error"]
    return told["value"]
