"""Subcommand: one word after ``manage.py lockapp``; exit codes and values that they share."""

from __future__ import annotations

import json
import os
import select
import signal
from abc import ABC, abstractmethod
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from lockapp.audit.sink import EventSink
from lockapp.dashboard.snapshot import LiveLock, one_lock, printable
from lockapp.engines.base import Engine
from lockapp.handler import locks
from lockapp.management import terminal

NOTHING, USAGE, UNAVAILABLE, DATABASE, FOUND = 1, 2, 3, 4, 5
"""Exit codes: nothing was done; asked in a wrong way; no engine; no database; faults were found."""


class Subcommand(ABC):
    """One word: its arguments and what it does. Writes through the command that Django runs."""

    name: ClassVar[str]
    help: ClassVar[str]
    json_too: ClassVar[bool] = False
    engine_too: ClassVar[bool] = True
    makes_events: ClassVar[bool] = False
    """Whether it does something to locks, of which there should be a record."""

    def __init__(self, command: BaseCommand) -> None:
        self.stdout = command.stdout
        self.stderr = command.stderr
        self.style = command.style

    @classmethod  # noqa: B027 - not every word has some
    def declare(cls, parser: CommandParser) -> None:
        """Declare the arguments that only this one has."""

    @abstractmethod
    def run(self, options: dict[str, Any]) -> None:
        """Do it.

        Raises:
            CommandError: it could not be done; the exit code says why.
        """

    def print_json(self, value: object) -> None:
        """Write JSON as people and programs read it."""
        self.stdout.write(json.dumps(value, ensure_ascii=False, indent=2))

    def print_lock(self, lock: LiveLock) -> None:
        """Write all that is known of a lock's holders."""
        self.stdout.write(self.style.MIGRATE_HEADING(printable(lock.name)))
        for line in terminal.facts(lock):
            self.stdout.write(line)

    def print_table(self, head: Sequence[str], rows: list[tuple[str, ...]]) -> None:
        """Write rows in columns."""
        lines = terminal.table(head, rows)
        self.stdout.write(self.style.MIGRATE_HEADING(next(lines)))
        for line in lines:
            self.stdout.write(line)


def engine_of(options: dict[str, Any]) -> Engine:
    """Return the engine asked for, or the first."""
    alias = options["using"]
    return locks[alias if alias is not None else next(iter(locks))]


def held(engine: Engine, name: str) -> LiveLock:
    """Return a lock that is held.

    Raises:
        CommandError: nobody holds it.
    """
    lock = one_lock(engine, name)
    if lock is None:
        raise not_held(name)
    return lock


def not_held(name: str) -> CommandError:
    """Say that nobody holds it."""
    return CommandError(f"Nobody holds {printable(name)}; nothing was done.", returncode=NOTHING)


def changed(name: str, fence: int) -> CommandError:
    """Say that somebody else holds it by now."""
    return CommandError(
        f"{printable(name)} is no longer held with fence {fence}; nothing was done.",
        returncode=NOTHING,
    )


@contextmanager
def recorded(command: BaseCommand) -> Iterator[None]:
    """Store, at the end, the events that engines without a stream have left in this process."""
    sink = EventSink().start()
    try:
        yield
    finally:
        if not sink.stop():
            command.stderr.write("What was done is not in the audit log: it could not be stored.")


class Word:
    """Whether SIGTERM or Ctrl-C has come.

    Not a threading.Event: a handler that strikes its thread in the middle of ``wait()`` would wait
    in ``set()`` for a lock that this very thread holds.
    """

    def __init__(self) -> None:
        self.come = False
        self._read, self._write = os.pipe()

    def tell(self, *_: object) -> None:
        """Be the handler of a signal."""
        if not self.come:
            self.come = True
            os.write(self._write, b".")

    def wait(self, seconds: float) -> None:
        """Return when it comes, or after so long; at once if it has come."""
        select.select([self._read], [], [], seconds)

    def close(self) -> None:
        """Give back what it uses. Not to be told any more by then."""
        os.close(self._read)
        os.close(self._write)


@contextmanager
def until_told() -> Iterator[Word]:
    """Yield what tells whether SIGTERM or Ctrl-C has come, for who goes on until told to end.

    Nothing is interrupted: it is looked at between two rounds, and ends a wait at once.
    """
    word = Word()
    former = {
        number: signal.signal(number, word.tell) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield word
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        word.close()


def positive(text: str) -> int:
    """Read a whole number from the command line."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """Read a length of time from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return value
