"""An ensemble of ZooKeeper servers whose leader is killed while sessions contend."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from lockapp.core.options import EngineOptions
from lockapp.engines.zookeeper import ZooKeeperEngine, errands
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.history import Stay, judge
from tests.timing import scaled, wait_until
from tests.zookeeper_servers import ZooKeeperEnsemble

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(180)]

NAMES = ("order:1", "order:2")
OPTIONS = {
    "session_timeout": scaled(4),
    "ttl": scaled(1.5),
    "tombstone": 0.2,
    "connect_timeout": scaled(2),
    "command_timeout": scaled(2),
}


@pytest.fixture(autouse=True)
def short_session_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an idle session end soon, so that its threads are seen to end."""
    monkeypatch.setattr(errands, "LINGER_S", 0.2)


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three servers; each test leaves three."""
    with ZooKeeperEnsemble() as servers:
        yield servers


def engines(ensemble: ZooKeeperEnsemble, prefix: str, count: int) -> list[ZooKeeperEngine]:
    """As so many processes would have them: a session each."""
    options = EngineOptions.parse({"prefix": prefix, **OPTIONS})
    return [ZooKeeperEngine(f"e{number}", ensemble.url, options) for number in range(count)]


def closed(made: list[ZooKeeperEngine]) -> None:
    """Close them, and wait until their sessions have ended."""
    for engine in made:
        engine.close()
    for engine in made:
        wait_until(lambda engine=engine: engine.session._thread is None, limit_s=20)  # type: ignore[misc]


class Contender(threading.Thread):
    """Takes a lock, holds it, at times past its ttl, and gives it back; until told to stop."""

    def __init__(self, engine: ZooKeeperEngine, stop: threading.Event) -> None:
        super().__init__(name=engine.alias)
        self.engine = engine
        self.stays: list[Stay] = []
        self.renewed = 0
        self._told = stop
        self._chance = random.Random(engine.alias)

    def run(self) -> None:
        while not self._told.is_set():
            try:
                lease = Lock(self.engine, self._chance.choice(NAMES), wait=scaled(20)).acquire()
            except (EngineUnavailable, NotAcquired, LeaseLost):
                time.sleep(0.05)
                continue
            start, first = self.engine.now(), lease.valid_until
            time.sleep(self._chance.choice([0.0, 0.01, 0.05, scaled(1.0)]))
            self.renewed += lease.valid_until > first
            end = max(start, min(self.engine.now(), lease.valid_until))
            self.stays.append(Stay(self.name, lease.name, lease.fence, start, end))
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        while True:
            try:
                return lease.release()
            except LeaseLost:
                return None
            except EngineUnavailable:
                time.sleep(0.05)


def kill_leader(ensemble: ZooKeeperEnsemble, crowd: list[Contender]) -> None:
    """SIGKILL it; return when everybody has been granted a lock since, by another leader."""
    old = ensemble.leader
    before = [len(each.stays) for each in crowd]
    old.kill()
    try:
        wait_until(
            lambda: all(len(it.stays) > n + 1 for it, n in zip(crowd, before, strict=True)),
            limit_s=60, every_s=0.05, what="everybody to go on",
        )  # fmt: skip
    finally:
        old.start()


def test_nobody_overlaps_while_leaders_are_killed(ensemble: ZooKeeperEnsemble, prefix: str) -> None:
    """Four sessions hold, wait and renew; each goes on by itself, and the fences grow."""
    made = engines(ensemble, prefix, 4)
    stop = threading.Event()
    crowd = [Contender(engine, stop) for engine in made]
    for each in crowd:
        each.start()
    try:
        wait_until(lambda: all(len(each.stays) > 1 for each in crowd), limit_s=30)
        for _ in range(2):
            kill_leader(ensemble, crowd)
    finally:
        stop.set()
        for each in crowd:
            each.join()
    stays = [stay for each in crowd for stay in each.stays]
    assert [fault for fault in judge(stays, []) if fault.kind == "overlap"] == []
    for name in NAMES:
        mine = sorted((it for it in stays if it.name == name), key=lambda it: it.start)
        assert [it.fence for it in mine] == sorted({it.fence for it in mine})
    assert sum(each.renewed for each in crowd)
    closed(made)


def test_a_lease_outlives_the_leader_and_its_waiter_gets_its_turn(
    ensemble: ZooKeeperEnsemble, prefix: str
) -> None:
    """What is held stays held, and nobody is let in until it is given back."""
    here, there = made = engines(ensemble, prefix, 2)
    held = Lock(here, "order:1").acquire()
    got: list[Lease] = []
    waiting = threading.Thread(
        target=lambda: got.append(Lock(there, "order:1", wait=scaled(40)).acquire())
    )
    waiting.start()
    wait_until(lambda: here.show("order:1").waiter_count == 1)  # type: ignore[union-attr]
    old = ensemble.leader
    old.kill()
    renewed_from = held.valid_until
    wait_until(
        lambda: held.lost or held.valid_until > renewed_from,
        limit_s=30, every_s=0.02, what="the watchdog to have renewed it",
    )  # fmt: skip
    if not held.lost:  # an election may take longer than a lease lives
        assert not got
        held.release()
    waiting.join()
    assert got[0].fence > held.fence
    got[0].release()
    closed(made)
    old.start()
