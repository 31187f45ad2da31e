"""What a worker's main process and its children do for locks when they start and end.

No signal of Celery's tells of a death: when a child is killed there may be none, and on a hard
time limit they come before it is dead. They serve to start and end what listens for it.

Pools without processes of their own have no listener, and their tasks nobody to tell.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any

from celery import concurrency
from celery.signals import worker_init, worker_process_init, worker_shutdown

from lockapp.celery.lifeline import LIFELINE
from lockapp.celery.listener import Listener

logger = logging.getLogger("lockapp.celery")

ADDRESS = "LOCKAPP_LIFELINE"
"""The environment variable with the listener's address: children may be spawned, not forked."""

_listener: Listener | None = None


@worker_init.connect
def open_listener(sender: Any, **_: object) -> None:
    """Listen, in the main process and before its first child is made."""
    global _listener
    os.environ.pop(ADDRESS, None)  # of a worker that has started this one
    if not _has_children(sender.pool_cls):
        return
    if _listener is None:
        try:
            _listener = Listener(f"worker {sender.hostname}")
        except OSError as error:
            logger.warning("locks of children that die are free only within their ttl: %s", error)
            return
        atexit.register(close_listener)  # where a start fails, there is no shutdown
    os.environ[ADDRESS] = _listener.address


@worker_process_init.connect
def tell_parent(**_: object) -> None:
    """Connect a child to its parent, before its first task."""
    if address := os.environ.get(ADDRESS):
        LIFELINE.connect(address)


@worker_shutdown.connect
def close_listener(**_: object) -> None:
    """Stop listening, after the children have ended. A second call does nothing."""
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        atexit.unregister(close_listener)
        os.environ.pop(ADDRESS, None)
        listener.close()


def _drop_listener() -> None:
    global _listener
    listener, _listener = _listener, None
    if listener is not None:
        listener.drop()


os.register_at_fork(after_in_child=_drop_listener)


def _has_children(pool: Any) -> bool:
    from celery.concurrency.prefork import TaskPool

    return issubclass(concurrency.get_implementation(pool), TaskPool)
