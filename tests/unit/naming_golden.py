"""Read golden/names.json and compute its names again; run as a program it prints them.

The program is for a second interpreter with another hash seed, locale, time zone or version. It
sets a coarse decimal context first: names must not depend on that either.
"""

from __future__ import annotations

import decimal
import json
import sys
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from lockapp.naming import call_name, lock_name, name_digest

GOLDEN = Path(__file__).parent / "golden" / "names.json"


class Colour(Enum):
    RED = 1


class Status(str, Enum):  # noqa: UP042 - the shape of Django's TextChoices
    PAID = "paid"


class Level(IntEnum):
    HIGH = 3


class Right(Flag):
    READ = 1
    WRITE = 2


class AutumnNight(tzinfo):
    """A zone in the night when summer time ends; needs no time zone database."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1 if moment is not None and moment.fold else 2)

    def dst(self, moment: datetime | None) -> timedelta:
        return self.utcoffset(moment) - timedelta(hours=1)

    def tzname(self, moment: datetime | None) -> str:
        return "autumn"


def row(label: str, pk: object, concrete: str | None = None) -> Any:
    """Return what naming sees of a model instance."""
    real = SimpleNamespace(_meta=SimpleNamespace(label_lower=concrete or label))
    return SimpleNamespace(_meta=SimpleNamespace(label_lower=label, concrete_model=real), pk=pk)


_WORDS = {
    "Colour": Colour,
    "Decimal": Decimal,
    "Level": Level,
    "Right": Right,
    "Status": Status,
    "UUID": UUID,
    "autumn": AutumnNight(),
    "date": date,
    "datetime": datetime,
    "row": row,
    "time": time,
    "timedelta": timedelta,
    "timezone": timezone,
}


def value_of(expression: str) -> Any:
    """Evaluate the Python expression of a golden line."""
    return eval(expression, {"__builtins__": {"frozenset": frozenset}}, _WORDS)


def compute(golden: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the golden file's content with every name computed anew."""
    return {
        "lock_name": {line: lock_name(*value_of(f"({line},)")) for line in golden["lock_name"]},
        "call_name": {line: call_name(*value_of(f"({line},)")) for line in golden["call_name"]},
        "name_digest": {name: name_digest(name) for name in golden["name_digest"]},
    }


def load() -> dict[str, dict[str, str]]:
    """Return the golden file."""
    content: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    decimal.getcontext().prec = 2
    sys.stdout.write(json.dumps(compute(load())))
