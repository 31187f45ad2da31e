"""``single_flight``: concurrent callers of one computation share its result, in every process.

Public: :data:`single_flight` (also ``single_flight.cached``) and :func:`asingle_flight`. How it
works is in :mod:`lockapp.single_flight.flight`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from lockapp.checks import FLIGHTS
from lockapp.conf import DEFAULT_ALIAS
from lockapp.core.duration import to_ms
from lockapp.core.run import run_sync
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.naming import lock_name
from lockapp.single_flight.faces import AsyncFace, SyncFace
from lockapp.single_flight.flight import fly
from lockapp.single_flight.key import CallKey
from lockapp.single_flight.leader import Plan
from lockapp.single_flight.store import cache_of, key_of
from lockapp.ways import UNSET, Unset, Wait

__all__ = ["FlightOptions", "asingle_flight", "single_flight"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class FlightOptions(TypedDict, total=False):
    """What may be said about a flight; see :class:`SingleFlight`. Durations in seconds."""

    wait: Wait | Unset
    stale: float | timedelta
    fallback: Any
    cache: str
    using: str
    lock_ttl: float | timedelta | Unset
    max_hold: float | timedelta | Unset | None


def _plan(
    name: str,
    ttl: float | timedelta,
    wait: Wait | Unset = UNSET,
    stale: float | timedelta = 0,
    fallback: Any = UNSET,
    cache: str = "default",
    using: str = DEFAULT_ALIAS,
    lock_ttl: float | timedelta | Unset = UNSET,
    max_hold: float | timedelta | Unset | None = UNSET,
) -> tuple[Plan, Any]:
    """Check what was given; return the plan and the cache. Nothing is sent."""
    engine = locks[using]
    # A flight has its own answers to an engine that is down: the stale result, the fallback.
    lock = Lock(
        engine,
        name,
        ttl=lock_ttl,
        wait=wait,
        max_hold=max_hold,
        on_unavailable="raise",
        release="now",  # what it protects is the cache, which is written already
        why="single flight",
    )
    plan = Plan(
        lock=lock,
        key=key_of(name, engine.options.prefix),
        ttl_s=to_ms(ttl, "ttl", zero=True) / 1000,
        stale_s=to_ms(stale, "stale", zero=True) / 1000,
        wait_s=lock.wait_s,
        fallback=fallback,
    )
    return plan, cache_of(cache, engine)


class SingleFlight:
    """One caller computes, and the others of every process get its result.

    Guarantee: of the callers of one name, one at a time computes (as far as a lock promises it);
    the others are woken by one broadcast when it is done. If it dies, fails to store its result or
    is cancelled, exactly one of them takes over. Errors and None are results too.
    Duty: a cache that all callers share, and a computation that may run twice in the worst case.

    ::

        answer = single_flight(
            "rag", question_hash, compute=run_pipeline, ttl=300, stale=300, wait=10,
            fallback=degraded_answer,
        )

        @single_flight.cached("rag", "{question_hash}", ttl=300)
        def answer_of(question_hash): ...

        @single_flight.cached("rag", "{question_hash}", ttl=300)
        async def answer_of(question_hash): ...
    """

    def __call__(
        self,
        *parts: object,
        compute: Callable[[], T],
        ttl: float | timedelta,
        **options: Unpack[FlightOptions],
    ) -> T:
        """Return the cached result, or compute it, or wait for whoever does.

        Args:
            *parts: the family, then what tells this computation from others of it. It is also the
                name of the lock that the computing caller holds.
            compute: called without arguments, in the caller that was first.
            ttl: seconds for which the result is fresh. 0: only those who wait get it.
            **options: ``wait``: seconds to wait for another caller's result (default: the
                engine's); 0 not at all; None without end. ``stale``: seconds after ``ttl`` in
                which the old result is returned while one caller computes a new one.
                ``fallback``: returned (or called, if callable) when there is no result within
                ``wait`` or the engine can't be asked. ``cache``: the alias in ``CACHES``.
                ``using``: the engine's alias. ``lock_ttl``, ``max_hold``: ``ttl`` and ``max_hold``
                of the lock; the computation loses its lock after ``max_hold``.

        Raises:
            WaitTimeout: no result within ``wait``, and no fallback. (``wait=0``: NotAcquired.)
            EngineUnavailable: could not ask, and there is neither a result nor a fallback.
            AlreadyHeld: called by the computation of the same name.
            FlightFailed: another caller's computation failed with an error that can't be carried.
            TypeError, ValueError: an argument that makes no sense, by its name.
            ImproperlyConfigured: no such cache or engine.
            Others: what ``compute`` raises, also in another caller for which this one waited.

        On cancellation nothing stays held; if this caller computed, another one takes over.
        """
        plan, cache = _plan(lock_name(*parts), ttl, **options)
        face = SyncFace(plan.lock._blocking(), cache)
        value: T = run_sync(fly(face, plan, compute))
        return value

    def cached(
        self, *parts: object, ttl: float | timedelta, **options: Unpack[FlightOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, plain or ``async``: equal calls share one computation.

        Args:
            *parts: the family, then fixed values or fields such as ``"{order.pk}"`` over the
                function's arguments. Without any: the function's dotted name and all arguments.
                ``self`` is never part of it.
            ttl: as in :meth:`__call__`, and so are the options.

        Raises:
            TypeError, ValueError: a part or number that makes no sense, when decorating.
        """
        to_ms(ttl, "ttl", zero=True)
        to_ms(options.get("stale", 0), "stale", zero=True)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            key = CallKey(function, parts)
            aliases = options.get("cache", "default"), options.get("using", DEFAULT_ALIAS)
            FLIGHTS.setdefault(aliases, key.called)

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                plan, cache = _plan(key.name_of(args, kwargs), ttl, **options)
                face = SyncFace(plan.lock._blocking(), cache)
                value: R = run_sync(fly(face, plan, lambda: function(*args, **kwargs)))
                return value

            @wraps(function)
            async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
                plan, cache = _plan(key.name_of(args, kwargs), ttl, **options)
                face = AsyncFace(plan.lock.engine.aio(), cache)
                return await fly(face, plan, lambda: function(*args, **kwargs))

            return acall if inspect.iscoroutinefunction(function) else call  # type: ignore[return-value]

        return decorate


single_flight = SingleFlight()


async def asingle_flight(
    *parts: object,
    compute: Callable[[], Awaitable[T]],
    ttl: float | timedelta,
    **options: Unpack[FlightOptions],
) -> T:
    """See single_flight(); ``compute``, and ``fallback`` if it is callable, may be asynchronous."""
    plan, cache = _plan(lock_name(*parts), ttl, **options)
    face = AsyncFace(plan.lock.engine.aio(), cache)
    value: T = await fly(face, plan, compute)
    return value
