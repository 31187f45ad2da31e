"""``watch`` shows the locks that are held, and goes on showing them until told to end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from lockapp.dashboard.snapshot import Holder, LivePage, live_page
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError
from lockapp.management import terminal
from lockapp.management.screen import Frame, room, screen
from lockapp.management.subcommands.base import (
    Subcommand,
    engine_of,
    positive,
    seconds,
    until_told,
)


class Watch(Subcommand):
    """Show live locks, again and again.

    Each look costs the server three calls, however many locks are held.
    """

    name = "watch"
    help = "Watch the locks that are held, those that end first first; Ctrl-C ends it."

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS")
        parser.add_argument("--once", action="store_true", help="look once, as plain text")
        parser.add_argument(
            "--limit", type=positive, default=100,
            help="how many locks (default 100; on a terminal what fits)",
        )  # fmt: skip

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        engine = engine_of(options)
        if options["once"]:
            for line in _frame(live_page(engine, size=options["limit"])).lines():
                self.stdout.write(line)
            return
        color = not options["no_color"]
        with until_told() as word, screen(self.stdout, color=color) as draw:
            while not word.come:
                draw(_look(engine, min(options["limit"], room(self.stdout) or options["limit"])))
                word.wait(options["interval"])


def _look(engine: Engine, size: int) -> Frame:
    """Return what is to be seen now. An engine that does not answer is a sight, too."""
    try:
        return _frame(live_page(engine, size=size), size)
    except EngineError as error:
        title = f"{_heading(engine.alias)}  No answer: nothing is known of its locks."
        return Frame(title, below=str(error))


def _frame(page: LivePage, size: int | None = None) -> Frame:
    """Lay out a page.

    Args:
        page: the locks.
        size: rows at most; a lock of several holders has several.
    """
    rows = terminal.listed(page.locks)
    alarms = [_alarm(holder) for lock in page.locks for holder in lock.holders]
    shown = len(rows) if size is None else min(len(rows), size)
    waiting = sum(lock.waiting for lock in page.locks)
    title = [_heading(page.alias), f"{page.total} held" if page.locks else "No lock is held."]
    if waiting:
        title.append(f"{waiting} waiting")
    more = page.total > len(page.locks) or shown < len(rows)
    below = "… and more; list --limit shows them." if more else ""
    return Frame("  ".join(title), terminal.LISTED, rows[:shown], alarms[:shown], below)


def _heading(alias: str) -> str:
    return f"{alias}  {datetime.now():%H:%M:%S}"


def _alarm(holder: Holder) -> int:
    """A lease is renewed each third of its life: below two thirds a renewal is late."""
    if not holder.confirmed:  # a hand-over is given a few seconds only
        return 1
    return 0 if holder.percent >= 60 else 1 if holder.percent >= 30 else 2
