"""This process's clock: monotonic, and running while the machine sleeps.

``time.monotonic`` stands still during suspend on Linux: a laptop or virtual machine that wakes
up would believe in a lease that ended hours ago. CLOCK_BOOTTIME goes on. Where there is none
(macOS, Windows) CLOCK_MONOTONIC or ``time.monotonic`` serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_ID = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

boot_clock = time.monotonic if _ID is None else partial(time.clock_gettime, _ID)
"""Seconds since some fixed moment."""


def steady_clock_us() -> Callable[[], int]:
    """Return a clock of epoch microseconds that starts right and can't be set back."""
    offset = time.time() - boot_clock()
    return lambda: int((boot_clock() + offset) * 1_000_000)
