"""Hand-over: several processes, or threads, want one lock again and again.

The contestants take turns, round by round. The longest wait of a round is judged
beside that of a bare BLPOP hand-off in the same round: what that one does not give, on this
machine at this moment, no lock can.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from tests.bench.contend import (
    NOTES_SIZE,
    Round,
    Wait,
    contend,
    judge,
    median_of,
    median_quotient,
    read_notes,
)
from tests.bench.contestants import CONTENDED, CONTESTANTS, Place, commands_sent
from tests.bench.crew import Crew
from tests.bench.report import Chart, Section, Target, rounded
from tests.bench.surroundings import Surroundings

PROCESSES = {"full": (2, 8, 32), "quick": (2, 8), "tiny": (2,)}
ROUNDS = {"full": (5, 1.0), "quick": (3, 0.5), "tiny": (1, 0.1)}  # rounds, seconds of each
HOLDERS = {"full": 32, "quick": 8, "tiny": 2}
HOLD_S = 0.005
THREADS = {"full": 16, "quick": 16, "tiny": 2}
PEER, FLOOR = "python-redis-lock", "handoff"
JUDGED = 8  # processes, in the targets
AIM_RATE, AIM_JAIN, AIM_LONGEST, AIM_HOLDING_JAIN = 2.0, 0.999, 1.5, 0.99

LEGEND = (
    f"*per s*: acquisitions a second, all together; *ratio*: of these to {PEER}; *to another*: "
    "grants that went to another contender than the one before; *starved*: contenders without any "
    "grant; *gap*: from a release to the next grant; *commands*: sent by clients, an acquisition."
)

Rounds = dict[str, list[Round]]


@dataclass(frozen=True)
class HandoverResult(Round):
    """One contestant's figures of one round."""

    title: str
    processes: int


def measure(key: str, url: str, processes: int = 8, seconds: float = 3.0) -> HandoverResult:
    """Let ``processes`` new processes contend for ``seconds`` seconds, one contestant alone."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Crew(processes, Place(url, directory)) as crew,
    ):
        found = crew.contend(key, processes, seconds)
    return HandoverResult(**asdict(found), title=CONTESTANTS[key].title, processes=processes)


def alternate(keys: Sequence[str], rounds: int, one: Callable[[str], Round]) -> Rounds:
    """Let the contestants take turns, so that drift hits all alike."""
    found: Rounds = {key: [] for key in keys}
    for _ in range(rounds):
        for key in keys:
            found[key].append(one(key))
    return found


def run(around: Surroundings, size: str) -> list[Section]:
    """Processes that hand one lock to each other."""
    sections: list[Section] = []
    rates: dict[int, Rounds] = {}
    crew = around.crew(max(*PROCESSES[size], HOLDERS[size]))
    rounds, seconds = ROUNDS[size]
    for processes in PROCESSES[size]:

        def one(key: str, processes: int = processes) -> Round:
            around.say(f"hand-over between {processes} processes: {CONTESTANTS[key].title}")
            return crew.contend(key, processes, seconds)

        found = rates[processes] = alternate(CONTENDED, rounds, one)
        targets = judged(found) if processes == JUDGED else ()
        title = f"{processes} processes on one lock"
        sections.append(_section(title, found, targets, noted=not sections))
    last = sections.pop()
    return [
        *sections,
        replace(last, charts=tuple(_charts(rates))),
    ]


def judged(found: Rounds) -> tuple[Target, ...]:
    """What is asked of a hand-over between eight processes."""
    ours = found["lockapp"]
    return (
        Target(
            f"acquisitions a second to {PEER}",
            median_quotient(ours, found[PEER], "per_second"),
            AIM_RATE,
            " ×",
            at_least=True,
        ),
        Target("Jain's index", median_of(ours, "jain"), AIM_JAIN, at_least=True),
        Target(
            "longest to median wait, to that of a BLPOP hand-off",
            median_quotient(ours, found[FLOOR], "longest_to_median"),
            AIM_LONGEST,
            " ×",
        ),
    )


def run_holding(around: Surroundings, size: str) -> list[Section]:
    """Processes that keep the lock for a while each time."""
    processes = HOLDERS[size]
    crew = around.crew(processes)
    rounds, seconds = ROUNDS[size]

    def one(key: str) -> Round:
        around.say(f"{processes} processes holding {HOLD_S * 1000:g} ms: {CONTESTANTS[key].title}")
        return crew.contend(key, processes, max(2 * seconds, 2 * processes * HOLD_S), HOLD_S)

    found = alternate(CONTENDED, min(rounds, 2), one)
    ours = found["lockapp"]
    targets = (
        Target("Jain's index", median_of(ours, "jain"), AIM_HOLDING_JAIN, at_least=True),
        Target("starved processes", max(it.starved for it in ours), 0),
    )
    return [_section(f"{processes} processes, each holding {HOLD_S * 1000:g} ms", found, targets)]


def run_threads(around: Surroundings, size: str) -> list[Section]:
    """Threads of one process, which share a client."""
    threads = THREADS[size]
    rounds, seconds = ROUNDS[size]
    makers = {key: around.join(key) for key in CONTENDED}

    def one(key: str) -> Round:
        around.say(f"{threads} threads: {CONTESTANTS[key].title}")
        name = f"threads-{key}"
        prepare = CONTESTANTS[key].prepare
        if prepare is not None:
            prepare(around.place, name)
        pairs = [makers[key](name) for _ in range(threads)]
        for take, give in pairs:
            take()
            give()
        notes = memoryview(bytearray(NOTES_SIZE)).cast("Q")
        waits: list[list[Wait]] = [[] for _ in pairs]
        around.client.config_resetstat()
        start = time.monotonic() + 0.05
        end = start + seconds

        def work(number: int) -> None:
            waits[number] = contend(pairs[number], number, start, end, 0.0, notes)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return judge(read_notes(notes), waits, start, end, commands_sent(key, around.client))

    found = alternate(CONTENDED, min(rounds, 3), one)
    return [_section(f"{threads} threads of one process on one lock", found, ())]


def _section(
    title: str, found: Rounds, targets: tuple[Target, ...], *, noted: bool = False
) -> Section:
    return Section(
        title,
        (
            "", "per s", "ratio", "to another", "Jain", "starved", "gap p50 µs", "gap p99 µs",
            "median wait ms", "longest ms", "longest : median", "commands",
        ),
        tuple(
            (
                CONTESTANTS[key].title,
                f"{median_of(it, 'per_second'):,.0f}",
                f"{median_quotient(it, found[PEER], 'per_second'):.2f}",
                f"{median_of(it, 'to_another'):.1%}",
                f"{median_of(it, 'jain'):.4f}",
                str(max(one.starved for one in it)),
                f"{median_of(it, 'gap_p50_us'):,.0f}",
                f"{median_of(it, 'gap_p99_us'):,.0f}",
                rounded(median_of(it, "median_wait_ms")),
                rounded(median_of(it, "longest_wait_ms")),
                rounded(median_of(it, "longest_to_median")),
                rounded(median_of(it, "commands")),
            )
            for key, it in found.items()
        ),
        targets,
        notes=(LEGEND,) if noted else (),
    )  # fmt: skip


def _charts(rates: dict[int, Rounds]) -> list[Chart]:
    labels = tuple(f"{processes} processes" for processes in rates)
    return [
        Chart(
            "handover",
            "Acquisitions a second, all processes together",
            labels,
            {
                CONTESTANTS[key].title: tuple(
                    median_of(found[key], "per_second") for found in rates.values()
                )
                for key in CONTENDED
            },
        ),
        Chart(
            "longest-wait",
            "Longest wait, in median waits (logarithmic)",
            labels,
            {
                CONTESTANTS[key].title: tuple(
                    median_of(found[key], "longest_to_median") for found in rates.values()
                )
                for key in CONTENDED
            },
            logarithmic=True,
        ),
    ]
