"""kazoo's errors → ours. The one place that translates."""

from __future__ import annotations

from kazoo import exceptions as zk

from lockapp.exceptions import EngineError, EngineUnavailable

REFUSED = (zk.NoAuthError, zk.AuthFailedError, zk.InvalidACLError, zk.NotReadOnlyCallError)
RESET = (
    zk.ConnectionLoss,
    zk.ConnectionClosedError,
    zk.SessionExpiredError,
    zk.SessionMovedError,
)
SAID = {
    "connect": "can't connect",
    "open": "not asked, since it has not answered for a while",
    "timeout": "no answer in time",
    "reset": "the connection broke",
    "refused": "the server refuses",
}


def unavailable(alias: str, reason: str, detail: object = "") -> EngineUnavailable:
    """Make the error for a request that got no answer, or "no"."""
    said = SAID[reason]
    return EngineUnavailable(
        f"lock engine {alias!r}: {said}{f' ({detail})' if detail else ''}",
        alias=alias, reason=reason,
    )  # fmt: skip


def translated(error: Exception, alias: str) -> EngineError:
    """Translate what kazoo raised for a request that had been handed to it."""
    detail = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, RESET):
        return unavailable(alias, "reset", detail)
    if isinstance(error, zk.OperationTimeoutError):
        return unavailable(alias, "timeout", detail)
    if isinstance(error, REFUSED):
        return unavailable(alias, "refused", detail)
    return EngineError(f"lock engine {alias!r}: {detail}", alias=alias)
