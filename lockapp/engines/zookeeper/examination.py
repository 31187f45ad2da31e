"""What an operator wants to know of an ensemble, asked in one visit by a client of its own.

Nothing is changed there. What a real lock meets, a session that is kept for too short among it, is
not tried here.
"""

from __future__ import annotations

import re
import time
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from lockapp.core.options import EngineOptions
from lockapp.engines.health import TRIPS, Examination, Problem, judge_trips
from lockapp.engines.zookeeper.address import Address
from lockapp.engines.zookeeper.client import make_client

OLDEST = (3, 5)
"""The oldest server on which this was tried, and the first whose ``srvr`` is allowed by itself."""
_version = re.compile(r"Zookeeper version: (\d+)\.(\d+)[.\d]*")


def examine(address: Address, options: EngineOptions) -> Examination:
    """Ask the ensemble, within the connect timeout and one command timeout for each question."""
    found = Examination()
    client = make_client(address, options, lambda: None)
    try:
        client.start(options.connect_timeout_ms / 1000)
        _visit(client, options, found)
    except (KazooTimeoutError, KazooException, OSError) as error:
        text = f"{address}: {type(error).__name__}: {error}"
        found.problems.insert(0, Problem("unreachable", text))
    finally:
        client.stop()
        client.close()
    return found


def _visit(client: Any, options: EngineOptions, found: Examination) -> None:
    said = _version.search(client.command(b"srvr"))
    if said is not None:  # else the word is not allowed there
        found.version = said[0].rpartition(" ")[2]
        if (int(said[1]), int(said[2])) < OLDEST:
            found.problems.append(Problem("version", found.version))
    trips = []
    for _ in range(TRIPS):
        asked_at = time.perf_counter()
        client.exists_async("/").get(timeout=options.command_timeout_ms / 1000)
        trips.append(time.perf_counter() - asked_at)
    found.round_trip_ms = min(trips) * 1000
    found.problems += judge_trips(max(trips), options)
