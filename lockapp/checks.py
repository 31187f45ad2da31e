"""System checks: settings that are legal and would lock nothing, or not for long.

Each problem has an id, and each id a section in docs/reference/checks.md. Bad settings are errors
of ``manage.py check`` here, not exceptions, so that every other check still has its say. Only the
check of ``--deploy`` talks to servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from lockapp import conf
from lockapp.core.options import EngineOptions
from lockapp.handler import in_test_run, locks, locks_alone

if TYPE_CHECKING:
    from lockapp.engines.base import Engine
    from lockapp.engines.redis.address import Address as RedisAddress

TAG = "lockapp"
LONGEST_VIEW_WAIT_S = 30  # Gunicorn's default timeout: a worker that waits longer is killed

Messages = list[checks.CheckMessage]
Apps = Sequence[AppConfig] | None

HINTS = {
    "E001": f"Define at least the engine 'default': {conf.EXAMPLE}",
    "E002": "See docs/reference/settings.md for what each key may contain.",
    "E003": "Use the Redis engine. Where exactly one process runs, say so: "
    "OPTIONS['single_process'] = True.",
    "E004": "Use Redis 7.0 or later, Valkey 8 or later, or ZooKeeper 3.5 or later.",
    "W001": "Give each alias its own OPTIONS['prefix'], or use one alias for both.",
    "W002": "Give locks a database of their own: another number at the end of LOCATION.",
    "W003": "Give locks a database of their own: another number at the end of LOCATION.",
    "W004": "Raise the ttl, or lower connect_timeout and command_timeout.",
    "W005": "Let clients try again instead: a locked view answers 409 with Retry-After.",
    "W006": "Set maxmemory-policy noeviction on the server that keeps locks.",
    "W007": "Check LOCATION, and whether the server runs; locks fail closed until it does.",
    "W008": "Name a cache that all processes share by cache=….",
    "W009": 'Say on_unavailable="open" at the locks whose work may be done twice, and only there.',
}
"""What to do, by the number of the id. The reference page has the why."""

FLIGHTS: dict[tuple[str, str], str] = {}
"""(cache, engine) → a function that ``@single_flight.cached`` was put on with these aliases."""


def register_all() -> None:
    """Register every check of the app with Django."""
    checks.register(check_settings, TAG)
    checks.register(check_neighbours, TAG)
    checks.register(check_flights, TAG)
    checks.register(check_deployed, TAG, deploy=True)


def check_settings(app_configs: Apps = None, **kwargs: Any) -> Messages:
    """Read every engine's settings and judge each by itself."""
    try:
        raw = conf.raw_settings()
    except ImproperlyConfigured as error:
        return [_error("E001", str(error))]
    found: Messages = []
    for alias, given in raw.items():
        try:
            config = conf.read_engine(alias, given)
            config.build()
        except ImproperlyConfigured as error:
            found.append(_error("E002", str(error)))
            continue
        found += _judge_numbers(config)
        if not settings.DEBUG and locks_alone(config):
            found.append(_unshared(config))
    return found


def check_neighbours(app_configs: Apps = None, **kwargs: Any) -> Messages:
    """Look for others on the servers that keep locks."""
    engines = _addressed()
    found: Messages = []
    for one, other in combinations(engines, 2):
        here = one.address
        if same_database(here, other.address) and one.options.prefix == other.options.prefix:
            found.append(
                _warning(
                    "W001",
                    f"The lock engines {one.alias!r} and {other.alias!r} write the same keys on "
                    f"{here}: a lock of one is a lock of the other.",
                )
            )
    neighbours = [
        *(("W002", f"the cache {alias!r}", at) for alias, at in _caches()),
        *(("W003", f"Celery's {what}", at) for what, at in _celery()),
    ]
    for engine in engines:
        here = engine.address
        for number, who, there in neighbours:
            if number == "W002" and who == f"the cache {_own_cache(engine)!r}":
                continue
            if same_database(here, there):
                found.append(
                    _warning(
                        number,
                        f"The lock engine {engine.alias!r} shares the database {here} with {who}: "
                        "emptying that frees locks that are held.",
                    )
                )
    return found


def check_flights(app_configs: Apps = None, **kwargs: Any) -> Messages:
    """Look for results of single flights that no other process would see."""
    found: Messages = []
    if settings.DEBUG or in_test_run():
        return found
    for (cache, using), function in FLIGHTS.items():
        found += unshared_cache(function, cache, using)
    return found


def unshared_cache(who: str, cache: str, using: str) -> Iterator[checks.CheckMessage]:
    """Judge the cache through which something shares results, beside an engine for its locks."""
    given = settings.CACHES.get(cache)
    try:
        shared = conf.configs()[using].engine_class().shared_between_processes
    except (ImproperlyConfigured, KeyError):
        return  # told by check_settings, or by the call
    if given is None:
        yield _warning("W008", f"{who}: there is no cache {cache!r} in CACHES.")
    elif shared and str(given.get("BACKEND", "")).endswith((".LocMemCache", ".DummyCache")):
        yield _warning(
            "W008",
            f"{who}: what it leaves in the cache {cache!r} ({given['BACKEND']}) for other "
            "processes, they never find.",
        )


def check_deployed(app_configs: Apps = None, **kwargs: Any) -> Messages:
    """Judge what matters in production, and ask each server for its own settings."""
    found: Messages = []
    try:
        configs = conf.configs()
    except ImproperlyConfigured:
        return []  # told by check_settings
    for config in configs.values():
        try:
            alone = locks_alone(config)
        except ImproperlyConfigured:
            continue
        if config.options.on_unavailable == "open":
            found.append(
                _warning(
                    "W009",
                    f"While the lock engine {config.alias!r} can't be asked, every lock of it that "
                    "does not say otherwise lets everybody in (OPTIONS['on_unavailable']).",
                )
            )
        if alone and settings.DEBUG:  # without DEBUG check_settings has told it
            found.append(_unshared(config))
    for engine in _addressed():
        found += _ask(engine)
    return found


def same_database(one: Any, other: Any) -> bool:
    """Whether two addresses are one database of one server, as far as the text tells."""
    return bool(one.place == other.place)


def _judge_numbers(config: conf.EngineConfig) -> Iterator[checks.CheckMessage]:
    options, here = config.options, f"LOCKAPP[{config.alias!r}]"
    yield from short_ttl(here, options.ttl_ms, options)
    if options.view_wait_ms > LONGEST_VIEW_WAIT_S * 1000:
        yield _warning(
            "W005",
            f"{here}: locked views wait up to {options.view_wait_ms / 1000:g} s "
            "and keep a web worker all that time.",
        )


def short_ttl(who: str, ttl_ms: int, options: EngineOptions) -> Iterator[checks.CheckMessage]:
    """Judge a ttl on an engine with these options."""
    # The first renewal is sent a third into the ttl. If it is lost without an answer, that is
    # known after both timeouts, and there must be time left to ask again.
    left_ms = ttl_ms * 2 // 3
    timeouts_ms = options.connect_timeout_ms + options.command_timeout_ms
    if left_ms <= timeouts_ms:
        yield _warning(
            "W004",
            f"{who}: with a ttl of {ttl_ms / 1000:g} s one renewal without an answer "
            f"(connect_timeout and command_timeout: {timeouts_ms / 1000:g} s) loses the lease.",
        )


def _unshared(config: conf.EngineConfig) -> checks.CheckMessage:
    return _error(
        "E003",
        f"The lock engine {config.alias!r} ({config.engine}) works within one process: other "
        "web processes and workers don't see its locks.",
    )


def _addressed() -> list[Engine]:
    """Return the engines that have a server; others are left out."""
    found: list[Engine] = []
    try:
        aliases = list(locks)
    except ImproperlyConfigured:
        return found
    for alias in aliases:
        try:
            engine = locks[alias]
        except ImproperlyConfigured:
            continue
        if engine.address is not None:
            found.append(engine)
    return found


def _own_cache(engine: Engine) -> str:
    """Return the cache alias that was made for this engine's locks, unless it is everybody's."""
    cache = conf.configs()[engine.alias].cache
    return "" if cache == "default" else cache


def _caches() -> Iterator[tuple[str, RedisAddress]]:
    caches: Mapping[str, Any] = settings.CACHES
    for alias, given in caches.items():
        backend = str(given.get("BACKEND", ""))
        try:
            yield alias, conf.cache_address(alias, "")
        except ImproperlyConfigured:
            if "redis" in backend.lower() or "valkey" in backend.lower():
                database = (given.get("OPTIONS") or {}).get("db")
                for at in _addresses(given.get("LOCATION")):
                    if database is not None:
                        at.settings["db"] = database
                    yield alias, at


def _celery() -> Iterator[tuple[str, RedisAddress]]:
    for name, what in (
        ("CELERY_BROKER_URL", "broker"),
        ("BROKER_URL", "broker"),
        ("CELERY_RESULT_BACKEND", "result backend"),
    ):
        for at in _addresses(getattr(settings, name, None)):
            yield what, at


def _addresses(given: object) -> Iterator[RedisAddress]:
    """Read one URL, several in a list, or several in one text; what is no Redis URL is left out."""
    from lockapp.engines.redis.address import Address

    urls: Iterable[object] = given if isinstance(given, list | tuple) else [given]
    for text in urls:
        for url in str(text or "").replace(";", ",").split(","):
            try:
                yield Address.from_url(url.strip().replace("redis+socket://", "unix://", 1))
            except ValueError:
                continue


def _ask(engine: Engine) -> Iterator[checks.CheckMessage]:
    who = f"The server of the lock engine {engine.alias!r}"
    texts: Mapping[str, tuple[str, str]] = {
        "version": ("E004", f"{who} is too old: %s."),
        "eviction": ("W006", f"{who} may evict locks when it runs out of memory (%s)."),
        "unreachable": ("W007", f"{who} could not be asked: %s."),
    }
    for problem in engine.problems():
        number, text = texts[problem.kind]
        make = _error if number.startswith("E") else _warning
        yield make(number, text % problem.detail)


def _error(number: str, text: str) -> checks.CheckMessage:
    return checks.Error(text, hint=HINTS[number], id=f"lockapp.{number}")


def _warning(number: str, text: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=HINTS[number], id=f"lockapp.{number}")
