"""A process that takes locks at random until told to stop: `python -m tests.soak.worker …`.

Arguments: an engine's settings as JSON (ENGINE, LOCATION, OPTIONS), log file, stop file, seed, and
"harmed" where an engine that can't be asked is no failure. It logs its leases for
`tests/history.py`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from lockapp import conf
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired
from lockapp.lock import Lock

NAMES = [f"soak:{number}" for number in range(5)]
OPTIONS = {
    "ttl": 1,
    "claim_window": 0.5,
    "waiting_slice": 0.5,
    "tombstone": 1,
    "event_cap": 1_000_000,
    "prefix": "soak",
    "session_timeout": 4,
}


def command(
    location: str, log: Path, stop: Path, seed: object, *, harmed: bool = False, **options: Any
) -> list[str]:
    """Return how such a process is started."""
    given: dict[str, Any] = {"LOCATION": location, "OPTIONS": {**OPTIONS, **options}}
    if location.startswith("zk://"):
        given["ENGINE"] = "lockapp.engines.zookeeper.ZooKeeperEngine"
    command = [sys.executable, "-m", "tests.soak.worker", json.dumps(given)]
    return [*command, str(log), str(stop), str(seed), *(["harmed"] if harmed else [])]


def main() -> None:
    """Acquire, log, work, log, release; again."""
    given, log, stop, seed, *harmed = sys.argv[1:]
    chance = random.Random(seed)
    outage = EngineUnavailable if harmed else ()
    engine = conf.read_engine("soak", json.loads(given)).build()
    with Path(log).open("a", buffering=1) as out:
        while not Path(stop).exists():
            lock = Lock(engine, chance.choice(NAMES), wait=chance.choice([0, 0.01, 5, 5, 5]))
            try:
                lease = lock.acquire()
            except (NotAcquired, LeaseLost):
                continue
            except outage:
                time.sleep(0.05)
                continue
            fence = f"{lease.name} {lease.fence}"
            out.write(f"enter {fence} {engine.now():.6f} {lease.valid_until:.6f}\n")
            # Now and then for longer than a lease lives, so that renewals happen.
            time.sleep(chance.choice([0, 0, 0.001, 0.005, 0.02, 0.02, 1.5]))
            out.write(f"leave {fence} {engine.now():.6f} {lease.valid_until:.6f}\n")
            try:
                lease.release()
            except LeaseLost:
                out.write(f"lost {fence}\n")
            except outage:
                continue
    engine.close()


if __name__ == "__main__":
    main()
