"""redis-py's errors and the server's → ours. The one place that translates.

Which of them say "ask again", which "no", and which leave open whether anything happened is
decided here; what to do about it is decided in ``core.backoff``.
"""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from lockapp.engines.redis.scripts import Script
from lockapp.exceptions import EngineError, EngineUnavailable, ScriptError

TRANSIENT = (
    "LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED", "MOVED", "ASK",
    "BUSY", "NOREPLICAS",
)  # fmt: skip
REFUSED_TYPES = (
    redis_errors.AuthenticationError,
    redis_errors.NoPermissionError,
    redis_errors.OutOfMemoryError,
)
REFUSED = (
    "allow-oom",
    "OOM", "MISCONF", "NOAUTH", "NOPERM", "WRONGPASS", "DENIED", "ERR max number of clients",
)  # fmt: skip
TRANSIENT_TYPES = (
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
    redis_errors.MovedError,
    redis_errors.AskError,
)
ANSWERS = (
    redis_errors.ResponseError,
    redis_errors.AuthenticationError,
    redis_errors.BusyLoadingError,
)
"""redis-py counts some of them among the failures of a connection."""
DEMOTED_TYPES = (redis_errors.ReadOnlyError, redis_errors.MasterDownError)
DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""Not LOADING: to Sentinels that is a sign of life, and the server stays what it is."""
LINE = re.compile(r"user_script:(\d+)")


def demoted(error: object) -> bool:
    """Whether a reply says that the server is no master (any more).

    Its address may lead to another one by now, so that its connections are of no more use.
    """
    if not isinstance(error, redis_errors.RedisError):
        return False
    return isinstance(error, DEMOTED_TYPES) or str(error).startswith(DEMOTED)


def unacked(alias: str, said: object, wanted: int) -> EngineUnavailable:
    """Say that too few replicas have what was granted; ``said`` is WAIT's reply."""
    return EngineUnavailable(
        f"lock engine {alias!r}: granted, but not acknowledged by as many replicas as "
        f"min_replicas_acked asks for ({said} of {wanted})",
        alias=alias,
        reason="unacked",
    )


def transport_error(error: BaseException, alias: str, *, sent: bool) -> EngineError:
    """Translate a failure of the connection.

    Args:
        error: what redis-py or the socket raised.
        alias: the engine, for the message.
        sent: whether the request may have left this process.
    """
    if isinstance(error, ANSWERS):
        return server_error(error, alias, None)
    if not sent:
        reason = "connect"
    elif isinstance(error, TimeoutError | redis_errors.TimeoutError):
        reason = "timeout"
    else:
        reason = "reset"
    said = {
        "connect": "can't connect",
        "timeout": "no answer in time",
        "reset": "the connection broke",
    }[reason]
    return EngineUnavailable(
        f"lock engine {alias!r}: {said} ({type(error).__name__}: {error})",
        alias=alias,
        reason=reason,
    )


def server_error(error: redis_errors.RedisError, alias: str, script: Script | None) -> EngineError:
    """Translate an error reply.

    It means that the step was not carried out, with one exception: a script that failed in its
    middle, which is a bug (``ScriptError``).
    """
    message = str(error)
    if isinstance(error, TRANSIENT_TYPES) or message.startswith(TRANSIENT):
        reason = "transient"
    elif isinstance(error, REFUSED_TYPES) or any(word in message for word in REFUSED):
        reason = "refused"
    else:
        return _script_error(message, alias, script)
    return EngineUnavailable(
        f"lock engine {alias!r}: the server refuses ({type(error).__name__}: {message})",
        alias=alias,
        reason=reason,
    )


def _script_error(message: str, alias: str, script: Script | None) -> ScriptError:
    found = LINE.search(message)
    where, line = (f"{script.name}.lua" if script else "?"), 0
    if script and found:
        where, line = script.locate(int(found[1]))
    return ScriptError(
        f"lock engine {alias!r}: {where}:{line} failed: {message}",
        alias=alias, script=where, line=line, detail=message,
    )  # fmt: skip
