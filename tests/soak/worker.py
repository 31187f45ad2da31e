"""A process that takes locks at random until told to stop: `python -m tests.soak.worker …`.

Arguments: URL (of Redis, or `zk://`), prefix, log file, stop file, seed, and optionally how many
replicas must have a lease; then, an engine that can't be asked is no failure. Its leases are logged
for `tests/history.py`.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from lockapp.core.options import EngineOptions
from lockapp.engines.base import Engine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.zookeeper import ZooKeeperEngine
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired
from lockapp.lock import Lock

NAMES = [f"soak:{number}" for number in range(5)]
OPTIONS = {
    "ttl": 1,
    "claim_window": 0.5,
    "waiting_slice": 0.5,
    "tombstone": 1,
    "event_cap": 1_000_000,
    "session_timeout": 4,
}


def main() -> None:
    """Acquire, log, work, log, release; again."""
    url, prefix, log, stop, seed, *acks = sys.argv[1:]
    chance = random.Random(seed)
    options = {**OPTIONS, "prefix": prefix, "min_replicas_acked": int(acks[0]) if acks else 0}
    outage = EngineUnavailable if acks else ()
    kind: type[Engine] = ZooKeeperEngine if url.startswith("zk://") else RedisEngine
    engine = kind("soak", url, EngineOptions.parse(options))
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
