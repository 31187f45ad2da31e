"""ZooKeeper for longer: many names, and leaders killed and frozen while processes contend."""

from __future__ import annotations

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.zookeeper import ZooKeeperEngine
from lockapp.exceptions import WaitTimeout
from lockapp.lock import Lock
from tests.history import judge, read_log
from tests.soak.worker import command
from tests.timing import scaled, wait_until
from tests.zookeeper_servers import ZooKeeperEnsemble, ZooKeeperServer

pytestmark = [pytest.mark.soak, pytest.mark.needs("java"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NAMES = 5_000
PROCESSES = 6
ROUNDS = 4


def test_thousands_of_names_leave_no_nodes(zookeeper_server: ZooKeeperServer, prefix: str) -> None:
    """Used by two sessions, some of them with a waiter that gives up."""
    options = EngineOptions.parse({"prefix": prefix, "connect_timeout": 10, "command_timeout": 10})
    here, there = (ZooKeeperEngine(alias, zookeeper_server.url, options) for alias in ("a", "b"))

    def use(number: int) -> None:
        lease = Lock(here, f"order:{number}").acquire()
        if number % 5 == 0:
            with pytest.raises(WaitTimeout):
                Lock(there, f"order:{number}", wait=0.01).acquire()
        lease.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(NAMES)))
    client = zookeeper_server.another_client()
    wait_until(lambda: client.get_children(f"/{prefix}/locks") == [], what="the nodes to go")
    client.stop()
    client.close()
    for engine in (here, there):
        engine.close()
        wait_until(lambda engine=engine: engine.session._thread is None, limit_s=10)  # type: ignore[misc]


def test_leaders_die_and_freeze_while_processes_contend(tmp_path: Path) -> None:
    """A third of the processes freezes with it, and wakes when others have gone on."""
    stop = tmp_path / "stop"
    with ZooKeeperEnsemble() as ensemble:
        crowd = [
            subprocess.Popen(
                command(ensemble.url, tmp_path / f"w{number}.log", stop, number, harmed=True),
                cwd=ROOT,
            )
            for number in range(PROCESSES)
        ]
        try:
            wait_until(
                lambda: len(list(tmp_path.glob("*.log"))) == PROCESSES,
                limit_s=30, what="everybody to be there",
            )  # fmt: skip
            for number in range(ROUNDS):
                time.sleep(scaled(2))
                old = ensemble.leader
                frozen = [] if number % 2 else crowd[: PROCESSES // 3]
                for each in frozen:
                    each.send_signal(signal.SIGSTOP)
                if frozen:
                    old.pause()
                else:
                    old.kill()
                others = [it for it in ensemble.servers if it is not old]
                wait_until(
                    lambda others=others: "leader" in [it.mode() for it in others],  # type: ignore[misc]
                    limit_s=60, every_s=0.1, what="another leader",
                )  # fmt: skip
                time.sleep(scaled(6))  # they wake when their sessions are over
                if frozen:
                    old.resume()
                for each in frozen:
                    each.send_signal(signal.SIGCONT)
                if not frozen:
                    old.start()
            time.sleep(scaled(2))
            stop.touch()
            assert [each.wait(scaled(60)) for each in crowd] == [0] * PROCESSES
        finally:
            for each in crowd:
                each.kill()
                each.wait()
    stays = [
        stay
        for log in tmp_path.glob("*.log")
        for stay in read_log(log.stem, log.read_text().splitlines(keepends=True))
    ]
    assert [fault for fault in judge(stays, []) if fault.kind == "overlap"] == []
    last: dict[str, int] = {}
    for stay in sorted(stays, key=lambda it: it.start):
        assert stay.fence > last.get(stay.name, 0)
        last[stay.name] = stay.fence
    assert len(stays) > ROUNDS * PROCESSES
