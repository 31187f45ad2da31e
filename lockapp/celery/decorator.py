"""@single_instance: one running instance of a task at a time. No lock logic of its own.

Invariant: the body runs only while the lock is held, in the process that runs the body. The lock
is taken inside the task's ``run``, never in a signal or hook: Celery swallows what those raise, and
the body would run unlocked.

Not here: the order of a run (`lockapp.celery.running`), what can be a body (`.shape`), and refusing
duplicates when they are published (`.publish`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from lockapp.callbacks import OnLost, OnRevoke, on_lost_option, on_revoke_option
from lockapp.celery.execution import Execution
from lockapp.celery.identity import KeyOption, make_key
from lockapp.celery.options import Options, Seconds
from lockapp.celery.places import Places
from lockapp.celery.policies import PolicyName, make_policy
from lockapp.celery.running import Running
from lockapp.celery.scope import ScopeName, make_scope
from lockapp.celery.shape import refuse_unfit, signature_of
from lockapp.celery.turned import Skipped
from lockapp.core.duration import to_ms
from lockapp.core.options import OnUnavailable, on_unavailable_option
from lockapp.core.values import EVERYBODY
from lockapp.ways import UNSET, Unset, Wait

P = ParamSpec("P")
R = TypeVar("R")

QUEUED_TTL_S = 3600.0
"""How long a queue may be, in seconds, before copies in it are forgotten."""


class _Keeps(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class _MaySkip(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Skipped]: ...


@overload
def single_instance(function: Callable[P, R], /) -> Callable[P, R | Skipped]: ...
@overload
def single_instance(
    *,
    key: KeyOption = ...,
    scope: ScopeName = ...,
    queued_ttl: Seconds | Unset = ...,
    on_contention: Literal["skip", "rerun"] = ...,
    limit: int = ...,
    remember: Seconds = ...,
    cache: str | Unset = ...,
    ttl: Seconds | Unset = ...,
    max_hold: Seconds | Unset | None = ...,
    using: str = ...,
    why: str = ...,
    on_lost: OnLost = ...,
    on_revoke: OnRevoke = ...,
    on_unavailable: OnUnavailable | Unset = ...,
) -> _MaySkip: ...
@overload
def single_instance(
    *,
    key: KeyOption = ...,
    scope: ScopeName = ...,
    queued_ttl: Seconds | Unset = ...,
    on_contention: Literal["raise", "retry", "wait", "join"],
    limit: int = ...,
    remember: Seconds = ...,
    cache: str | Unset = ...,
    ttl: Seconds | Unset = ...,
    max_hold: Seconds | Unset | None = ...,
    wait: Wait | Unset = ...,
    using: str = ...,
    why: str = ...,
    on_lost: OnLost = ...,
    on_revoke: OnRevoke = ...,
    on_unavailable: OnUnavailable | Unset = ...,
) -> _Keeps: ...
def single_instance(
    function: Callable[..., Any] | None = None,
    /,
    *,
    key: KeyOption = None,
    scope: ScopeName = "running",
    queued_ttl: Seconds | Unset = UNSET,
    on_contention: PolicyName = "skip",
    limit: int = 1,
    remember: Seconds = 0,
    cache: str | Unset = UNSET,
    ttl: Seconds | Unset = UNSET,
    max_hold: Seconds | Unset | None = UNSET,
    wait: Wait | Unset = UNSET,
    using: str = "default",
    why: str = "",
    on_lost: OnLost = None,
    on_revoke: OnRevoke = None,
    on_unavailable: OnUnavailable | Unset = UNSET,
) -> Any:
    """Let one instance of a task run at a time, however it is sent.

    Goes *below* the decorator that makes the task::

        @shared_task
        @single_instance(key="order:{order_id}", on_contention="wait", wait=5)
        def capture_payment(order_id, amount): ...

    Guarantee: between the processes that share the engine, no two bodies with the same key run at
    once while their leases are live; see :class:`~lockapp.lease.Lease`. A direct call, ``apply()``
    and eager mode take the lock too. The lock is released however the body ends, also by
    ``retry()``, `Ignore`, `Reject` or a soft time limit. When its process dies, it is freed at once
    if that was a child of a prefork worker that lives on, else it is free within ``ttl`` seconds.

    Args:
        function: the task's body, when used without parentheses.
        key: what to lock: None for the task's name and all arguments; a template over the
            arguments whose first part is the family; a callable that gets the arguments and
            returns the parts of a name.
        scope: of which copies there is one: ``"running"``; ``"queued"`` (one waits, any number
            run); ``"queued_or_running"`` (one from publish to end); ``"queued_and_running"`` (one
            runs and one waits). All but the first need :class:`~lockapp.celery.LockTask`, which
            does not send the others.
        queued_ttl: seconds for which a message that nobody has seen again keeps others from being
            sent, after its countdown; 3,600 by default. A purged queue costs as much.
        on_contention: ``"skip"`` ends with a value that :func:`was_skipped` knows; ``"raise"``
            fails with NotAcquired; ``"retry"`` comes back later, with its id and its count of
            retries; ``"wait"`` blocks the worker process and then fails with WaitTimeout;
            ``"join"`` blocks it until the running one ends, and ends with its result or error;
            ``"rerun"`` has the body run once more after the running one with the latest
            arguments, however many copies were sent, and all of these but one end as skipped.
        limit: how many may run at a time.
        remember: seconds for which a result stands: runs of the same key end with it at once.
        cache: the alias in ``CACHES`` through which results ("join", ``remember``) and arguments
            ("rerun") go from worker to worker.
        ttl: seconds a lease lives between renewals; by default the engine's.
        max_hold: seconds after which it is no longer renewed; None for never. By default the
            task's hard time limit where a worker enforces one, else the engine's.
        wait: seconds to wait with ``"wait"`` and ``"join"``, by default the engine's; seconds to
            keep coming back with ``"retry"``, by default ``max_hold``. None without end.
        using: the alias of the engine.
        why: a word for operators who see the lock held.
        on_lost: a function, called with the lease when it is lost; ``"raise"``: a run whose lease
            was lost fails with LeaseLost although its body succeeded. By default the result is
            kept and the loss logged.
        on_revoke: a function, called with the lease when an operator asks the run to let go.
        on_unavailable: what to do when the engine can't be asked: ``"raise"``, ``"local"`` or
            ``"open"``, as :class:`~lockapp.lock.Lock`. ``"local"`` excludes runs of the same
            worker process only. By default the engine's.

    Raises:
        TypeError, ValueError: at decoration, for what can't work.

    Each run raises, before its body: EngineUnavailable when the engine could not be asked (unless
    ``on_unavailable`` says otherwise),
    AlreadyHeld when the same thread runs the same key already, TypeError or ValueError when the
    arguments make no key.
    """
    policy = make_policy(on_contention)
    options = Options(
        policy=policy,
        scope=make_scope(scope),
        queued_ttl_s=(
            QUEUED_TTL_S
            if isinstance(queued_ttl, Unset)
            else to_ms(queued_ttl, "queued_ttl") / 1000
        ),
        limit=_count(limit),
        ttl=_seconds(ttl, "ttl"),
        max_hold=max_hold if max_hold is None else _seconds(max_hold, "max_hold"),
        wait=policy.wait(wait),
        remember_s=to_ms(remember, "remember", zero=True) / 1000,
        cache="default" if isinstance(cache, Unset) else _text(cache, "cache"),
        using=_text(using, "using"),
        why=_text(why, "why"),
        on_lost=on_lost_option(on_lost),
        on_revoke=on_revoke_option(on_revoke),
        on_unavailable=(
            on_unavailable
            if isinstance(on_unavailable, Unset)
            else on_unavailable_option(on_unavailable)
        ),
    )
    options.refuse_unfit(
        cache_given=not isinstance(cache, Unset),
        queued_ttl_given=not isinstance(queued_ttl, Unset),
    )
    if function is None:
        return functools.partial(_decorate, options, key)
    return _decorate(options, key, function)


def _decorate(options: Options, given: KeyOption, function: Callable[..., Any]) -> Any:
    refuse_unfit(function)
    signature = signature_of(function)
    key = make_key(given, signature)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return Running(options, key, Execution(run, args, kwargs), function).run()

    # Celery's check of arguments at publish doesn't look behind wrappers.
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.single_instance = options  # type: ignore[attr-defined] # for the system checks
    if options.scope.queued:
        run.places = Places(options, key)  # type: ignore[attr-defined] # for those who send
    return run


def _seconds(value: Seconds | Unset, argument: str) -> Seconds | Unset:
    if not isinstance(value, Unset):
        to_ms(value, argument)
    return value


def _count(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be a whole number, not {limit!r}")
    if not 1 <= limit < EVERYBODY:
        raise ValueError(f"limit must be 1 or more (and below {EVERYBODY:,}), not {limit!r}")
    return limit


def _text(value: str, argument: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be text, not {value!r}")
    return value
