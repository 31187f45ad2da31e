"""``manage.py lockapp WORD``: at a terminal. The words are in ``lockapp.management.subcommands``.

Exit codes: 0 done; 1 nothing was done, or nobody holds the lock; 2 asked in a wrong way; 3 the
engine could not be asked; 4 the database failed; 5 something is wrong (verify, doctor).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from lockapp.exceptions import EngineError
from lockapp.management.subcommands.base import (
    DATABASE,
    UNAVAILABLE,
    USAGE,
    Subcommand,
    recorded,
)
from lockapp.management.subcommands.collecting import Collect, Sweep
from lockapp.management.subcommands.doctoring import Doctor
from lockapp.management.subcommands.ending import Release, Revoke
from lockapp.management.subcommands.live import List, Show
from lockapp.management.subcommands.pruning import Prune
from lockapp.management.subcommands.verifying import Verify
from lockapp.management.subcommands.watching import Watch

WORDS = (List, Show, Watch, Revoke, Release, Collect, Sweep, Verify, Prune, Doctor)
SUBCOMMANDS: dict[str, type[Subcommand]] = {each.name: each for each in WORDS}


class Command(BaseCommand):
    """Look at locks, ask a holder to let go, take one away, store lock events, prune."""

    help = "Look at live locks, ask a holder to let go, take a lock away, store lock events."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for name, each in SUBCOMMANDS.items():
            command: CommandParser = commands.add_parser(
                name, help=each.help, description=each.help
            )
            if each.engine_too:
                command.add_argument("--using", metavar="ALIAS", help="the engine, as in LOCKAPP")
            if each.json_too:
                command.add_argument("--json", action="store_true", help="print JSON")
            each.declare(command)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand; turn what fails into a message and an exit code."""
        subcommand = SUBCOMMANDS[options["command"]](self)
        try:
            with recorded(self) if subcommand.makes_events else nullcontext():
                subcommand.run(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=USAGE) from error
        except EngineError as error:
            raise CommandError(
                f"Could not ask the engine: {error}", returncode=UNAVAILABLE
            ) from error
        except DatabaseError as error:
            raise CommandError(f"The database failed: {error}", returncode=DATABASE) from error
