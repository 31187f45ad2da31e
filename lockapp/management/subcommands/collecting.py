"""``collect`` stores lock events; ``sweep`` reclaims leases that ran out."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import close_old_connections

from lockapp.audit.collector import Collected, collect_all
from lockapp.dashboard.snapshot import duration
from lockapp.engines.base import Engine
from lockapp.handler import locks
from lockapp.management.subcommands.base import Subcommand, engine_of, seconds, until_told

LATE_MS = 10_000
"""A collector that keeps up is quicker than that."""
LONGEST_PAUSE_S = 30.0
"""Between two rounds of ``collect --follow`` while something fails."""


class Collect(Subcommand):
    """Store events, once or until told to end."""

    name = "collect"
    help = "Store the events of all engines (or one), reclaim expired leases."

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument("--follow", action="store_true", help="go on until SIGTERM or Ctrl-C")
        parser.add_argument(
            "--interval", type=seconds, default=1.0, metavar="SECONDS", help="with --follow"
        )

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        engines = shared_engines(self, options)
        if options["follow"]:
            self._follow(engines, options["interval"], options["verbosity"])
            return
        done, failed = collect_all(engines)
        self._tell(done)
        for error in failed.values():
            raise error

    def _follow(self, engines: list[Engine], interval_s: float, verbosity: int) -> None:
        """Collect again and again. Ends between two rounds, so that nothing is left half done."""
        total: dict[str, Collected] = {}
        pause_s = interval_s
        with until_told() as word:
            self.stdout.write("Collecting lock events; Ctrl-C ends it.")
            self.stdout.flush()
            while not word.come:
                close_old_connections()
                done, failed = collect_all(engines)
                for alias, collected in done.items():
                    total[alias] = total.get(alias, Collected()) + collected
                if verbosity > 1:
                    self._tell(
                        {key: each for key, each in done.items() if each.stored or each.gaps}
                    )
                for alias, error in failed.items():
                    self.stderr.write(f"{alias}: {error}")
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S) if failed else interval_s
                word.wait(pause_s)
        self._tell(total)

    def _tell(self, done: dict[str, Collected]) -> None:
        for alias, each in done.items():
            text = f"{alias}: {each.stored} events stored"
            if each.lag_ms >= LATE_MS:
                text += f", the oldest {duration(each.lag_ms / 1000)} after it happened"
            if each.known:
                text += f", {each.known} known already"
            if each.reclaimed:
                text += f", {each.reclaimed} expired leases reclaimed"
            if each.gaps:
                text += self.style.WARNING(f", {each.gaps} gaps")
            self.stdout.write(text)


class Sweep(Subcommand):
    """Reclaim expired leases."""

    name = "sweep"
    help = "Reclaim expired leases of all engines (or one)."

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        for engine in shared_engines(self, options):
            self.stdout.write(f"{engine.alias}: {engine.sweep()} expired leases reclaimed")


def shared_engines(subcommand: Subcommand, options: dict[str, Any]) -> list[Engine]:
    """Return the engines asked for; those inside one process have nothing for another."""
    if options["using"]:
        return [engine_of(options)]
    engines = [engine for engine in locks.all() if engine.shared_between_processes]
    if not engines:
        subcommand.stderr.write(
            "No engine whose locks this process could see; name one by --using."
        )
    return engines
