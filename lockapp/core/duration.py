"""Durations as users give them → whole milliseconds, validated where they are declared.

A lock with a negative, boolean, textual or infinite ttl is a bug that shows itself at three in
the morning; here it shows itself in the line that wrote it.
"""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

Seconds = float | int | timedelta

LONGEST_S = 10 * 365 * 86_400.0  # ten years; more is a unit mistake (milliseconds given as seconds)
TOO_LITTLE_MS = Decimal("1e-6")  # a billionth of a second, which floats add that nobody meant


def to_ms(value: object, argument: str, *, zero: bool = False) -> int:
    """Return ``value`` (seconds or timedelta) in whole milliseconds, rounded up.

    Args:
        value: a number of seconds or a timedelta.
        argument: the name to blame in an error.
        zero: whether 0 is allowed.

    Raises:
        TypeError: not a number and not a timedelta (``True`` and ``"30"`` included).
        ValueError: negative, zero where it means nothing, nan, infinite or over ten years.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{argument} must be seconds (a number) or a timedelta, not {value!r} "
            f"({type(value).__name__})"
        )
    else:
        seconds = float(value)
    if math.isnan(seconds) or not seconds <= LONGEST_S:
        raise ValueError(f"{argument} must be a finite number of seconds, not {value!r}")
    if seconds < 0 or (seconds == 0 and not zero):
        least = "0 or more" if zero else "more than 0"
        raise ValueError(f"{argument} must be {least} seconds, not {value!r}")
    # By the number as it is written: seconds * 1000 is off by more than this for years.
    return math.ceil(Decimal(repr(seconds)) * 1000 - TOO_LITTLE_MS)
