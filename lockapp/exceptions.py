"""The whole error tree.

::

    LockAppError
    ├── NotAcquired            contention: somebody else holds it; try later
    │   ├── WaitTimeout        … and waiting did not help (also a TimeoutError)
    │   └── FenceBusy          … an earlier holder, still inside its database transaction
    ├── FlightFailed           somebody else's computation failed, for which we waited
    ├── OwnershipError
    │   ├── AlreadyHeld        this task or thread holds it already; a bug in the caller
    │   ├── NotHeld            never had it
    │   ├── LeaseLost          had it and must stop
    │   └── StaleFence         had it, and the database knows a later holder
    └── EngineError
        ├── EngineUnavailable  could not ask; nothing is known about who holds what
        │   └── QuorumNotReached … of several independent nodes too few answered
        ├── EngineMisconfigured the server's data or settings contradict ours
        └── ScriptError        a script failed on the server: a bug, with file and line

Contended, unavailable, lost and not held are never mixed up: each asks somebody else to act.
Every error carries fields, not only text, and keeps them on its way between processes: pickled, or
as ``type(error)(*error.args)``, which is how Celery carries an error through JSON.
This module needs no Django, so that a plain Celery project can use it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lockapp.core.values import HolderState


class LockAppError(Exception):
    """Something went wrong with a lock."""

    def __init__(self, message: str | None = None, carried: Any = None, /, **fields: Any) -> None:
        self.message = message or " ".join((self.__doc__ or "").split("\n\n")[0].split())
        # What could not be carried arrives as its repr: then there are no fields.
        self.fields = {**(carried if isinstance(carried, dict) else {}), **fields}
        super().__init__(self.message)
        self.args = (self.message, {name: _plain(value) for name, value in self.fields.items()})

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __getattr__(self, field: str) -> Any:
        if field.startswith("__") or field == "fields":
            raise AttributeError(field)
        try:
            return self.fields[field]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {field!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(cls: type[LockAppError], message: str, fields: dict[str, Any]) -> LockAppError:
    return cls(message, **fields)


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, HolderState) else value


class NotAcquired(LockAppError):
    """The lock is held by somebody else.

    Fields: ``name``; ``holder`` (:class:`~lockapp.core.values.HolderState` or None);
    ``waited`` (seconds); ``retry_after`` (seconds until the present lease ends by itself, at the
    earliest; it may be renewed).
    """

    def __init__(self, message: str | None = None, carried: Any = None, /, **fields: Any) -> None:
        super().__init__(message, carried, **fields)
        if isinstance(holder := self.fields.get("holder"), dict):
            try:
                self.fields["holder"] = HolderState(**holder)
            except TypeError:  # from another version, which describes holders otherwise
                self.fields["holder"] = None


class WaitTimeout(NotAcquired, TimeoutError):
    """The lock was still held when the time to wait was over.

    Fields: as :class:`NotAcquired`.
    """


class FenceBusy(NotAcquired):
    """An earlier holder of the lock is still inside its database transaction.

    Fields: as :class:`NotAcquired` (``holder`` is None), and ``using`` (the database).
    """


class FlightFailed(LockAppError):
    """Another caller's computation failed, with an error that can't be carried between processes.

    An error that can be is raised as it is.

    Fields: ``name``; ``error`` (its type and text).
    """


class OwnershipError(LockAppError):
    """The caller's idea of who holds the lock is wrong."""


class AlreadyHeld(OwnershipError, RuntimeError):
    """This task or thread already holds the lock; taking it again would wait for itself.

    Fields: ``name``, ``fence`` (of the lease held).
    """


class NotHeld(OwnershipError, RuntimeError):
    """The lock is not held by this handle, and never was.

    Fields: ``name``.
    """


class LeaseLost(OwnershipError):
    """The lease was held and is over; stop working on what it protected.

    Fields: ``name``, ``fence``, ``reason`` (``"expired"``, ``"forced"``, ``"abandoned"``,
    ``"max_hold"``, ``"gone"``, ``"forked"``), ``note`` (who took it and why, when somebody did).
    """


class StaleFence(OwnershipError):
    """The database knows a later holder of the lock; nothing was read or written.

    Fields: ``name``, ``using`` (the database), ``fence``, ``epoch``; of the later holder
    ``later_fence``, ``later_epoch``, ``later_engine``.
    """


class EngineError(LockAppError):
    """The lock engine failed."""


class EngineUnavailable(EngineError):
    """The lock engine could not be asked; whether the lock is free is not known.

    Fields: ``alias``; ``waited`` (seconds since it was first asked for a lock, if it was for one);
    ``reason``, one of

    * ``"connect"``: no connection, nothing was sent;
    * ``"open"``: not asked, since it has not answered for a while (the circuit breaker is open);
    * ``"reset"``: the connection broke after the request may have been sent;
    * ``"timeout"``: no reply within the command timeout;
    * ``"unacked"``: granted, but too few replicas have it (``min_replicas_acked``); it is undone;
    * ``"transient"``: the server says that it can't serve just now (loading, failing over);
    * ``"refused"``: the server refuses (out of memory, disk errors, no permission).
    """

    @property
    def sent(self) -> bool:
        """Whether the request may have taken effect, on one server, although this was raised."""
        return self.fields.get("reason") in ("reset", "timeout", "unacked")


class QuorumNotReached(EngineUnavailable):
    """Fewer than a majority of the configured nodes answered (Redlock).

    Fields: as :class:`EngineUnavailable`; ``nodes`` (what became of each: ``"answered"``, a reason
    as above, or ``"no answer"``, by address). ``reason`` is the worst of theirs.
    """


class EngineMisconfigured(EngineError):
    """What the server stores contradicts these settings.

    Fields: ``alias``.
    """


class ScriptError(EngineError):
    """A script failed on the server.

    Fields: ``script`` (file), ``line``, ``detail`` (the server's words).
    """
