"""Locks on ZooKeeper beside kazoo's own Lock: what a release and the next grant take.

By one process, whose lock is free each time, and by several that hand it over: each holds it for
long enough that the next one has been waiting. One server, which keeps nothing on disk before it
answers, so that the clients are measured and not the disk. The two take turns, and what counts is
the ratio of neighbouring rounds.
"""

from __future__ import annotations

from tests.bench.contend import Round, median_of, median_quotient
from tests.bench.contestants import CONTESTANTS, ON_ZOOKEEPER, Place
from tests.bench.crew import Crew
from tests.bench.handover import HOLD_S, Rounds, alternate
from tests.bench.report import Section, Target, rounded
from tests.bench.surroundings import Surroundings
from tests.services import why_absent
from tests.zookeeper_servers import ZooKeeperServer

PROCESSES = {"full": (1, 2, 8), "quick": (1, 2, 8), "tiny": (1, 2)}
ROUNDS = {"full": (7, 2.0), "quick": (3, 1.0), "tiny": (1, 0.2)}  # rounds, seconds of each
OURS, PEER = ON_ZOOKEEPER
AIM = 1.0


def run(around: Surroundings, size: str) -> list[Section]:
    """Measure both, where ZooKeeper is installed."""
    if absent := why_absent("java"):
        return [Section("On ZooKeeper", ("",), ((absent,),))]
    rounds, seconds = ROUNDS[size]
    sections = []
    with (
        ZooKeeperServer() as server,
        Crew(max(PROCESSES[size]), Place(server.url, around.place.directory)) as crew,
    ):
        for processes in PROCESSES[size]:

            def one(key: str, processes: int = processes) -> Round:
                around.say(f"{processes} processes on ZooKeeper: {CONTESTANTS[key].title}")
                return crew.contend(key, processes, seconds, HOLD_S if processes > 1 else 0.0)

            sections.append(_section(processes, alternate(ON_ZOOKEEPER, rounds, one)))
    return sections


def _section(processes: int, found: Rounds) -> Section:
    who, what = "one process", "release and acquire"
    if processes > 1:
        who, what = f"{processes} processes", "hand-over"
    ratio = median_quotient(found[OURS], found[PEER], "gap_p50_us")
    return Section(
        f"On ZooKeeper: {who} on one lock",
        ("", "per s", "to another", "Jain", f"{what} p50 µs", "p99 µs", "longest wait ms"),
        tuple(
            (
                CONTESTANTS[key].title,
                f"{median_of(it, 'per_second'):,.0f}",
                f"{median_of(it, 'to_another'):.1%}",
                f"{median_of(it, 'jain'):.4f}",
                f"{median_of(it, 'gap_p50_us'):,.0f}",
                f"{median_of(it, 'gap_p99_us'):,.0f}",
                rounded(median_of(it, "longest_wait_ms")),
            )
            for key, it in found.items()
        ),
        (Target(f"{what} to kazoo's Lock", ratio, AIM, " ×"),),
    )
