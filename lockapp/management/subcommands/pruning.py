"""``prune`` removes what is kept for a time only and has expired."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS

from lockapp.management.subcommands.base import Subcommand
from lockapp.models import IdempotencyRecord


class Prune(Subcommand):
    """Remove expired idempotency records."""

    name = "prune"
    help = "Remove expired idempotency records from a database, a batch at a time."
    engine_too = False

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, metavar="ALIAS", help="as in DATABASES"
        )

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        removed = IdempotencyRecord.objects.using(options["database"]).prune()
        self.stdout.write(f"{removed} expired idempotency records removed")
