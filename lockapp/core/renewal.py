"""When to renew a lease next: pure functions of times and a random number.

A lease is renewed three times within its life, so that two renewals may fail before it is lost;
after a failure it is tried again soon, until the deadline: one failed renewal is not a loss.
"""

from __future__ import annotations

RENEWALS_PER_TTL = 3
JITTER = 0.1
RETRY_S = 0.25


def renew_at(now: float, life_s: float, chance: float) -> float:
    """Return when to renew a lease that has ``life_s`` seconds left.

    Args:
        now: own clock, seconds.
        life_s: what is left of the lease.
        chance: a random number in [0, 1); spreads the renewals of leases taken together.
    """
    return now + life_s / RENEWALS_PER_TTL * (1 - JITTER * chance)


def retry_at(now: float, valid_until: float) -> float:
    """Return when to try again after a failed renewal: soon, and more often near the end."""
    return min(now + RETRY_S, now + max((valid_until - now) / 4, 0.01))
