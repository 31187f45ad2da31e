"""A circuit breaker: who may still try to reach a server that has stopped answering.

Theory of operation
-------------------
===========  ==========================================  ======================================
state        who may connect                             what ends it
===========  ==========================================  ======================================
closed       everybody                                   ``FAILURES`` failures in a row: opens
open         nobody until the cool-down is over, then     a connection: closes
             one caller, the probe                       a failure: open for twice as long
===========  ==========================================  ======================================

A probe of which nothing is heard (its caller was cancelled) counts for as long as an attempt can
take; then the next one may go. Attempts of which nobody asks here (the watchdog's, which must not
be refused) count as well: their success closes, and one that fails after the cool-down renews it.

Pure: the clock and the random number are passed in, and whoever shares a breaker between threads
guards it.
"""

from __future__ import annotations

FAILURES = 3
"""Failures in a row that open it: one may be a lost packet, two a server that restarts; a third
one after those is an outage, and until then nobody has paid for more than three."""
MEMORY_S = 60.0
"""Failures further apart than this are not in a row: what succeeded meanwhile on connections that
were already there is not told here."""
FIRST_COOL_DOWN_S = 1.0
"""As long as a connect timeout by default: callers pay for it at most half of the time."""
LONGEST_COOL_DOWN_S = 5.0
"""So long, at most, does a server that is back stay unasked."""
JITTER = 0.2
"""By how much a cool-down is shortened at most, so that processes don't probe at one moment."""


class Breaker:
    """The state of one server as one process sees it."""

    def __init__(self, attempt_s: float, longest_s: float = LONGEST_COOL_DOWN_S) -> None:
        """Start closed.

        Args:
            attempt_s: how long an attempt to connect can take.
            longest_s: the longest cool-down.
        """
        self._attempt_s = attempt_s
        self._longest_s = longest_s
        self._failures = 0
        self._first_failure = self._last_failure = float("-inf")
        self._cool_down_s = 0.0
        self._probe_at = 0.0
        self._probing = False
        self.is_open = False

    def admits(self, now: float) -> bool:
        """Whether a caller may connect at ``now``; True to the first one makes it the probe."""
        if not self.is_open:
            return True
        if now < self._probe_at:
            return False
        self._probing = True
        self._probe_at = now + self._attempt_s
        return True

    def failed(self, now: float, chance: float, took_s: float = 0.0) -> bool:
        """Take note of an attempt that got no answer; return whether that opened it.

        Args:
            now: own clock, seconds.
            chance: a random number in [0, 1).
            took_s: how long it took at least. Attempts that were under way together fail together,
                and are one failure.
        """
        if self.is_open:
            if self._probing or now >= self._probe_at:
                self._cool(now, min(self._cool_down_s * 2, self._longest_s), chance)
            return False
        if now - took_s < self._last_failure:
            return False
        if now - self._last_failure > MEMORY_S:
            self._failures = 0
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        self._last_failure = now
        if self._failures < FAILURES:
            return False
        self.is_open = True
        self._cool(now, min(FIRST_COOL_DOWN_S, self._longest_s), chance)
        return True

    def worked(self, now: float) -> float | None:
        """Take note of an answer; return how long the outage was, in seconds, if that ended one."""
        was_open, self.is_open = self.is_open, False
        self._failures = 0
        self._probing = False
        return now - self._first_failure if was_open else None

    def _cool(self, now: float, cool_down_s: float, chance: float) -> None:
        self._probing = False
        self._cool_down_s = cool_down_s
        self._probe_at = now + cool_down_s * (1 - JITTER * chance)
