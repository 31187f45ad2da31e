"""The memory server's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from lockapp.engines.clock import boot_clock


def steady_clock_us() -> Callable[[], int]:
    """Return a clock of epoch microseconds that starts right and can't be set back."""
    offset = time.time() - boot_clock()
    return lambda: int((boot_clock() + offset) * 1_000_000)
