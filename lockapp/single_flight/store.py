"""Where results lie: any Django cache.

A result that is kept lies under the flight's own key. One that is only passed to those who wait for
it (an error; any result when ``ttl`` is 0) lies beside it for some seconds, under a key of its own
that carries the flight's number: so it never replaces a value that may still be served stale.
"""

from __future__ import annotations

import logging
import pickle

from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.exceptions import ImproperlyConfigured

from lockapp.engines.base import Engine
from lockapp.exceptions import FlightFailed
from lockapp.naming import name_digest, readable

logger = logging.getLogger("lockapp")

KEY_LIMIT = 180
"""Characters; Memcached allows 250 for a key with Django's prefix and version."""

_warned: set[str] = set()


def require_flights(engine: Engine) -> None:
    """Do nothing if the engine has single flights.

    Raises:
        ImproperlyConfigured: it has none.
    """
    if not engine.supports_flights:
        raise ImproperlyConfigured(
            f"lock engine {engine.alias!r} ({type(engine).__name__}) can't tell those who wait "
            "that a result is there, as single_flight, on_contention='join' and remember need: "
            "name another engine (using=…)"
        )


def cache_of(alias: str, engine: Engine) -> BaseCache:
    """Return a cache; say once if it can't carry results to those who share the engine.

    Raises:
        ImproperlyConfigured: there is no such cache, or the engine has no single flights.
    """
    require_flights(engine)
    cache: BaseCache = caches[alias]
    alone = isinstance(cache, LocMemCache) and engine.shared_between_processes
    if alias not in _warned and (alone or isinstance(cache, DummyCache)):
        _warned.add(alias)
        logger.warning(
            "single_flight: the cache %r (%s) does not carry results to other processes; each of "
            "them computes once more. Name a shared one: cache=…",
            alias, type(cache).__name__,
        )  # fmt: skip
    return cache


def key_of(name: str, prefix: str) -> str:
    """Return the cache key of a flight's kept result."""
    key = f"{prefix}:flight:{name}"
    return key if len(key) <= KEY_LIMIT else f"{key[: KEY_LIMIT - 33]}#{name_digest(name)}"


def passing_key(key: str, fence: int) -> str:
    """Return where the result of one flight lies that is not kept."""
    return f"{key}.{fence}"


def portable(error: Exception, name: str) -> Exception:
    """Return the error, or if it would not survive the way through a cache, its text."""
    try:
        # Many an exception can be written and not be read: its __init__ wants other arguments.
        same = type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever its __reduce__ and __init__ may raise
        same = False
    return error if same else failure(described(error), name)


def described(error: Exception) -> str:
    """Return an error's type and text."""
    if isinstance(error, FlightFailed):
        return str(error.error)
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def failure(text: str, name: str) -> FlightFailed:
    """Return an error's type and text as an error."""
    return FlightFailed(f"computing {readable(name)!r} failed: {text}", name=name, error=text)
