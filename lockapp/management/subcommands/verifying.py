"""``verify`` replays the history of locks and says what must not have happened."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from lockapp.audit.verify import Found, Part, Verification
from lockapp.dashboard.snapshot import printable
from lockapp.engines.base import Engine
from lockapp.handler import locks
from lockapp.management.subcommands.base import FOUND, Subcommand

MOST_SHOWN = 1000
"""Faults that are printed; the others are counted."""
_AGO = re.compile(r"(\d{1,9})(s|min|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


class Verify(Subcommand):
    """Judge the history."""

    name = "verify"
    help = "Replay the audit log and report overlaps, bad tokens, grants without end, and gaps."
    json_too = True

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        for name, what in (("--since", "from then on"), ("--until", "before then")):
            parser.add_argument(
                name, type=moment, metavar="WHEN",
                help=f"what happened {what}: a date, a time (ISO 8601), or 90min, 24h, 7d ago",
            )  # fmt: skip
        parser.add_argument("--family", default="", help="judge the locks of one family")
        parser.add_argument(
            "--stored", action="store_true", help="judge the stored rows only; ask no engine"
        )

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        part = Part(options["since"], options["until"], options["using"] or "", options["family"])
        progress = Progress(self.stderr)
        apart = {each.alias for each in locks.all() if each.events_in_process}
        verification = Verification(self._engines(options), part, apart, progress)
        shown: list[Found] = []
        faults: Counter[str] = Counter()
        for found in verification.run():
            faults[found.fault.kind] += 1
            if len(shown) < MOST_SHOWN:
                shown.append(found)
                if not options["json"]:
                    progress.clear()
                    self.stdout.write(self.style.ERROR(_line(found)))
        progress.clear()
        if options["json"]:
            self.print_json(
                {
                    "events": dict(verification.seen),
                    "fault_count": faults.total(),
                    "faults": [_plain(each) for each in shown],
                }
            )
        elif faults.total() > len(shown):
            self.stdout.write(f"… and {faults.total() - len(shown)} more")
        self._conclude(verification.seen, faults, quiet=options["json"])

    def _conclude(self, seen: Counter[str], faults: Counter[str], *, quiet: bool) -> None:
        replayed = f"{seen.total()} events replayed"
        if faults:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
            raise CommandError(f"{replayed}, faults: {kinds}", returncode=FOUND)
        if quiet:
            return
        self.stdout.write(self.style.SUCCESS(f"{replayed}, no fault"))
        if seen["degraded"]:
            self.stdout.write(
                f"{seen['degraded']} bodies ran without the server's lock, as they were told to; "
                "of these nothing is proved."
            )

    def _engines(self, options: dict[str, Any]) -> list[Engine]:
        """Return those with a stream that all processes share; of them, the one asked for."""
        if options["stored"]:
            return []
        alias = options["using"]
        asked = [locks[alias]] if alias is not None else locks.all()
        return [engine for engine in asked if not engine.events_in_process]


class Progress:
    """Says how far it is: in place on a terminal, else a line now and then."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out
        self._in_place = out.isatty()
        self._every_s = 0.2 if self._in_place else 10.0
        self._next = time.monotonic() + self._every_s
        self._shown = False

    def __call__(self, seen: int, done: float) -> None:
        """Tell, unless that was done a moment ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        start, end = ("\r", "") if self._in_place else ("", "\n")
        self._out.write(f"{start}{seen} events, {done:.0%} of the table", str, end)
        self._out.flush()
        self._shown = self._in_place

    def clear(self) -> None:
        """Make room for something else."""
        if self._shown:
            self._out.write("\r\x1b[K", str, "")
            self._out.flush()
            self._shown = False


def moment(text: str) -> datetime:
    """Read a moment from the command line: a date or time in the current zone, or how long ago."""
    try:
        if ago := _AGO.fullmatch(text):
            return timezone.now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        when = parse_datetime(text)
        if when is None and (day := parse_date(text)):
            when = datetime(day.year, day.month, day.day)
    except (ValueError, OverflowError):  # before there were years
        when = None
    if when is None:
        raise ArgumentTypeError(f"{text!r} is neither ISO 8601 nor such as 90min, 24h, 7d")
    naive_wanted = timezone.is_naive(timezone.now())  # USE_TZ is off
    if timezone.is_naive(when):
        return when if naive_wanted else timezone.make_aware(when)
    return timezone.make_naive(when) if naive_wanted else when


def _line(found: Found) -> str:
    kind, name, about, at_us = found.fault
    where = found.alias if not found.shard else f"{found.alias}/{found.shard}"
    at = f"{_at(at_us):%Y-%m-%d %H:%M:%S.%f} UTC"
    return "  ".join(filter(None, (kind, printable(name), about, f"({where}, {at})")))


def _plain(found: Found) -> dict[str, Any]:
    kind, name, about, at_us = found.fault
    return {
        "engine": found.alias,
        "shard": found.shard,
        "kind": kind,
        "name": name,
        "about": about,
        "at": _at(at_us).isoformat(),
    }


def _at(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
