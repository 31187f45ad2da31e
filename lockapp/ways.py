"""The ways in and out that all locks have: ``acquire``, ``try_acquire``, ``with``; and their twins.

Each public method is one line over :meth:`Acquirable.attempt`, which a kind of lock defines once,
async-coloured. No acquisition state is shared: each entry of a ``with`` block belongs to the task
or thread that entered.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from abc import ABC, abstractmethod
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lockapp.core.duration import to_ms
from lockapp.core.ports import EnginePort, StepPort
from lockapp.core.run import run_sync
from lockapp.exceptions import EngineUnavailable, LeaseLost, NotAcquired, NotHeld
from lockapp.owner import current_owner

if TYPE_CHECKING:
    from lockapp.engines.base import Engine

logger = logging.getLogger("lockapp")

Wait = float | int | timedelta | None


class Unset:
    """The type of "not given", where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


def wait_seconds(wait: Wait) -> float | None:
    """Return a time to wait in seconds; None for no end.

    Raises:
        TypeError, ValueError: it makes no sense.
    """
    return None if wait is None else to_ms(wait, "wait", zero=True) / 1000


class Held(Protocol):
    """What was acquired: one lease, or several that go together."""

    async def give_back(self, port: StepPort) -> None:
        """Release it."""

    def let_go(self, port: StepPort) -> None:
        """Have the watchdog release it; for an exception under way."""


H = TypeVar("H", bound=Held)


class Acquirable(ABC, Generic[H]):
    """Something that can be acquired and entered. May be used by several threads and tasks."""

    raises_loss: bool = False  # whether leaving a `with` block tells of a loss by an exception

    def __init__(self, engine: Engine, title: str) -> None:
        """Prepare the ways in.

        Args:
            engine: where it lives.
            title: what it is called in logs and warnings.
        """
        self.engine = engine
        self._title = title
        self._entered: dict[object, list[H]] = {}

    @abstractmethod
    async def attempt(self, port: EnginePort, wait: Wait | Unset, *, scoped: bool = False) -> H:
        """Acquire it, or raise.

        Args:
            port: blocking, or of the running loop.
            wait: seconds to wait, instead of its own.
            scoped: whether a ``with`` block will give it back.

        Raises:
            NotAcquired: contended.
            Others: see :meth:`acquire`.
        """

    def acquire(self, wait: Wait | Unset = UNSET) -> H:
        """Acquire it and return the lease.

        Args:
            wait: seconds to wait, instead of the lock's own; 0 not at all; None without end.

        Raises:
            NotAcquired: held by somebody else (``wait=0``).
            WaitTimeout: still held after ``wait`` seconds.
            AlreadyHeld: this task or thread holds it.
            EngineUnavailable: could not ask; nothing stays held.
            LeaseLost: it was handed over, and taken away by an operator before we took it up.

        On cancellation (any exception while waiting) nothing stays held and nothing queued.
        A second call while the first lease lives raises AlreadyHeld.
        """
        return run_sync(self.attempt(self._blocking(), wait))

    async def aacquire(self, wait: Wait | Unset = UNSET) -> H:
        """See acquire()."""
        return await self.attempt(self.engine.aio(), wait)

    def try_acquire(self, wait: Wait | Unset = 0) -> H | None:
        """Acquire it if it is free; contention is an outcome and returns None.

        Args:
            wait: seconds to wait; by default not at all.

        Raises:
            AlreadyHeld, EngineUnavailable, LeaseLost: as acquire().
        """
        try:
            return run_sync(self.attempt(self._blocking(), wait))
        except NotAcquired:
            return None

    async def atry_acquire(self, wait: Wait | Unset = 0) -> H | None:
        """See try_acquire()."""
        try:
            return await self.attempt(self.engine.aio(), wait)
        except NotAcquired:
            return None

    def _blocking(self) -> EnginePort:
        if asyncio._get_running_loop() is not None:
            warnings.warn(
                f"acquiring {self._title!r} blocks the running event loop; use the a… methods or "
                "'async with'",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.engine.sync

    def __enter__(self) -> H:
        held = run_sync(self.attempt(self._blocking(), UNSET, scoped=True))
        self._entered.setdefault(current_owner(), []).append(held)
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run_sync(self._leave(self.engine.sync, error))

    async def __aenter__(self) -> H:
        held = await self.attempt(self.engine.aio(), UNSET, scoped=True)
        self._entered.setdefault(current_owner(), []).append(held)
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(self.engine.aio(), error)

    async def _leave(self, port: StepPort, error: BaseException | None) -> None:
        """Release what this owner entered. The body's own outcome comes first (P6)."""
        owner = current_owner()
        entered = self._entered[owner]
        held = entered[-1]
        try:
            entered.pop()
            if not entered:
                del self._entered[owner]
            await held.give_back(port)
        except BaseException as trouble:
            loud = self.raises_loss and error is None and isinstance(trouble, LeaseLost)
            if loud or not settle(trouble, held, port, self._title):
                raise


def settle(trouble: BaseException, held: Held, port: StepPort, title: str) -> bool:
    """Log what came in the way of a release; whether that is enough, and it need not be raised."""
    if isinstance(trouble, LeaseLost):
        logger.warning(
            "%s: what it protected may have been done by two", trouble,
            extra={"lockapp_name": trouble.name, "lockapp_fence": trouble.fence},
        )  # fmt: skip
    elif isinstance(trouble, EngineUnavailable):
        logger.error(
            "could not release %s now; the watchdog goes on trying: %s", title, trouble,
            extra={"lockapp_name": title},
        )  # fmt: skip
    elif isinstance(trouble, NotHeld):
        logger.debug("%s is held by the parent process", title)
    else:  # interrupted before the release was sent
        held.let_go(port)
        return False
    return True
