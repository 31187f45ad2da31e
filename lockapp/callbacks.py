"""What is called when a lease is lost, or asked for: which values are allowed, and how they run.

Invariant: each callback of a lease is called once, whoever finds out first, also one that comes
after the event; and none of them can stop another, or whoever calls them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from lockapp.core.interruption import is_interruption

if TYPE_CHECKING:
    from lockapp.lease import Lease

logger = logging.getLogger("lockapp")

Callback = Callable[["Lease"], object]
OnLost = Callback | Literal["raise"] | None
"""What may be declared as ``on_lost``."""
OnRevoke = Callback | None
"""What may be declared as ``on_revoke``."""

RAISE: Literal["raise"] = "raise"
"""Leaving a ``with`` block raises LeaseLost if the lease was lost and the body raised nothing."""


def on_lost_option(value: Any) -> OnLost:
    """Return a declared ``on_lost`` if it makes sense.

    Raises:
        TypeError, ValueError: it does not; the message says what does.
    """
    if value is None or value == RAISE:
        return value  # type: ignore[no-any-return]
    return _function(value, "on_lost", "'raise', None or a function that takes the lease")


def on_revoke_option(value: Any) -> OnRevoke:
    """Return a declared ``on_revoke`` if it makes sense.

    Raises:
        TypeError, ValueError: it does not; the message says what does.
    """
    if value is None:
        return None
    return _function(value, "on_revoke", "None or a function that takes the lease")


def _function(value: Any, argument: str, allowed: str) -> Callback:
    if isinstance(value, str):
        raise ValueError(f"{argument} must be {allowed}, not {value!r}")
    if not callable(value):
        raise TypeError(f"{argument} must be {allowed}, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(
            f"{argument} must be a plain function, and {value!r} is asynchronous: nobody would "
            "await it. Have a plain one start a task, or set an event"
        )
    return value  # type: ignore[no-any-return]


def call_all(callbacks: list[Callback], lease: Lease) -> None:
    """Call each once and forget it. Safe to run twice at once: each is taken before it is called.

    What it raises is logged. That includes ``sys.exit()``, which would end the watchdog's thread
    instead of the process, and the CancelledError of a future that it looked at, which would end
    the watchdog's task: nothing suspends here, so it is nobody's cancellation. A soft time limit
    that strikes in it goes on to the caller, and so does Ctrl-C.
    """
    while callbacks:
        try:
            callback = callbacks.pop(0)
        except IndexError:  # somebody else took the last one
            return
        try:
            callback(lease)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_interruption(error):
                raise
            logger.exception("a callback of the lease of %s failed", lease.name)
