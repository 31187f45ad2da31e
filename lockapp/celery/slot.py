"""A place that a message holds: a lease without a process.

Who waits in the broker's queue has no process that could renew a lease. Its place is a lock of its
own beside the task's, whose token travels in the message; it lives for its ttl and is prolonged
whenever the message is seen. No watchdog knows of it. It is visible and can be released like any
other lock.
"""

from __future__ import annotations

import logging
import os

from django.core.exceptions import ImproperlyConfigured

from lockapp.context import current_details
from lockapp.core.run import run_sync
from lockapp.core.values import LockSpec, RenewItem
from lockapp.engines import procedures
from lockapp.engines.base import Engine
from lockapp.exceptions import EngineError, LeaseLost
from lockapp.naming import lock_name
from lockapp.process import describe_holder

logger = logging.getLogger("lockapp.celery")


def require_slots(engine: Engine) -> None:
    """Do nothing if the engine can remember messages.

    Raises:
        ImproperlyConfigured: its leases end with their process.
    """
    if not engine.leases_outlive_process:
        raise ImproperlyConfigured(
            f"lock engine {engine.alias!r} ({type(engine).__name__}) ends a lease with its "
            "process, so it can't remember messages: use scope='running' without "
            "on_contention='rerun', or another engine (using=…)"
        )


class Slot:
    """The one place of its kind for one task beside a lock."""

    def __init__(self, engine: Engine, kind: str, task: str, name: str, ttl_s: float) -> None:
        """Name a place; nothing is sent.

        Args:
            engine: where the lock lives.
            kind: what the place is for; the family of its name.
            task: whose messages hold it. Others may share the lock, and do other work.
            name: the lock's name.
            ttl_s: seconds for which a message is not forgotten that nobody has seen.

        Raises:
            ImproperlyConfigured: the engine's leases end with their process, and a message goes
                from one to another.
        """
        require_slots(engine)
        self._engine = engine
        self.spec = LockSpec(lock_name(kind, task, name), int(ttl_s * 1000), max_hold_ms=0)
        self._why = kind

    @staticmethod
    def new_token() -> str:
        """Return a token, to be put into the message before the place is taken."""
        return os.urandom(16).hex()

    def taken(self) -> bool:
        """Whether some message holds it.

        Raises:
            EngineUnavailable: could not ask; as the other methods.
        """
        return self._engine.show(self.spec.name) is not None

    def take(self, token: str) -> bool:
        """Take it if it is free; return whether ``token`` holds it. A second call changes nothing.

        An operator who has released it has spoken: that token never gets it again.
        """
        try:
            return isinstance(self.ask(token), procedures.Grant)
        except LeaseLost:
            return False

    def ask(self, token: str) -> procedures.Grant | procedures.NoGrant:
        """Take it if it is free, or say who holds it.

        Raises:
            LeaseLost: an operator has released it from this token.
        """
        description = describe_holder(current_details(), self._why)
        return run_sync(procedures.acquire(self._engine.sync, self.spec, token, description, 0))

    def keep(self, token: str) -> bool:
        """Prolong it, or take it again if it ran out meanwhile; return whether it is held."""
        item = RenewItem(self.spec.name, token, self.spec.ttl_ms)
        reply = run_sync(procedures.once_more(lambda: self._engine.sync.renew((item,))))
        return reply.renewals[0].deadline_ms > 0 or self.take(token)

    def free(self, token: str) -> None:
        """Give it up. Without effect if it was lost."""
        run_sync(procedures.release(self._engine.sync, self.spec.name, token, tombstone=False))


PARKED_TTL_S = 60.0
"""How long a parked message, which looks every few seconds, may stay unseen before another copy may
park. One more than needed costs nothing: it finds the place taken and ends."""


def parked(engine: Engine, task: str, name: str) -> Slot:
    """Return the place of the message that runs once more after the one that runs."""
    return Slot(engine, "parked", task, name, PARKED_TTL_S)


def unpark(engine: Engine, task: str, name: str, token: str) -> None:
    """Give up the place of a parked message. Never fails."""
    try:
        parked(engine, task, name).free(token)
    except EngineError as down:
        logger.warning(
            "the place of a parked message of %s stays taken for its ttl: %s", name, down,
            extra={"lockapp_name": name},
        )  # fmt: skip
