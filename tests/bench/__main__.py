"""`python -m tests.bench`: lockapp beside its peers, in one run, as ratios.

The servers are started for the run. What is missed is printed; the exit code does not judge.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tests.bench import (
    arrival,
    collecting,
    crowd,
    growth,
    handover,
    holding,
    majority,
    page,
    pair,
    takeover,
    task,
    waiting,
    zookeeper,
)
from tests.bench.report import Section, show
from tests.bench.surroundings import Surroundings

MEASUREMENTS: dict[str, Callable[[Surroundings, str], list[Section]]] = {
    "pair": pair.run,
    "handover": handover.run,
    "hold": handover.run_holding,
    "threads": handover.run_threads,
    "arrival": arrival.run,
    "waiting": waiting.run,
    "crowd": crowd.run,
    "holding": holding.run,
    "growth": growth.run,
    "takeover": takeover.run,
    "task": task.run,
    "collecting": collecting.run,
    "majority": majority.run,
    "zookeeper": zookeeper.run,
}
FORMS = {
    "full": "Full run.",
    "quick": "**Short form** (`--quick`): it shows that everything runs; too short to judge by.",
    "tiny": "**Smallest form**: the figures mean nothing.",
}


def main() -> None:
    """Run the chosen measurements and print them."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="may be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        action="store_const",
        dest="size",
        const="quick",
        default="full",
        help="a short form: too short to judge by",
    )
    size.add_argument(
        "--tiny",
        action="store_const",
        dest="size",
        const="tiny",
        help="the smallest form: for the tests of the bench",
    )
    parser.add_argument("--write", action="store_true", help="write the page and its charts")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="another page to write")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("the page shows one whole run: --write goes without --only")
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    started = time.monotonic()
    with console.status("starting …") as status:
        sections, machine = measure(
            options.only or list(MEASUREMENTS),
            options.size,
            say=lambda text: status.update(f"{text} …"),
            shown=lambda section: show(console, section),
        )
    targets = [(section, target) for section in sections for target in section.targets]
    for section, target in targets:
        if not target.reached:
            console.print(f"[red]missed[/red] {section.title}: {target.what} {target.shown}")
    console.print(
        f"{sum(target.reached for _, target in targets)} of {len(targets)} targets reached, "
        f"in {time.monotonic() - started:.0f} s, on {machine}",
        highlight=False,
    )
    if options.write:
        page.write(sections, machine, FORMS[options.size], options.page)


def measure(
    chosen: list[str],
    size: str,
    *,
    say: Callable[[str], None] = lambda text: None,
    shown: Callable[[Section], None] = lambda section: None,
) -> tuple[list[Section], str]:
    """Run the chosen measurements in their order; return their sections and the machine."""
    sections: list[Section] = []
    with Surroundings(say) as around:
        for name, run in MEASUREMENTS.items():
            if name in chosen:
                found = run(around, size)
                for section in found:
                    shown(section)
                sections += found
        return sections, around.machine


if __name__ == "__main__":
    main()
