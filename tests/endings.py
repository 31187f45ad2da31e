"""How a test ends an engine whose servers it is about to stop."""

from __future__ import annotations

import threading

from lockapp.engines.base import Engine
from tests.timing import wait_until


def end(engine: Engine) -> None:
    """Close it and wait until its watchdog has ended: it may be in the middle of connecting."""
    engine.close()
    name = f"lockapp-watchdog-{engine.alias}"
    wait_until(
        lambda: all(each.name != name for each in threading.enumerate()),
        limit_s=60, every_s=0.05, what="the watchdog to end",
    )  # fmt: skip
