"""Masters are killed and frozen while processes contend; how often two held a lock is counted."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.history import Stay, judge, read_log
from tests.sentinels import Watched
from tests.soak.worker import command
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
PROCESSES = 8
ROUNDS = 6


def contend(directory: Path, acks: int) -> list[Stay]:
    """Have processes contend over failovers, by frost and by crash in turn; return their stays.

    Half of the processes freeze with the master and wake with it, as those on one machine do.
    """
    stop = directory / "stop"
    with Watched() as service:
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
                old = service.master
                frozen = [] if number % 2 else crowd[: PROCESSES // 2]
                for each in frozen:
                    each.send_signal(signal.SIGSTOP)
                if frozen:
                    old.pause()
                else:
                    old.kill()
                wait_until(lambda old=old: service.master is not old, limit_s=60)
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


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acks", [0, 1])
def test_masters_die_and_freeze_while_processes_contend(tmp_path: Path, acks: int) -> None:
    """Without acknowledgements some overlaps are to be expected; with them there is none."""
    stays = contend(tmp_path, acks)
    found = judge(stays, [])
    doubled = [fault for fault in found if fault.kind == "overlap"]
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
