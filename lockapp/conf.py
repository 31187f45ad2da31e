"""The settings: ``LOCKAPP`` → frozen dataclasses. Nothing else in lockapp reads ``LOCKAPP``.

Invariant: read when first used and again after ``setting_changed``, never at import; what the user
wrote is never changed; whatever makes no sense is an ImproperlyConfigured that names the place and
the cure, and shows no password.

The shape is Django's::

    LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",  # the default
            "LOCATION": "redis://127.0.0.1:6379/1",                # or "CACHE": "locks"
            "OPTIONS": {"prefix": "shop", "ttl": 30},              # see EngineOptions
        },
    }

Not here: engine objects (``handler``), and judgement on settings that are legal but unwise
(``checks``).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from lockapp.core.options import EngineOptions, UnfitLocation, UnfitOptions

if TYPE_CHECKING:
    from lockapp.engines.base import Engine
    from lockapp.engines.redis.address import Address

SETTING = "LOCKAPP"
DEFAULT_ALIAS = "default"
DEFAULT_ENGINE = "lockapp.engines.redis.RedisEngine"

KEYS = ("ENGINE", "LOCATION", "CACHE", "OPTIONS")
"""What one engine's dictionary may contain."""
OTHER_WORDS = {
    "BACKEND": "ENGINE", "CLASS": "ENGINE", "URL": "LOCATION", "HOST": "LOCATION",
    "ADDRESS": "LOCATION", "REDIS_URL": "LOCATION",
}  # fmt: skip
"""What other settings call the same thing."""

EXAMPLE = 'LOCKAPP = {"default": {"LOCATION": "redis://127.0.0.1:6379/0"}}'

NO_SHARED_CACHES = {
    "django.core.cache.backends.locmem.LocMemCache": "each process has its own",
    "django.core.cache.backends.dummy.DummyCache": "it keeps nothing",
    "django.core.cache.backends.filebased.FileBasedCache": "it is a directory",
    "django.core.cache.backends.db.DatabaseCache": "it is a database table",
    "django.core.cache.backends.memcached.PyMemcacheCache": "it is Memcached",
    "django.core.cache.backends.memcached.PyLibMCCache": "it is Memcached",
    "django.core.cache.backends.redis.RedisCache": "it is Django's own and not a django-redis one",
}
"""Why these caches can't say where a lock server is."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the settings say about one engine."""

    alias: str
    engine: str = DEFAULT_ENGINE  # "ENGINE": dotted path of an Engine class
    location: str | tuple[str, ...] = field(default="", repr=False)
    # "LOCATION": its address, or several in a list (Redlock); may hold a password
    cache: str = ""  # "CACHE": take the address from this django-redis cache alias instead
    options: EngineOptions = field(default_factory=EngineOptions)  # "OPTIONS"

    def engine_class(self) -> type[Engine]:
        """Import the class.

        Raises:
            ImproperlyConfigured: there is none at that path, or it is no Engine.
        """
        from lockapp.engines.base import Engine

        where = f"LOCKAPP[{self.alias!r}]['ENGINE']"
        try:
            found = import_string(self.engine)
        except ImportError as error:
            raise ImproperlyConfigured(f"{where}: can't import {self.engine!r}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Engine)):
            raise ImproperlyConfigured(
                f"{where}: {self.engine!r} is not a lockapp.engines.base.Engine"
            )
        return found

    def build(self) -> Engine:
        """Make the engine; nothing is connected.

        Raises:
            ImproperlyConfigured: the class or the location is no good.
        """
        cls = self.engine_class()
        if cls.shared_between_processes and not (self.location or self.cache):
            raise ImproperlyConfigured(
                f"LOCKAPP[{self.alias!r}] says nowhere to keep locks: give it a LOCATION, such as "
                '"redis://127.0.0.1:6379/0", or the CACHE alias of a django-redis cache'
            )
        if self.options.min_replicas_acked and not cls.supports_replica_acks:
            raise ImproperlyConfigured(
                f"LOCKAPP[{self.alias!r}]['OPTIONS']: {cls.__name__} has no replicas, so that none "
                "can acknowledge a lease (min_replicas_acked)"
            )
        if isinstance(self.location, tuple) and not cls.takes_several_locations:
            raise ImproperlyConfigured(
                f"LOCKAPP[{self.alias!r}]['LOCATION'] is a list, and {cls.__name__} is on one "
                "server; several that share nothing are for "
                '"ENGINE": "lockapp.engines.redis.RedlockEngine"'
            )
        location = cache_address(self.cache, self.alias) if self.cache else self.location
        try:
            return cls(self.alias, location, self.options)
        except UnfitOptions as error:
            raise ImproperlyConfigured(f"LOCKAPP[{self.alias!r}]['OPTIONS']: {error}") from error
        except UnfitLocation as error:
            raise ImproperlyConfigured(f"LOCKAPP[{self.alias!r}]['LOCATION']: {error}") from None
        except ValueError as error:
            if self.cache:
                raise ImproperlyConfigured(
                    f"LOCKAPP[{self.alias!r}]['CACHE']: the cache {self.cache!r} can't be used for "
                    f"locks: {error}"
                ) from error
            # The parser's words may repeat a piece of the password.
            raise ImproperlyConfigured(
                f"LOCKAPP[{self.alias!r}]['LOCATION'] is no address that {cls.__name__} can use; "
                f"it should look like {cls.location_form}, with special characters in a password "
                "percent-encoded"
            ) from None


def configs() -> Mapping[str, EngineConfig]:
    """Return what the settings say, by alias.

    Raises:
        ImproperlyConfigured: anything in ``LOCKAPP`` makes no sense.
    """
    global _configs
    found = _configs
    if found is None:
        raw = raw_settings()
        found = _configs = {alias: read_engine(alias, given) for alias, given in raw.items()}
    return found


_configs: dict[str, EngineConfig] | None = None


def raw_settings() -> Mapping[str, object]:
    """Return ``LOCKAPP`` itself, once its outer shape is known to be right.

    Raises:
        ImproperlyConfigured: it is missing, or not a dictionary of engines with a "default".
    """
    raw = getattr(settings, SETTING, None)
    if raw is None:
        raise ImproperlyConfigured(f"lockapp needs the setting LOCKAPP, for example: {EXAMPLE}")
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(
            f"LOCKAPP must be a dictionary of engines by alias, not {type(raw).__name__}: {EXAMPLE}"
        )
    inner = [key for key in raw if key in KEYS or key in OTHER_WORDS]
    if inner:
        raise ImproperlyConfigured(
            f"LOCKAPP has {inner[0]!r} where an alias belongs; one level is missing: {EXAMPLE}"
        )
    for alias in raw:
        if not isinstance(alias, str) or not alias:
            raise ImproperlyConfigured(f"LOCKAPP: an alias must be a word, not {alias!r}")
    if DEFAULT_ALIAS not in raw:
        has = f"; it has {', '.join(map(repr, raw))}" if raw else ""
        raise ImproperlyConfigured(f"LOCKAPP must define the engine 'default'{has}: {EXAMPLE}")
    return raw


def read_engine(alias: str, given: object) -> EngineConfig:
    """Read one engine's dictionary.

    Raises:
        ImproperlyConfigured: something in it is unknown, contradictory or of the wrong type.
    """
    here = f"LOCKAPP[{alias!r}]"
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"{here} must be a dictionary such as {{'LOCATION': 'redis://…'}}, "
            f"not {type(given).__name__}"
        )
    for key in given:
        if key not in KEYS:
            raise ImproperlyConfigured(f"{here}: unknown key {key!r}{_cure(key)}")
    if "LOCATION" in given and "CACHE" in given:
        raise ImproperlyConfigured(f"{here}: give LOCATION or CACHE, not both")
    texts: dict[str, Any] = {
        key.lower(): _text(given[key], f"{here}[{key!r}]")
        for key in ("ENGINE", "LOCATION", "CACHE")
        if key in given and not (key == "LOCATION" and isinstance(given[key], list | tuple))
    }
    if isinstance(several := given.get("LOCATION"), list | tuple):
        where = f"{here}['LOCATION']"
        texts["location"] = tuple(_text(one, f"{where}[{at}]") for at, one in enumerate(several))
    options = given.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(
            f"{here}['OPTIONS'] must be a dictionary, not {type(options).__name__}"
        )
    try:
        parsed = EngineOptions.parse(options)
    except (ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"{here}['OPTIONS']: {error}") from error
    return EngineConfig(alias=alias, options=parsed, **texts)


def cache_address(cache: str, alias: str) -> Address:
    """Return address, credentials and TLS of a django-redis cache; nothing is connected.

    A pool is made by the cache's own connection factory, which knows every way in which
    django-redis may be told where its server is, and then only read. The cache's real pool is left
    alone: waiters would use up its connections, and releases would have to wait for one.

    Args:
        cache: the cache's alias in ``CACHES``.
        alias: the engine that asks, for the message.

    Raises:
        ImproperlyConfigured: no such cache, or not one whose servers can keep locks.
    """
    from django.core.cache import caches

    from lockapp.engines.redis.location import address_of_pool

    here = f"LOCKAPP[{alias!r}]['CACHE']"
    if cache not in caches.settings:
        known = ", ".join(map(repr, caches.settings))
        raise ImproperlyConfigured(f"{here}: there is no cache {cache!r} in CACHES; it has {known}")
    given = caches.settings[cache]
    backend = given.get("BACKEND", "")
    if backend in NO_SHARED_CACHES or not _is_django_redis(backend):
        why = NO_SHARED_CACHES.get(backend, f"its BACKEND is {backend!r}")
        raise ImproperlyConfigured(
            f"{here}: the cache {cache!r} can't say where a lock server is ({why}); name a cache "
            "with the BACKEND 'django_redis.cache.RedisCache', or give a LOCATION instead"
        )
    options = copy.deepcopy(given.get("OPTIONS", {}))  # its factories write into what they get
    if options.get("CLIENT_CLASS", "").endswith(".ShardClient"):
        raise ImproperlyConfigured(
            f"{here}: the cache {cache!r} is spread over several servers, and a lock lives on one; "
            "give a LOCATION instead"
        )
    urls = given.get("LOCATION") or ""
    if isinstance(urls, str):
        urls = urls.split(",")
    try:
        # Imported late: this is an optional way in, and it reads settings of its own.
        from django_redis.pool import get_connection_factory

        factory = get_connection_factory(options=options)
        # The first one is the primary; the others are its replicas.
        pool: Any = factory.get_connection_pool(factory.make_connection_params(next(iter(urls))))
        return address_of_pool(pool)
    except (ValueError, TypeError, StopIteration) as error:
        raise ImproperlyConfigured(
            f"{here}: the cache {cache!r} has no address that a lock engine can use; it should be "
            "one redis://, rediss:// or unix:// server, or a service of Sentinels"
            # What a pool says about an unusable class is clear and has no secrets in it.
            + (f" ({error})" if "lock engine" in str(error) else "")
        ) from None


def _is_django_redis(backend: str) -> bool:
    from django_redis.cache import RedisCache

    try:
        found = import_string(backend)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, RedisCache)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ImproperlyConfigured(f"{where} must be text, not {type(value).__name__}")
    if not value.strip():
        raise ImproperlyConfigured(
            f"{where} is empty; is the environment variable missing that it is read from?"
        )
    return value.strip()


def _cure(key: object) -> str:
    word = str(key)
    upper = word.upper()
    near = OTHER_WORDS.get(upper) or next(
        iter(difflib.get_close_matches(upper, KEYS, n=1, cutoff=0.7)), None
    )
    if near:
        return f"; did you mean {near!r}?"
    try:
        EngineOptions.parse({word.lower(): None})
    except ValueError:
        return f"; known: {', '.join(KEYS)}"
    except TypeError:
        pass
    return f"; {word.lower()!r} belongs into OPTIONS"


def _forget(*, setting: str, **_: object) -> None:
    global _configs
    if setting in (SETTING, "CACHES"):
        _configs = None


setting_changed.connect(_forget, dispatch_uid="lockapp.conf")
