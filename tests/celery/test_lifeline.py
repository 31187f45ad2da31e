"""What a child tells its parent: the sheet, and the socket through which it comes."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockapp.celery import current_lease, single_instance
from lockapp.celery.lifeline import Lifeline
from lockapp.celery.listener import _AT_WORK, Listener
from lockapp.celery.sheet import SIZE, SLOT_BYTES, SLOTS, Report, Sheet, read, shared_memory
from lockapp.handler import lock, locks
from lockapp.lease import Lease
from tests.celery.conftest import drop_reports
from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until


def _report(number: int = 1, name: str = "order:{}\n") -> Report:
    token = f"token{number}"
    return Report("default", name.format(number), token, 17, 30_000, 4711, "pay", None)


@pytest.fixture
def memory() -> Iterator[int]:
    """The descriptor that both sides have."""
    made = shared_memory()
    yield made
    os.close(made)


@pytest.fixture
def sheet(memory: int) -> Iterator[Sheet]:
    """What a child writes into it."""
    made = Sheet(memory)
    yield made
    made.close()


def test_what_was_told_and_not_taken_back_is_left(sheet: Sheet, memory: int) -> None:
    """In no order; a lease that is over, or was never told, counts for nothing."""
    slots = [sheet.put(_report(number)) for number in (1, 2, 3)]
    assert slots[1] is not None
    sheet.clear(slots[1])
    assert sorted(read(memory)) == [_report(1), _report(3)]
    sheet.put(_report(4))  # in the place of the second, whose line was longer or not
    assert sorted(read(memory)) == [_report(1), _report(3), _report(4)]


def test_a_line_counts_once_it_is_whole(sheet: Sheet, memory: int) -> None:
    """A child that is killed while it writes has got no further; what others wrote counts."""
    sheet.put(_report(1))
    slot = sheet.put(_report(2))
    assert slot is not None
    sheet.clear(slot)  # as before its last byte was written, and after the first was cleared
    assert b"token2" in os.pread(memory, SIZE, 0)
    assert read(memory) == [_report(1)]


def test_what_finds_no_room_is_not_told(sheet: Sheet, memory: int) -> None:
    """Neither too many nor too long a line; there is room again once something is over."""
    assert sheet.put(_report(0, "n" * SLOT_BYTES)) is None
    longest = _report(0, "n" * (SLOT_BYTES - len(str(_report(0))) - 200))
    slots = [sheet.put(longest) for _ in range(SLOTS)]
    assert None not in slots
    assert sheet.put(_report(1)) is None
    sheet.clear(slots[0] or 0)
    assert sheet.put(_report(1)) is not None
    assert sorted(read(memory)) == sorted([longest] * (SLOTS - 1) + [_report(1)])


def test_threads_don_t_disturb_each_other(sheet: Sheet, memory: int) -> None:
    """Each has a slot of its own; none is lost."""

    def work(number: int) -> None:
        for _ in range(500):
            slot = sheet.put(_report(number))
            assert slot is not None
            assert _report(number) in read(memory)
            sheet.clear(slot)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert read(memory) == []
    assert None not in [sheet.put(_report(number)) for number in range(SLOTS)]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b"[1, 2]"])
def test_a_sheet_that_makes_no_sense_is_an_error(memory: int, line: bytes) -> None:
    """The listener then abandons nothing on its word."""
    os.pwrite(memory, b"\x01" + line + b"\n", 0)
    with pytest.raises((TypeError, ValueError)):
        read(memory)


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


def _report_of(lease: Lease, pid: int = 4711) -> Report:
    token = lease.renew_item.token
    return Report("default", lease.name, token, lease.fence, 30_000, pid, "pay", "id")


@pytest.fixture
def told_of(listener: Listener) -> Iterator[Callable[..., Lifeline]]:
    """Makes a line through which a lease was told."""
    lines = []

    def make(lease: Lease, pid: int = 4711) -> Lifeline:
        made = Lifeline()
        made.connect(listener.address)
        made.hold(_report_of(lease, pid))
        lines.append(made)
        return made

    yield make
    for line in lines:
        line.drop()


def _acquired(*name: object) -> Lease:
    """A lease whose loss is known soon, also if the notice of it came before anybody listened."""
    return lock(*name, ttl=scaled(6)).acquire()


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


def _sheet_of(parents: socket.socket) -> int:
    """Receive the child's memory, as the listener does."""
    data, memory, _, _ = socket.recv_fds(parents, 100, 1)
    assert data == b"\n"
    return memory[0]


def test_to_tell_sends_nothing_but_the_engine_once(
    door: socket.socket, lifeline: Lifeline, caplog: pytest.LogCaptureFixture
) -> None:
    """However many leases; so a parent that does not read delays nobody and misses nothing."""
    parents, _ = door.accept()
    with parents:
        memory = _sheet_of(parents)
        for number in range(100):
            slot = lifeline.hold(_report(number))
            assert slot is not None
            lifeline.over(slot)
        lifeline.hold(_report(7))
        assert read(memory) == [_report(7)]
        assert _read(parents) == (b'"default"\n', True)
        os.close(memory)
    assert not caplog.records


def test_what_finds_no_room_is_logged_once(
    lifeline: Lifeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on."""
    for number in range(SLOTS + 2):
        told = lifeline.hold(_report(number))
        assert (told is None) == (number >= SLOTS)
    assert len(caplog.records) == 1
    assert "within their ttl" in caplog.text


def test_a_parent_that_is_gone_is_logged_once(
    door: socket.socket, lifeline: Lifeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on."""
    door.accept()[0].close()
    for number in range(3):
        assert lifeline.hold(_report(number)) is not None
    assert len(caplog.records) == 1
    assert "within their ttl" in caplog.text


def test_a_forked_process_neither_tells_nor_takes_back(
    door: socket.socket, lifeline: Lifeline
) -> None:
    """It may leave a block that its parent has entered; the lease is its parent's."""
    parents, _ = door.accept()
    with parents:
        memory = _sheet_of(parents)
        slot = lifeline.hold(_report(1))
        assert slot is not None
        lifeline.drop()  # as after a fork
        lifeline.over(slot)
        assert lifeline.hold(_report(2)) is None
        assert read(memory) == [_report(1)]
        os.close(memory)


def test_without_a_listener_there_is_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged; nothing fails."""
    lifeline = Lifeline()
    with caplog.at_level(logging.WARNING):
        lifeline.connect(str(tmp_path / "nobody"))
        assert lifeline.hold(_report()) is None
    assert len(caplog.records) == 1
    assert not lifeline.connected


def test_the_end_of_file_comes_although_a_program_lives_on(
    door: socket.socket, lifeline: Lifeline
) -> None:
    """A program that was started inherits nothing, whatever it was started with."""
    parents, _ = door.accept()
    os.close(_sheet_of(parents))
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

    @pytest.fixture
    def memory(self, parents: socket.socket) -> Iterator[int]:
        """What came through it."""
        made = _sheet_of(parents)
        yield made
        os.close(made)

    def test_tells_what_it_holds_before_its_body_and_that_it_is_over_after_the_release(
        self, redis_locks: Any, memory: int
    ) -> None:
        """Also when the body fails."""
        told: list[Report] = []
        fences = []

        @single_instance(key="order:{number}")
        def pay(number: int) -> None:
            told.extend(read(memory))
            fences.append(current_lease().fence)
            raise KeyError(number)

        with pytest.raises(KeyError):
            pay(7)
        assert [(it.name, it.fence, it.pid) for it in told] == [("order:7", fences[0], os.getpid())]
        assert told[0].task.endswith(".pay")
        assert read(memory) == []

    def test_without_a_lock_of_the_engine_tells_nothing(
        self, settings: Any, parents: socket.socket, memory: int
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
            assert read(memory) == []
            return 1

        @single_instance(using="down", on_unavailable="local")
        def degraded() -> int:
            assert read(memory) == []
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


def test_a_listener_ends_at_once_and_leaves_nothing(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a child is connected: it does not use the time that it has for deaths."""
    monkeypatch.setattr("lockapp.celery.listener.CLOSE_LIMIT_S", 60.0)
    lifeline = Lifeline()
    lifeline.connect(listener.address)
    slot = lifeline.hold(_report())
    before = time.monotonic()
    listener.close()
    assert time.monotonic() - before < scaled(20)
    assert not Path(listener.address).parent.exists()
    assert "lockapp-lifelines" not in {thread.name for thread in threading.enumerate()}
    listener.close()
    assert slot is not None
    lifeline.over(slot)
    lifeline.drop()


def test_a_report_that_makes_no_sense_ends_that_line_only(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is abandoned on such a word, told or left; the others are listened to."""

    def lines() -> int:
        wait_until(lambda: "makes no sense" in caplog.text, what="the log")
        caplog.clear()
        return len(listener._lines)

    other = Lifeline()
    other.connect(listener.address)
    wait_until(lambda: len(listener._lines) == 1, what="the other's line")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.connect(listener.address)
        one.send(b"nonsense\n")
        assert lines() == 1
    memory = shared_memory()
    os.pwrite(memory, b"\x01nonsense\n", 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.connect(listener.address)
        socket.send_fds(dead, [b"\n"], [memory])
    os.close(memory)
    assert lines() == 1
    other.drop()
    listener.close()
    assert "died" not in caplog.text


@pytest.mark.keeps_keys  # the tombstone of the token
def test_what_a_child_left_is_abandoned_at_the_end_of_its_line(
    redis_locks: Any, told_of: Callable[..., Lifeline]
) -> None:
    """And what it gave back, or another child holds, is not."""
    leases = [_acquired("order", number) for number in range(3)]
    one, _ = told_of(leases[1]), told_of(leases[2])
    slot = one.hold(_report_of(leases[0]))
    assert slot is not None
    one.over(slot)
    one.drop()
    wait_until(lambda: leases[1].lost, what="the loss")
    assert leases[1].lost_reason == "abandoned"
    assert "worker test" in leases[1].lost_note
    for lease in (leases[0], leases[2]):
        lease.renew()
        lease.release()


def test_a_child_that_lives_keeps_what_it_holds(
    redis_locks: Any, told_of: Callable[..., Lifeline], caplog: pytest.LogCaptureFixture
) -> None:
    """Its body has closed descriptors that are not its own. That is no death."""
    lease = lock("order").acquire()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            told_of(lease, pid=child.pid).drop()
            wait_until(lambda: "closed its line and lives" in caplog.text, what="the log")
        finally:
            child.kill()
    lease.renew()
    lease.release()


@pytest.mark.keeps_keys  # the tombstone of the token
def test_a_child_is_dead_before_anybody_asks_for_its_outcome(
    redis_locks: Any, told_of: Callable[..., Lifeline]
) -> None:
    """Its worker's main loop may be busy for long."""
    lease = _acquired("order")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        line = told_of(lease, pid=child.pid)
        child.kill()
        line.drop()
        wait_until(lambda: lease.lost, what="the loss")


@pytest.mark.keeps_keys  # the tombstone of the token
def test_a_death_right_before_the_end_is_dealt_with(
    redis_locks: Any, listener: Listener, told_of: Callable[..., Lifeline]
) -> None:
    """Before close() returns."""
    lease = lock("order").acquire()
    told_of(lease).drop()
    listener.close()
    assert locks["default"].show(lease.name) is None


def test_an_engine_that_does_not_answer_delays_neither_a_fork_nor_the_end(
    listener: Listener,
    told_of: Callable[..., Lifeline],
    fresh_redis: RedisServer,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lock ends with its ttl, and that is logged."""
    settings.LOCKAPP = {
        "default": {"ENGINE": "lockapp.engines.redis.RedisEngine", "LOCATION": fresh_redis.url}
    }
    lease = lock("order", renew=False).acquire()
    line = told_of(lease)
    wait_until(lambda: "default" in listener._met, what="the listener's first question")
    fresh_redis.pause()
    try:
        line.drop()
        wait_until(lambda: not listener._lines, what="the end of file")
        assert _AT_WORK.acquire(timeout=scaled(0.5))
        _AT_WORK.release()
        before = time.monotonic()
        listener.close()
        assert time.monotonic() - before < scaled(1)
        wait_until(lambda: "ends with its ttl" in caplog.text, what="the log")
    finally:
        fresh_redis.resume()
    lease.release()
    locks.close_all()
