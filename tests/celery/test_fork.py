"""A child that is forked while its parent sees to the death of another one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lockapp.celery import listener
from lockapp.celery.lifeline import Lifeline
from lockapp.celery.sheet import Report
from tests.timing import pause, scaled, wait_until


class Slow:
    """Engines whose making takes a while, under a lock such as that of a module's import."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.entered = threading.Event()

    def __getitem__(self, alias: str) -> Any:
        with self.guard:
            self.entered.set()
            pause(0.3)
        raise KeyError(alias)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """In place of the engines."""
    made = Slow()
    monkeypatch.setattr(listener, "locks", made)
    return made


@pytest.fixture
def parent() -> Iterator[listener.Listener]:
    """A listener, as a worker's main process has one."""
    made = listener.Listener("worker test")
    yield made
    made.close()


# What is tested is a fork beside a thread, of which newer interpreters warn.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_what_the_listener_does(parent: listener.Listener, slow: Slow) -> None:
    """Else the new child would have the locks that the thread holds, and nobody to release them."""
    line = Lifeline()
    line.connect(parent.address)
    line.hold(Report("default", "order:1", "token", 17, 30_000, 4711, "pay", None))
    wait_until(lambda: parent._lines, what="the line")
    line.drop()  # the end of file is the same as that of a killed child
    assert slow.entered.wait(scaled(5))
    child = os.fork()
    if child == 0:
        os._exit(0 if slow.guard.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
