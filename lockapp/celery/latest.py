"""The latest arguments under a key, left for the message that runs next."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lockapp.celery.identity import Call
from lockapp.core.interruption import is_interruption
from lockapp.lock import Lock
from lockapp.single_flight.store import cache_of, key_of

logger = logging.getLogger("lockapp.celery")

KEEP_S = 86_400
"""How long they are kept: longer than a parked message stays unseen in any queue worth running."""


class Latest:
    """Where copies that don't run leave their arguments. In a Django cache that all workers share.

    A cache that forgets them costs freshness, not the run: it then has its own arguments.
    """

    def __init__(self, lock: Lock, task: str, cache: str) -> None:
        """Find the place; nothing is sent.

        Args:
            lock: of the task.
            task: its name. Others may share the lock, and do other work.
            cache: its alias in ``CACHES``.

        Raises:
            ImproperlyConfigured: there is no such cache.
        """
        self._cache = cache_of(cache, lock.engine)
        self._key = key_of(f"{task}:{lock.name}#latest", lock.engine.options.prefix)

    def leave(self, call: Call) -> None:
        """Leave the arguments of a call, in place of those left before.

        Raises:
            Whatever the cache and its serializer raise: the copy must not end as if it were run.
        """
        self._cache.set(self._key, (call.args, dict(call.kwargs)), timeout=KEEP_S)

    def touch(self) -> None:
        """Keep them for longer: the parked message is on its way. Failure is logged."""
        try:
            self._cache.touch(self._key, KEEP_S)
        except Exception as error:
            if is_interruption(error):
                raise
            logger.exception("the latest arguments may be forgotten before they are used")

    def find(self) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
        """Return the arguments left last; None if there are none or the cache fails (logged)."""
        try:
            left = self._cache.get(self._key)
        except Exception as error:
            if is_interruption(error):
                raise
            logger.exception("the latest arguments could not be read; the message's own are used")
            return None
        return None if left is None else (tuple(left[0]), left[1])
