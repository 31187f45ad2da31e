"""Whether hand-overs come in arrival order: judged from the server's own record of commands.

While processes contend, MONITOR lists every command in the order in which the server carried it
out, those of the scripts included. A token *arrives* with its first acquire, and is *granted* when
its holder record is first written; the two orders must be the same. MONITOR costs speed, so this
is a run of its own.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

import redis

from lockapp.engines.redis.scripts import build
from tests.bench.crew import Crew
from tests.bench.report import Section, Target
from tests.bench.surroundings import Surroundings

SIZES = {"full": (8, 1.0), "quick": (8, 0.3), "tiny": (2, 0.1)}  # processes, seconds
END = "arrival-order-ends"
TOKEN = re.compile(r"[0-9a-f]{32}")
HOLDER = re.compile(r"h:([0-9a-f]{32})")


@dataclass(frozen=True)
class ArrivalResult:
    """How many grants there were, and how many came out of turn."""

    grants: int
    out_of_order: int


def measure(crew: Crew, processes: int, seconds: float) -> ArrivalResult:
    """Contend under MONITOR and compare the orders."""
    lines: list[str] = []
    listening = threading.Event()

    def listen() -> None:
        with redis.Redis.from_url(crew.place.url).monitor() as monitor:
            listening.set()
            for entry in monitor.listen():
                lines.append(entry["command"])
                if END in entry["command"]:
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    listening.wait(10)
    crew.contend("lockapp", processes, seconds)
    with redis.Redis.from_url(crew.place.url) as client:
        client.echo(END)
    thread.join(60)
    return judge(lines, build("acquire").sha)


def judge(lines: list[str], acquire: str) -> ArrivalResult:
    """Compare the orders of arrival and of grant in MONITOR's lines.

    Args:
        acquire: the digest of the script by which tokens arrive.
    """
    arrived: dict[str, int] = {}
    granted: dict[str, int] = {}
    for line in lines:
        words = line.split(" ")
        if words[0].upper() == "EVALSHA" and words[1] == acquire:
            token = next(word for word in words if TOKEN.fullmatch(word))
            arrived.setdefault(token, len(arrived))
        elif words[0].upper() == "HSET" and (holder := HOLDER.fullmatch(words[2])):
            granted.setdefault(holder[1], len(granted))
    order = sorted(granted, key=granted.__getitem__)
    places = [arrived[token] for token in order if token in arrived]
    highest, out_of_order = -1, 0
    for place in places:
        out_of_order += place < highest
        highest = max(highest, place)
    return ArrivalResult(len(places), out_of_order)


def run(around: Surroundings, size: str) -> list[Section]:
    """The order of the grants."""
    processes, seconds = SIZES[size]
    crew = around.crew(processes)
    around.say("arrival order, under MONITOR")
    order = measure(crew, processes, seconds)
    return [
        Section(
            f"Arrival order between {processes} processes, from the server's own record",
            ("", "grants", "out of turn"),
            (("lockapp", f"{order.grants:,}", str(order.out_of_order)),),
            (
                Target("grants out of turn", order.out_of_order, 0),
                Target("grants recorded", order.grants, 2 * processes, at_least=True),
            ),
        )
    ]
