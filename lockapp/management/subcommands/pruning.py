"""``prune`` removes what is kept for a time only.

Invariant: events, holds and fences are removed only by an age that was given.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS
from django.utils import timezone

from lockapp.management.subcommands.base import Subcommand, positive
from lockapp.models import Fence, IdempotencyRecord, LockEvent, LockHold
from lockapp.querysets import BATCH, Progress, prune

TELL_S = 5.0
"""Between two lines that say how far it is."""
BY_AGE: dict[str, tuple[str, Any]] = {
    "events": ("lock events", LockEvent),
    "holds": ("lock holds", LockHold),
    "fences": ("fences", Fence),
}


class Prune(Subcommand):
    """Remove what has expired, and what is older than so many days."""

    name = "prune"
    help = (
        "Remove expired idempotency records from a database and, where an age is given, older "
        "events, holds and fences; a batch at a time."
    )
    engine_too = False
    json_too = True

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, metavar="ALIAS", help="as in DATABASES"
        )
        for key, (what, _) in BY_AGE.items():
            text = f"remove also {what} that are older"
            parser.add_argument(f"--{key}", type=days, metavar="DAYS", help=text)
        parser.add_argument(
            "--batch", type=positive, default=BATCH, metavar="ROWS", help="at a time (default 1000)"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say how many there are")

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        found: dict[str, int] = {}
        for key, what, rows in _old(options):
            if options["dry_run"]:
                found[key] = rows.count()
            else:
                found[key] = prune(rows, options["batch"], self._teller(what, options["json"]))
            if not options["json"]:
                would = "would be " if options["dry_run"] else ""
                self.stdout.write(f"{found[key]} {what} {would}removed")
        if options["json"]:
            self.print_json(found)

    def _teller(self, what: str, quiet: bool) -> Progress:
        told = time.monotonic()

        def tell(removed: int) -> None:
            nonlocal told
            if not quiet and time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                self.stdout.write(f"… {removed} {what} so far")
                self.stdout.flush()

        return tell


def days(text: str) -> int:
    """Read an age from the command line."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 100_000):
        raise ArgumentTypeError(f"{text!r} is not a number of days from 1 to 99999")
    return int(text)


def _old(options: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield what is to be removed: a key for programs, what it is, and the rows."""
    using = options["database"]
    yield "records", "expired idempotency records", IdempotencyRecord.objects.using(using).expired()
    for key, (what, model) in BY_AGE.items():
        if options[key] is not None:
            before = timezone.now() - timedelta(days=options[key])
            yield key, what, model.objects.using(using).before(before)
