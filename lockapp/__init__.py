"""lockapp: locks for work that must not run twice at once.

Importing this needs no settings and connects nothing; names are loaded on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "lock": "lockapp.handler",
    "locks": "lockapp.handler",
    "semaphore": "lockapp.handler",
    "rwlock": "lockapp.handler",
    "multilock": "lockapp.handler",
    "assert_locked": "lockapp.handler",
    "fenced_atomic": "lockapp.fencing",
    "single_flight": "lockapp.single_flight",
    "asingle_flight": "lockapp.single_flight",
    "Lock": "lockapp.lock",
    "Lease": "lockapp.lease",
    "holder_details": "lockapp.context",
    "lock_name": "lockapp.naming",
    "LockAppError": "lockapp.exceptions",
    "NotAcquired": "lockapp.exceptions",
    "WaitTimeout": "lockapp.exceptions",
    "AlreadyHeld": "lockapp.exceptions",
    "NotHeld": "lockapp.exceptions",
    "LeaseLost": "lockapp.exceptions",
    "StaleFence": "lockapp.exceptions",
    "FenceBusy": "lockapp.exceptions",
    "EngineUnavailable": "lockapp.exceptions",
}
__all__ = [*_HOME, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from lockapp.context import holder_details as holder_details
    from lockapp.exceptions import AlreadyHeld as AlreadyHeld
    from lockapp.exceptions import EngineUnavailable as EngineUnavailable
    from lockapp.exceptions import FenceBusy as FenceBusy
    from lockapp.exceptions import LeaseLost as LeaseLost
    from lockapp.exceptions import LockAppError as LockAppError
    from lockapp.exceptions import NotAcquired as NotAcquired
    from lockapp.exceptions import NotHeld as NotHeld
    from lockapp.exceptions import StaleFence as StaleFence
    from lockapp.exceptions import WaitTimeout as WaitTimeout
    from lockapp.fencing import fenced_atomic as fenced_atomic
    from lockapp.handler import assert_locked as assert_locked
    from lockapp.handler import lock as lock
    from lockapp.handler import locks as locks
    from lockapp.handler import multilock as multilock
    from lockapp.handler import rwlock as rwlock
    from lockapp.handler import semaphore as semaphore
    from lockapp.lease import Lease as Lease
    from lockapp.lock import Lock as Lock
    from lockapp.naming import lock_name as lock_name
    from lockapp.single_flight import asingle_flight as asingle_flight
    from lockapp.single_flight import single_flight as single_flight


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'lockapp' has no attribute {name!r}")


class _Package(ModuleType):
    """Keep ``lockapp.lock`` the function: importing the module of that name would replace it.

    So with ``single_flight``.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("lock", "single_flight") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
