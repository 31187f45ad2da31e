"""What a child tells its parent: the lines, and the socket they go through."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockapp.celery import current_lease, single_instance
from lockapp.celery.lifeline import Lifeline
from lockapp.celery.listener import _AT_WORK, Listener
from lockapp.celery.report import Report, Told, held, over
from lockapp.handler import lock, locks
from lockapp.lease import Lease
from tests.celery.conftest import drop_reports
from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until


def _report(number: int = 1) -> Report:
    name, token = f"order:{number}\n", f"token{number}"
    return Report("default", name, token, 17, 30_000, 4711, "pay", None)


def test_what_was_told_and_not_taken_back_is_left() -> None:
    """In the order it was told; a lease that is over, or was never told, counts for nothing."""
    told = Told()
    told.hear(held(_report(1)) + held(_report(2)) + held(_report(3)))
    told.hear(over("token2") + over("token9"))
    assert told.left == [_report(1), _report(3)]


def test_lines_may_come_in_any_pieces() -> None:
    """A stream knows no lines."""
    told = Told()
    for byte in held(_report(1)) + held(_report(2)) + over("token1"):
        told.hear(bytes([byte]))
    assert told.left == [_report(2)]


@pytest.mark.parametrize("missing", [1, 20])
def test_a_last_line_that_is_cut_off_counts_for_nothing(missing: int) -> None:
    """A killed child may have got no further."""
    told = Told()
    told.hear(held(_report(1)) + held(_report(2))[:-missing])
    assert told.left == [_report(1)]
    told = Told()
    told.hear(held(_report(1)) + over("token1")[:-missing])
    assert told.left == [_report(1)]


def test_what_a_lease_is_about_is_read_at_the_end_only() -> None:
    """Of what is told meanwhile, the engine alone is wanted at once, and stays known."""
    told = Told()
    told.hear(held(_report(1)) + over("token1") + b'+token2\t"other"\tno matter what\n')
    assert told.engines == {"default", "other"}
    with pytest.raises(ValueError, match="Expecting value"):
        assert told.left
    told.hear(over("token2"))
    assert told.left == []


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"+token\n", b"+token all at once\n"])
def test_a_line_that_makes_no_sense_is_an_error(line: bytes) -> None:
    """The listener then listens to that child no more."""
    with pytest.raises((TypeError, ValueError)):
        Told().hear(line)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[socket.socket]:
    """A listening socket at tmp_path / "door", which reads nothing by itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(tmp_path / "door"))
        made.listen(1)
        yield made


@pytest.fixture
def lifeline(tmp_path: Path, door: socket.socket) -> Iterator[Lifeline]:
    """One that is connected to the door."""
    made = Lifeline()
    made.connect(str(tmp_path / "door"))
    yield made
    made.drop()


def _told_of(listener: Listener, *leases: Lease, pid: int = 0) -> Lifeline:
    """A line through which these leases were told."""
    made = Lifeline()
    made.connect(listener.address)
    for lease in leases:
        name, token, fence = lease.name, lease.renew_item.token, lease.fence
        made.send(held(Report("default", name, token, fence, 30_000, pid or 4711, "pay", "id")))
    return made


def _read(line: socket.socket) -> tuple[bytes, bool]:
    """Return all there is to read, and whether the other end is open."""
    line.setblocking(False)
    data = b""
    while True:
        try:
            piece = line.recv(65_536)
        except BlockingIOError:
            return data, True
        if not piece:
            return data, False
        data += piece


def test_a_parent_that_does_not_read_delays_nobody_and_is_told_only_whole_lines(
    door: socket.socket, lifeline: Lifeline, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once. The line stays open all the same: its end would mean death."""
    line = held(_report())
    before = time.monotonic()
    with caplog.at_level(logging.WARNING):
        while lifeline.connected:
            lifeline.send(line)
        lifeline.send(line)
    assert time.monotonic() - before < scaled(5)
    assert len(caplog.records) == 1
    parents, _ = door.accept()
    with parents:
        data, alive = _read(parents)
        assert alive
        assert data.count(b"\n") > 100
        told = Told()
        told.hear(data)
        assert told.left == [_report()]
        lifeline.send(line)
        assert _read(parents) == (b"", True)


def test_a_parent_that_is_gone_is_logged_once(
    door: socket.socket, lifeline: Lifeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on."""
    door.accept()[0].close()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            lifeline.send(held(_report()))
    assert len(caplog.records) == 1
    assert "within their ttl" in caplog.text
    assert not lifeline.connected


def test_without_a_listener_there_is_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged; nothing fails."""
    lifeline = Lifeline()
    with caplog.at_level(logging.WARNING):
        lifeline.connect(str(tmp_path / "nobody"))
        lifeline.send(held(_report()))
    assert len(caplog.records) == 1
    assert not lifeline.connected


def test_the_end_of_file_comes_although_a_program_lives_on(
    door: socket.socket, lifeline: Lifeline
) -> None:
    """A program that was started inherits nothing, whatever it was started with."""
    parents, _ = door.accept()
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    with parents, subprocess.Popen(program, close_fds=False) as started:
        try:
            assert _read(parents) == (b"", True)
            lifeline.drop()
            # Popen returns within the exec that closes what is not inherited.
            wait_until(lambda: _read(parents) == (b"", False), what="the end of file")
            assert started.poll() is None
        finally:
            started.kill()


class TestARun:
    """What a decorated function tells, here in this process."""

    @pytest.fixture
    def parents(
        self, door: socket.socket, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[socket.socket]:
        """The other end of this process's line."""
        monkeypatch.setattr("lockapp.celery.lifeline.LIFELINE", lifeline)
        with door.accept()[0] as made:
            yield made

    def test_tells_what_it_holds_before_its_body_and_that_it_is_over_after_the_release(
        self, redis_locks: Any, parents: socket.socket
    ) -> None:
        """Also when the body fails."""
        told = Told()
        fences = []

        @single_instance(key="order:{number}")
        def pay(number: int) -> None:
            told.hear(_read(parents)[0])
            fences.append(current_lease().fence)
            raise KeyError(number)

        with pytest.raises(KeyError):
            pay(7)
        assert [(it.name, it.fence, it.pid) for it in told.left] == [
            ("order:7", fences[0], os.getpid())
        ]
        assert told.left[0].task.endswith(".pay")
        told.hear(_read(parents)[0])
        assert told.left == []

    def test_without_a_lock_of_the_engine_tells_nothing(
        self, settings: Any, parents: socket.socket
    ) -> None:
        """Nobody else could end a lock of this process's memory."""
        settings.LOCKAPP = {
            "default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"},
            "down": {
                "ENGINE": "lockapp.engines.redis.RedisEngine",
                "LOCATION": f"redis://127.0.0.1:{free_port()}",
            },
        }

        @single_instance
        def in_memory() -> int:
            return 1

        @single_instance(using="down", on_unavailable="local")
        def degraded() -> int:
            return 2

        assert (in_memory(), degraded()) == (1, 2)
        assert _read(parents) == (b"", True)
        drop_reports(locks["down"])


@pytest.fixture
def listener() -> Iterator[Listener]:
    """One in this process."""
    made = Listener("worker test")
    yield made
    made.close()


def test_only_this_user_gets_to_the_listener(listener: Listener) -> None:
    """Its directory is closed to everybody else."""
    folder = Path(listener.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()


def test_a_listener_clears_away_what_killed_workers_left(listener: Listener) -> None:
    """Those that are alive keep theirs."""
    left = Path(tempfile.mkdtemp(prefix="lockapp-"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(left / "lifeline"))
        killed.listen()
        Listener("worker before").close()
        assert left.exists()
    Listener("worker after").close()
    assert not left.exists()
    lifeline = Lifeline()
    lifeline.connect(listener.address)
    assert lifeline.connected
    lifeline.drop()


def test_a_listener_ends_at_once_and_leaves_nothing(listener: Listener) -> None:
    """Although a child is connected; it learns it when it tells the next time."""
    lifeline = Lifeline()
    lifeline.connect(listener.address)
    lifeline.send(held(_report()))
    before = time.monotonic()
    listener.close()
    assert time.monotonic() - before < scaled(0.4)
    assert not Path(listener.address).parent.exists()
    assert "lockapp-lifelines" not in {thread.name for thread in threading.enumerate()}
    listener.close()
    lifeline.send(over("token1"))
    assert not lifeline.connected
    lifeline.drop()


def test_a_report_that_makes_no_sense_ends_that_line_only(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is abandoned on such a word, told or left; the others are listened to."""
    one, other, dead = Lifeline(), Lifeline(), Lifeline()
    for lifeline in (one, other, dead):
        lifeline.connect(listener.address)
    dead.send(b'+token\t"default"\tnonsense\n')
    dead.drop()
    wait_until(lambda: "makes no sense" in caplog.text, what="the log")
    caplog.clear()
    one.send(held(_report()))
    one.send(b"nonsense\n")
    wait_until(lambda: "makes no sense" in caplog.text, what="the log")

    def lost() -> bool:
        one.send(over("token1"))
        return not one.connected

    wait_until(lost, what="the end of the line")
    other.send(held(_report()))
    other.send(over("token1"))
    assert other.connected
    for lifeline in (one, other):
        lifeline.drop()
    listener.close()
    assert "died" not in caplog.text


@pytest.mark.keeps_keys  # the tombstone of the token
def test_what_a_child_left_is_abandoned_at_the_end_of_its_line(
    redis_locks: Any, listener: Listener
) -> None:
    """And what it gave back, or another child holds, is not."""
    leases = [lock("order", number).acquire() for number in range(3)]
    one, other = _told_of(listener, *leases[:2]), _told_of(listener, leases[2])
    one.send(over(leases[0].renew_item.token))
    one.drop()
    wait_until(lambda: leases[1].lost, what="the loss")
    assert leases[1].lost_reason == "abandoned"
    assert "worker test" in leases[1].lost_note
    for lease in (leases[0], leases[2]):
        lease.renew()
        lease.release()
    other.drop()


def test_a_child_that_lives_keeps_what_it_holds(
    redis_locks: Any, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Its body has closed descriptors that are not its own. That is no death."""
    lease = lock("order").acquire()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            _told_of(listener, lease, pid=child.pid).drop()
            wait_until(lambda: "closed its line and lives" in caplog.text, what="the log")
        finally:
            child.kill()
    lease.renew()
    lease.release()


@pytest.mark.keeps_keys  # the tombstone of the token
def test_a_child_is_dead_before_anybody_asks_for_its_outcome(
    redis_locks: Any, listener: Listener
) -> None:
    """Its worker's main loop may be busy for long."""
    lease = lock("order").acquire()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        line = _told_of(listener, lease, pid=child.pid)
        child.kill()
        line.drop()
        wait_until(lambda: lease.lost, what="the loss")


@pytest.mark.keeps_keys  # the tombstone of the token
def test_a_death_right_before_the_end_is_dealt_with(redis_locks: Any, listener: Listener) -> None:
    """Before close() returns."""
    lease = lock("order").acquire()
    _told_of(listener, lease).drop()
    listener.close()
    assert locks["default"].show(lease.name) is None


def test_an_engine_that_does_not_answer_delays_neither_a_fork_nor_the_end(
    listener: Listener, fresh_redis: RedisServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock ends with its ttl, and that is logged."""
    settings.LOCKAPP = {
        "default": {"ENGINE": "lockapp.engines.redis.RedisEngine", "LOCATION": fresh_redis.url}
    }
    lease = lock("order", renew=False).acquire()
    line = _told_of(listener, lease)
    wait_until(lambda: "default" in listener._met, what="the listener's first question")
    fresh_redis.pause()
    try:
        line.drop()
        wait_until(lambda: not listener._lines, what="the end of file")
        assert _AT_WORK.acquire(timeout=scaled(0.5))
        _AT_WORK.release()
        before = time.monotonic()
        listener.close()
        assert time.monotonic() - before < 1
        wait_until(lambda: "ends with its ttl" in caplog.text, what="the log")
    finally:
        fresh_redis.resume()
    lease.release()
    locks.close_all()
