"""``manage.py lockapp watch``: on a terminal, without one, and without rich; on a real server."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from lockapp.context import holder_details
from lockapp.core.values import Snapshot
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.management import screen
from lockapp.management.subcommands import watching
from lockapp.primitives import Semaphore
from tests.django.children import child_environment
from tests.servers import RedisServer
from tests.timing import scaled

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.django_db


@pytest.fixture
def held(redis_locks: Any) -> Iterator[Lease]:
    """A lock that somebody holds. Its holder's name means something to rich, and to a terminal."""
    with holder_details(task="shop.report", user="[bold]carol[/]\x1b[31m"):
        lease = Lock(redis_locks["default"], "report:nightly", wait=0).acquire()
    yield lease
    lease.release()


def look(*arguments: str) -> str:
    out = io.StringIO()
    call_command("lockapp", "watch", "--once", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_once_prints_what_is_held(held: Lease) -> None:
    """With its holder, for how long it is held, how much is left, and how many wait."""
    title, head, row = look().splitlines()
    assert re.fullmatch(r"default  \d\d:\d\d:\d\d  1 held", title)
    assert head.split("  ")[0] == "HELD FOR"
    for text in ("of 30 s", str(held.fence), "shop.report", "report:nightly"):
        assert text in row
    assert "\x1b" not in row


def test_once_of_nothing_says_so(redis_locks: Any) -> None:
    assert look().endswith("No lock is held.\n")


@pytest.fixture
def many(redis_locks: Any, redis_server: RedisServer) -> Iterator[list[str]]:
    """A thousand locks that are held, written at once."""
    engine = redis_locks["default"]
    lease = Lock(engine, "many:one", wait=0).acquire()
    keys = engine.sync.shards[0]
    (record,) = redis_server.client.hgetall(keys.lock("many:one")).items()
    names = [f"many:{number}" for number in range(1000)]
    with redis_server.client.pipeline() as pipeline:
        pipeline.zadd(keys.held, dict.fromkeys(names, 2**45))
        for name in names:
            pipeline.hset(keys.lock(name), *record)
        pipeline.execute()
    yield names
    redis_server.client.delete(*map(keys.lock, names))
    redis_server.client.zrem(keys.held, *names)
    lease.release()


def test_it_asks_as_often_however_many_are_held(
    many: list[str], redis_locks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For how many there are, for the names on the page, and for what those are."""
    transport = redis_locks["default"].sync.transport
    asked: list[str] = []

    def counting(way: str) -> Any:
        step = getattr(transport, way)

        def counted(*args: Any) -> Any:
            asked.append(way)
            return step(*args)

        return counted

    for way in ("command", "script"):
        monkeypatch.setattr(transport, way, counting(way))
    shown = look()
    assert asked == ["command", "command", "script"]
    assert "1001 held" in shown
    assert shown.count("many:") == 100
    assert "… and more" in shown


def test_once_of_an_engine_that_does_not_answer_exits_with_3(
    settings: Any, fresh_redis: RedisServer
) -> None:
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    fresh_redis.kill()
    with pytest.raises(CommandError) as error:
        look()
    assert error.value.returncode == 3


def test_an_engine_that_does_not_answer_is_shown_as_such(
    settings: Any, fresh_redis: RedisServer
) -> None:
    """The view goes on."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    engine = locks["default"]
    assert "No lock is held" in watching._look(engine, 5).title
    fresh_redis.kill()
    frame = watching._look(engine, 5)
    assert "nothing is known" in frame.title
    assert frame.below


def test_rows_that_do_not_fit_are_told_of(redis_locks: Any) -> None:
    """Also of one lock with many holders."""
    engine = redis_locks["default"]
    leases = [Semaphore(engine, "gpu", 5, wait=0).acquire() for _ in range(4)]
    frame = watching._look(engine, 3)
    assert (len(frame.rows), len(frame.alarms)) == (3, 3)
    assert frame.below
    assert not watching._look(engine, 4).below
    for lease in leases:
        lease.release()


def test_an_index_of_locks_that_have_just_expired_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, redis_locks: Any
) -> None:
    """It may name some until they are reclaimed."""
    monkeypatch.setattr(type(redis_locks["default"]), "snapshot", lambda *args: Snapshot(3, 0, ()))
    assert "No lock is held." in watching._look(redis_locks["default"], 5).title


# ------------------------------------------------------------------ going on


class Child:
    """The command in a process of its own, on a terminal or on a pipe."""

    def __init__(self, terminal: bool, without_rich: bool, settings: Any, tmp_path: Path) -> None:
        (tmp_path / "watch_settings.py").write_text(
            f"from tests.settings import *\nLOCKAPP = {settings.LOCKAPP!r}\n"
        )
        if without_rich:
            (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
        environment = child_environment(
            DJANGO_SETTINGS_MODULE="watch_settings",
            PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
            TERM="xterm",
        )
        # They would count for more than the terminal's own size, and readline, once it is loaded,
        # hands them down to whatever a process starts: to the workers of pytest.
        for size in ("COLUMNS", "LINES"):
            environment.pop(size, None)
        command = [sys.executable, "manage.py", "lockapp", "watch", "--interval", "0.05"]
        if terminal:
            self.end, other = pty.openpty()
            ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
        else:
            self.end, other = os.pipe()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=other, stderr=other,
            stdin=other if terminal else subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self.seen = ""

    def read_until(self, *texts: str, times: int = 1) -> None:
        """Read until all of the texts have come so often."""
        end = time.monotonic() + scaled(30)
        while not all(self.seen.count(text) >= times for text in texts):
            ready, _, _ = select.select([self.end], [], [], max(end - time.monotonic(), 0))
            assert ready, f"never came: {texts}; but {self.seen!r}"
            self.seen += os.read(self.end, 65536).decode()

    def finish(self, number: int) -> int:
        """Send a signal, read the rest; return the exit code."""
        self.process.send_signal(number)
        with contextlib.suppress(OSError):  # how a terminal says that nobody is there
            while data := os.read(self.end, 65536):
                self.seen += data.decode()
        return self.process.wait(scaled(20))


@pytest.fixture
def start(settings: Any, tmp_path: Path, held: Lease) -> Iterator[Any]:
    """Start the command; it is ended with the test."""
    made: list[Child] = []

    def make(*, terminal: bool, without_rich: bool = False) -> Child:
        made.append(Child(terminal, without_rich, settings, tmp_path))
        return made[-1]

    yield make
    for child in made:
        child.process.kill()
        child.process.wait()
        os.close(child.end)


ON, OFF = "\x1b[?1049h", "\x1b[?1049l"
"""Another screen, and back."""


def test_on_a_terminal_it_draws_on_a_screen_of_its_own(start: Any, held: Lease) -> None:
    """And Ctrl-C leaves the terminal as it was, without a traceback."""
    child = start(terminal=True)
    child.read_until(ON, "report:nightly", "[bold]carol[/]", "1 held")
    another = Lock(held.engine, "order:1", wait=0).acquire()
    child.read_until("order:1", "2 held")
    another.release()
    assert child.finish(signal.SIGINT) == 0
    assert OFF in child.seen
    assert "Traceback" not in child.seen
    assert "\x1b[31mcarol" not in child.seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_rich_it_draws_in_place(start: Any, number: int) -> None:
    """With two escape sequences that every terminal knows."""
    child = start(terminal=True, without_rich=True)
    child.read_until(screen._HOME, "report:nightly")
    assert child.finish(number) == 0
    assert ON not in child.seen
    assert "Traceback" not in child.seen


def test_without_a_terminal_it_prints_plain_lines(start: Any) -> None:
    """One frame after the other."""
    child = start(terminal=False)
    child.read_until("1 held", "report:nightly", times=2)
    assert child.finish(signal.SIGINT) == 0
    assert "\x1b" not in child.seen
