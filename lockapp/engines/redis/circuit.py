"""The circuit breaker of one engine in one process: guarded, and heard of.

Shared by the blocking port and those of all event loops: they speak to one server, and what one
of them has found out nobody else has to pay for. Asked only by who has no open connection to use,
and told only of connections made and of answers that did not come; an exchange that succeeds on an
open connection passes it by.

A connection that *broke* (a reset) is not told: a server that restarts breaks all of them at once
and is back. Whether it is, the next attempt to connect says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from lockapp.core.breaker import LONGEST_COOL_DOWN_S, Breaker
from lockapp.core.chance import chance
from lockapp.core.options import EngineOptions
from lockapp.core.values import Outage
from lockapp.engines.clock import boot_clock
from lockapp.exceptions import EngineError, EngineUnavailable

logger = logging.getLogger("lockapp")

SILENT = ("connect", "timeout")
"""Reasons that speak of a server that did not answer; every other error is an answer."""


def _nobody(kind: str, subject: Any) -> None:
    """Observe nothing."""


class Circuit:
    """Says who may connect, and tells once when a server stops answering and when it is back."""

    def __init__(
        self,
        alias: str,
        options: EngineOptions,
        observe: Callable[[str, Any], None] = _nobody,
        longest_s: float = LONGEST_COOL_DOWN_S,
    ) -> None:
        self._alias = alias
        self._observe = observe
        self._breaker = Breaker(
            (options.connect_timeout_ms + options.command_timeout_ms) / 1000, longest_s
        )
        self._timeout_s = options.command_timeout_ms / 1000
        # Reentrant: a signal handler that takes a lock may strike a thread that is in here.
        self._guard = threading.RLock()
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether callers are refused."""
        return self._breaker.is_open

    def admit(self) -> None:
        """Do nothing if a caller may connect now.

        Raises:
            EngineUnavailable: not now; the reason is ``"open"``, and nothing was sent.
        """
        if not self._breaker.is_open:
            return
        with self._guard:
            admitted = self._breaker.admits(boot_clock())
        if not admitted:
            raise EngineUnavailable(
                f"lock engine {self._alias!r}: not asked, since it has not answered "
                f"for a while ({self._reason}); one attempt is made every few seconds",
                alias=self._alias,
                reason="open",
            )

    def failed(self, error: EngineError) -> EngineError:
        """Take note of what came instead of a connection or a reply; return it."""
        reason = error.fields.get("reason", "")
        if reason not in SILENT:
            if reason != "reset":
                self.worked()
            return error
        with self._guard:
            took_s = self._timeout_s if reason == "timeout" else 0.0
            opened = self._breaker.failed(boot_clock(), chance.random(), took_s)
            self._reason = reason
        if opened:
            logger.error(
                "%s; from now on callers are refused at once until it answers again", error,
                extra={"lockapp_alias": self._alias, "lockapp_reason": reason},
            )  # fmt: skip
            self._observe("unavailable", Outage(self._alias, reason, 0.0))
        return error

    def worked(self) -> None:
        """Take note of a connection on which the server has answered."""
        with self._guard:
            seconds = self._breaker.worked(boot_clock())
        if seconds is not None:
            logger.warning(
                "lock engine %r answers again, after %.1f s", self._alias, seconds,
                extra={"lockapp_alias": self._alias, "lockapp_outage_s": seconds},
            )  # fmt: skip
            self._observe("restored", Outage(self._alias, self._reason, seconds))
