"""``revoke`` asks a holder to let go; ``release`` takes the lock away from it.

Invariant: both name the fence that was shown, so that nobody else is asked or loses the lock when
it changed hands meanwhile.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from lockapp.core.values import ForceOutcome
from lockapp.dashboard.snapshot import Holder, LiveLock, printable
from lockapp.engines.base import Engine
from lockapp.management.subcommands.base import (
    NOTHING,
    USAGE,
    Subcommand,
    changed,
    engine_of,
    held,
    not_held,
    positive,
)


class Ending(Subcommand):
    """What the two have in common: one lease, by its fence, and a reason."""

    json_too = True
    makes_events = True
    purpose: ClassVar[str]
    """What is done to the lease, as an infinitive."""

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        parser.add_argument("name", help="the lock's name, as list prints it")
        parser.add_argument("--fence", type=positive, help=f"of the lease {cls.purpose}, as shown")
        parser.add_argument("--reason", help="for the audit log and for the holder")

    @abstractmethod
    def confirm(self, options: dict[str, Any], lock: LiveLock, holder: Holder) -> None:
        """Ask whether it is meant.

        Raises:
            CommandError: it is not.
        """

    @abstractmethod
    def act(self, engine: Engine, name: str, fence: int, reason: str) -> ForceOutcome:
        """Do it to the lease with this fence."""

    @abstractmethod
    def done(self, name: str) -> str:
        """Say that it was done."""

    def run(self, options: dict[str, Any]) -> None:
        """See Subcommand."""
        engine, name, fence = engine_of(options), options["name"], options["fence"]
        lock = held(engine, name)
        if fence is None:
            if not options["json"]:
                self.print_lock(lock)
            raise CommandError(
                f"Say which lease {self.purpose}, so that nobody else is meant by it:"
                + "".join(f"\n  {self._again(options, lock, it.fence)}" for it in lock.holders),
                returncode=USAGE,
            )
        reason = (options["reason"] or "").strip()
        if not reason:
            raise CommandError("Give a --reason; it is kept in the audit log.", returncode=USAGE)
        holder = next((each for each in lock.holders if each.fence == fence), None)
        if holder is not None:
            self.confirm(options, lock, holder)
            outcome = self.act(engine, lock.name, fence, reason)
        else:
            outcome = ForceOutcome.CHANGED
        if options["json"]:
            self.print_json({"name": lock.name, "fence": fence, "outcome": outcome.value})
        if outcome is ForceOutcome.NOT_HELD:
            raise not_held(name)
        if outcome is ForceOutcome.CHANGED:
            raise changed(name, fence)
        if not options["json"]:
            self.stdout.write(self.style.SUCCESS(self.done(printable(lock.name))))

    def _again(self, options: dict[str, Any], lock: LiveLock, fence: int) -> str:
        command = ["python", "manage.py", "lockapp", self.name, lock.name]
        if options["using"]:
            command += ["--using", options["using"]]
        command += ["--fence", str(fence), "--reason", options["reason"] or "…"]
        return shlex.join(command)


class Release(Ending):
    """Take a lock away, if it is still held with the fence that was shown."""

    name = "release"
    help = "Take a lock away from the holder with this fence."
    purpose = "to end"

    @classmethod
    def declare(cls, parser: CommandParser) -> None:
        """See Subcommand."""
        super().declare(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def confirm(self, options: dict[str, Any], lock: LiveLock, holder: Holder) -> None:
        """See Ending."""
        if options["yes"]:
            return
        if options["json"] or not sys.stdin.isatty():
            raise CommandError("Add --yes to do this without being asked.", returncode=USAGE)
        self.print_lock(replace(lock, holders=(holder,)))
        self.stdout.write("The holder may still be at work; it is told, but need not listen.")
        try:
            answer = input("Take the lock away? [y/N] ")
        except EOFError:  # Ctrl-D
            answer = ""
            self.stdout.write()
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.", returncode=NOTHING)

    def act(self, engine: Engine, name: str, fence: int, reason: str) -> ForceOutcome:
        """See Ending."""
        return engine.force_release(name, fence, actor=_actor(), reason=reason)

    def done(self, name: str) -> str:
        """See Ending."""
        return f"{name} was taken away from its holder."


class Revoke(Ending):
    """Ask a holder to let go. Nothing is taken away, so nobody is asked to confirm it."""

    name = "revoke"
    help = "Ask the holder with this fence to let go; it keeps the lock until it does."
    purpose = "is meant"

    def confirm(self, options: dict[str, Any], lock: LiveLock, holder: Holder) -> None:
        """See Ending."""

    def act(self, engine: Engine, name: str, fence: int, reason: str) -> ForceOutcome:
        """See Ending."""
        return engine.revoke(name, fence, actor=_actor(), reason=reason)

    def done(self, name: str) -> str:
        """See Ending."""
        return (
            f"The holder of {name} was asked to let go. It keeps the lock until it does; "
            "show tells whether it knows."
        )


def _actor() -> str:
    """Return who runs this, for the audit log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return f"uid {os.getuid()}"
