"""Masters die and freeze while processes contend; what those have logged is what is judged."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.history import Stay, judge, read_log
from tests.servers import RedisServer
from tests.soak.worker import command
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
PROCESSES = 8
ROUNDS = 6


class Service(Protocol):
    """Servers of which one takes the place of another."""

    @property
    def url(self) -> str:
        """Where locks are to be had."""
        ...

    def heal(self) -> None:
        """Bring back what was harmed."""
        ...


def contend(
    service: Service, master: Callable[[int], RedisServer], directory: Path, acks: int
) -> list[Stay]:
    """Have processes contend over failovers, by frost and by crash in turn; return their stays.

    Half of the processes freeze with the master and wake with it, as those on one machine do.

    Args:
        service: where; it has been started.
        master: who is to be harmed in a round, and who has its place afterwards.
        directory: for logs.
        acks: how many replicas must have a lease.
    """
    stop = directory / "stop"
    crowd = [
        subprocess.Popen(
            command(
                service.url, directory / f"w{number}.log", stop, number,
                harmed=True, min_replicas_acked=acks,
            ),
            cwd=ROOT,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        wait_until(
            lambda: len(list(directory.glob("*.log"))) == PROCESSES,
            limit_s=30, what="everybody to be there",
        )  # fmt: skip
        for number in range(ROUNDS):
            time.sleep(scaled(1))
            old = master(number)
            frozen = [] if number % 2 else crowd[: PROCESSES // 2]
            for each in frozen:
                each.send_signal(signal.SIGSTOP)
            if frozen:
                old.pause()
            else:
                old.kill()
            wait_until(
                lambda number=number, old=old: master(number) is not old,
                limit_s=60, what="a failover",
            )  # fmt: skip
            time.sleep(scaled(1))  # they wake when the new one has granted
            if frozen:
                old.resume()
            for each in frozen:
                each.send_signal(signal.SIGCONT)
            time.sleep(scaled(1))
            service.heal()
        stop.touch()
        assert [each.wait(scaled(60)) for each in crowd] == [0] * PROCESSES
    finally:
        for each in crowd:
            each.kill()
            each.wait()
    return [
        stay
        for log in directory.glob("*.log")
        for stay in read_log(log.stem, log.read_text().splitlines(keepends=True))
    ]


def assert_only_what_may_be(stays: list[Stay], acks: int) -> None:
    """Tell how often two held a lock; with acknowledgements that must not have happened."""
    doubled = [fault for fault in judge(stays, []) if fault.kind == "overlap"]
    last: dict[str, int] = {}
    backwards = 0
    for stay in sorted(stays, key=lambda it: it.start):
        backwards += stay.fence <= last.get(stay.name, 0)
        last[stay.name] = max(stay.fence, last.get(stay.name, 0))
    print(  # noqa: T201
        f"acks {acks}: {ROUNDS} failovers, {len(stays)} stays, {len(doubled)} overlaps, "
        f"{backwards} tokens that did not grow"
    )
    assert len(stays) > ROUNDS * PROCESSES
    if acks:
        assert doubled == []
        assert not backwards
