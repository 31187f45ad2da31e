"""What to do when the engine did not answer: pure decisions.

A caller who has not had one answer yet must learn quickly that the engine is down ("down" is not
"busy", and nobody should pay ``wait`` to find out). A waiter that already stands in the queue is
in another position: a failover or restart in mid-wait only means asking again. That the circuit
breaker is open ("open") is one more way to learn that the engine is down, and treated alike.
"""

from __future__ import annotations

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


def pause_s(reason: str, attempt: int, *, answered: bool, left_s: float | None) -> float | None:
    """Return how long to pause before asking again, or None to give up.

    Args:
        reason: ``EngineUnavailable.reason``.
        attempt: failures in a row so far, this one included (1 or more).
        answered: whether the engine answered this acquisition before.
        left_s: how much of the time to wait is left; None for no end.
    """
    if reason == "refused":
        return None
    if reason == "reset" and attempt == 1:
        return 0.0  # most likely an idle connection that a server restart had closed
    if left_s is not None and left_s <= 0:
        return None
    if not answered and reason != "transient":
        return None
    pause: float = min(FIRST_PAUSE_S * 2 ** min(attempt - 1, 10), LONGEST_PAUSE_S)
    return pause if left_s is None else min(pause, left_s)
