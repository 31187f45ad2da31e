"""``locks[alias]`` and ``lock(...)``: from settings to engines, in the manner of django.core.cache.

Invariant: one engine per alias and process, made when first asked for (nothing is connected then),
made anew after the settings changed. Engines see to forks and event loops themselves. One whose
locks would bind nobody else is not made in production.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from lockapp import conf
from lockapp.callbacks import OnLost, OnRevoke
from lockapp.core.options import OnUnavailable, Release
from lockapp.exceptions import NotHeld
from lockapp.lock import Lock
from lockapp.naming import lock_name
from lockapp.owner import current_owner
from lockapp.primitives import MultiLock, RWLock, Semaphore
from lockapp.signals import observer_for
from lockapp.ways import Unset, Wait

if TYPE_CHECKING:
    from lockapp.engines.base import Engine

logger = logging.getLogger("lockapp")


class EngineHandler:
    """The engines of this process, by alias.

    Guarantee: any number of threads may ask; all get the same engine.
    """

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> Engine:
        """Return the engine of an alias.

        Raises:
            ImproperlyConfigured: there is no such alias, the settings make no sense, or the
                engine works within one process and nothing says that there is but one.
        """
        try:
            return self._engines[alias]
        except KeyError:
            return self._build(alias)

    def __iter__(self) -> Iterator[str]:
        """Yield the aliases in the order of the settings."""
        return iter(conf.configs())

    def __len__(self) -> int:
        return len(conf.configs())

    def __contains__(self, alias: object) -> bool:
        return alias in conf.configs()

    def all(self, *, initialized_only: bool = False) -> list[Engine]:
        """Return every engine, or those that this process has used."""
        if initialized_only:
            return list(self._engines.values())
        return [self[alias] for alias in self]

    def close_all(self) -> None:
        """Close idle connections of this process. Every engine can be used again.

        What an event loop has open is closed by ``aclose_all()`` there, or with the loop.
        """
        for engine in self.all(initialized_only=True):
            _close(engine)

    async def aclose_all(self) -> None:
        """Close the idle connections of the running event loop."""
        for engine in self.all(initialized_only=True):
            await engine.aclose()

    def reset(self) -> None:
        """Forget the engines; the next use reads the settings again.

        A lease that is held stays with the engine that granted it and can be released.
        """
        with self._guard:
            forgotten, self._engines = list(self._engines.values()), {}
        for engine in forgotten:
            _close(engine)

    def _after_fork(self) -> None:
        """Be usable in a forked child, also if another thread was making an engine meanwhile."""
        self._guard = threading.Lock()

    def _build(self, alias: str) -> Engine:
        with self._guard:
            engine = self._engines.get(alias)
            if engine is None:
                known = conf.configs()
                if alias not in known:
                    near = difflib.get_close_matches(str(alias), known, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"it has {sorted(known)}"
                    raise ImproperlyConfigured(f"LOCKAPP has no engine {alias!r}; {hint}")
                if not settings.DEBUG and locks_alone(known[alias]):
                    raise ImproperlyConfigured(
                        f"LOCKAPP[{alias!r}] keeps locks within one process, where no other web "
                        "process and no worker sees them. Use the Redis engine. Where exactly one "
                        'process runs, say so: "OPTIONS": {"single_process": True}'
                    )
                engine = known[alias].build()
                engine.observer = observer_for(type(engine), alias)
                engine.transactions = import_string("lockapp.transactions.django_transactions")
                self._engines[alias] = engine
            return engine


def in_test_run() -> bool:
    """Whether Django's test environment is set up; DEBUG is off there, as in production."""
    return hasattr(mail, "outbox")


def locks_alone(config: conf.EngineConfig) -> bool:
    """Whether an engine's locks bind one process only, and neither a test nor a setting wants that.

    Raises:
        ImproperlyConfigured: there is no such engine class.
    """
    allowed = config.options.single_process or in_test_run()
    return not allowed and not config.engine_class().shared_between_processes


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception:
        # One that can't be closed must not keep the others open.
        logger.exception("could not close %r", engine)


locks = EngineHandler()
os.register_at_fork(after_in_child=locks._after_fork)


class LockOptions(TypedDict, total=False):
    """What may be said about one lock; see :class:`lockapp.lock.Lock`."""

    ttl: float | timedelta | Unset
    wait: Wait | Unset
    max_hold: float | timedelta | Unset | None
    renew: bool
    on_lost: OnLost
    on_revoke: OnRevoke
    reentrant: bool
    on_unavailable: OnUnavailable | Unset
    release: Release
    why: str


def lock(*parts: object, using: str = conf.DEFAULT_ALIAS, **options: Unpack[LockOptions]) -> Lock:
    """Describe a lock by the parts of its business key; nothing is sent yet.

    ::

        with lock("order", order.pk, ttl=30, wait=5) as lease:
            ship(order, fence=lease.fence)

        async with lock("session", session_id) as lease: ...

    Inside an open ``transaction.atomic()`` it is held until that has ended; see ``release``.

    Args:
        *parts: the family, then what tells this lock from others of it; see
            :func:`lockapp.naming.lock_name`.
        using: the engine's alias.
        **options: see :class:`lockapp.lock.Lock`; durations in seconds.

    Raises:
        TypeError, ValueError: a part or a number that makes no sense, by its name.
        ImproperlyConfigured: the settings make no sense.
    """
    return Lock(locks[using], lock_name(*parts), **options)


def semaphore(
    *parts: object,
    limit: int,
    using: str = conf.DEFAULT_ALIAS,
    **options: Unpack[LockOptions],
) -> Semaphore:
    """Describe a semaphore: at most ``limit`` holders at a time. See :func:`lock`.

    ::

        with semaphore("gpu", limit=4):
            infer()
    """
    return Semaphore(locks[using], lock_name(*parts), limit, **options)


def rwlock(
    *parts: object, using: str = conf.DEFAULT_ALIAS, **options: Unpack[LockOptions]
) -> RWLock:
    """Describe a read/write lock: many readers or one writer. See :func:`lock`.

    ::

        with rwlock("kb", doc_id).read():
            answer()
        with rwlock("kb", doc_id).write() as lease:
            rebuild()
            lease.downgrade()
    """
    return RWLock(locks[using], lock_name(*parts), **options)


def multilock(locks: Iterable[Lock]) -> MultiLock:
    """Join locks that are acquired all or none, in one canonical order.

    ::

        with multilock([lock("account", source), lock("account", target)]):
            transfer()

    Raises:
        ValueError: none, one twice, or of several engines.
    """
    return MultiLock(locks)


def assert_locked(*parts: object, using: str = conf.DEFAULT_ALIAS) -> None:
    """Do nothing if this task or thread holds a live lease of that lock.

    For code that must only run under a lock that its caller takes. Nothing is sent: what counts is
    what this process knows of its own leases.

    Raises:
        NotHeld: it does not.
    """
    name = lock_name(*parts)
    if not locks[using].holds(name, current_owner()):
        raise NotHeld(f"{name!r} is not held here, and this code must run under it", name=name)


def _forget(*, setting: str, **_: object) -> None:
    if setting in (conf.SETTING, "CACHES"):
        locks.reset()


setting_changed.connect(_forget, dispatch_uid="lockapp.handler")
