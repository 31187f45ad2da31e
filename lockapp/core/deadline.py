"""How long a holder may rely on a lease: arithmetic on its own clock.

All times here are seconds on one process's boot clock, except those ending in ``_ms``, which are
the server's epoch milliseconds and only ever appear as differences.

Timeline of a grant that arrived while waiting::

    c0   our clock when the request was sent whose reply said "queued, server time S"
    …    the lock is handed to us with deadline D (server clock)
    now  we read the grant: it is worth c0 + (D − S) − drift(D − S), because the reply can't have
         been sent before c0, so the server clock reads D no earlier than that
"""

from __future__ import annotations

DRIFT_FRACTION = 0.01
DRIFT_S = 0.002
"""1 % + 2 ms: clocks run at different rates, and the server counts in whole milliseconds.
Source: the Redis manual's Redlock page (``CLOCK_DRIFT_FACTOR`` 0.01 and 2 ms)."""


def drift_s(life_s: float) -> float:
    """Return how much of ``life_s`` seconds must be given away to clock drift."""
    return life_s * DRIFT_FRACTION + DRIFT_S


def valid_until(sent_at: float, now_ms: int, deadline_ms: int) -> float:
    """Return until when (own clock, seconds) a lease may be relied on.

    Args:
        sent_at: own clock *before* the request was sent whose reply carried ``now_ms``.
        now_ms: the server's clock in that reply.
        deadline_ms: when the server ends the lease.
    """
    life_s = (deadline_ms - now_ms) / 1000
    return sent_at + life_s - drift_s(life_s)


def slice_s(
    *,
    left_s: float | None,
    lease_left_ms: int,
    position: int,
    slice_ms: int,
    stagger_ms: int,
    stagger_max_ms: int,
) -> float:
    """Return how long (seconds) to block on the inbox before asking again.

    Whichever comes first: the present lease's end (staggered by position, so that a queue does
    not ask all at once), a full slice (to be seen alive), the end of the caller's patience.
    """
    stagger = min(position * stagger_ms, stagger_max_ms)
    wanted = min(max(lease_left_ms, 0) + stagger, slice_ms) / 1000
    if left_s is not None:
        wanted = min(wanted, left_s)
    return max(wanted, 0.001)
