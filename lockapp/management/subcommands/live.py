"""``list`` and ``show``: who holds what, who waits, and who was asked to let go."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from lockapp.dashboard.snapshot import as_json, live_page
from lockapp.management import terminal
from lockapp.management.subcommands.base import Subcommand, engine_of, held, positive


class List(Subcommand):
    """List the locks that are held."""

    name = "list"
    help = "List the locks that are held, those that end first first."
    json_too = True

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument("--limit", type=positive, default=100, help="how many (default 100)")

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        page = live_page(engine_of(options), size=options["limit"])
        if options["json"]:
            self.print_json(as_json(page))
        elif not page.locks:
            self.stdout.write("No lock is held.")
        else:
            self.print_table(terminal.LISTED, terminal.listed(page.locks))
            if page.total > options["limit"]:
                self.stdout.write(f"… of {page.total} locks; --limit shows more.")


class Show(Subcommand):
    """Show one lock with its queue."""

    name = "show"
    help = "Show one lock: its holders, what they are asked, and who waits for it."
    json_too = True

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument("name", help="the lock's name, as list prints it")

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        lock = held(engine_of(options), options["name"])
        if options["json"]:
            self.print_json(as_json(lock))
            return
        self.print_lock(lock)
        if lock.waiters:
            self.stdout.write(f"\n{lock.waiting} waiting:")
            self.print_table(terminal.QUEUED, terminal.queued(lock))
