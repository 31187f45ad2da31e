"""System checks: what would lock nothing, or not for long, is found by `manage.py check`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core import checks, mail
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from lockapp.celery.checks import HINTS as TASK_HINTS
from lockapp.checks import (
    FLIGHTS,
    HINTS,
    TAG,
    check_deployed,
    check_flights,
    check_neighbours,
    check_settings,
)
from lockapp.engines.redis import health
from lockapp.fencing.checks import HINTS as FENCE_HINTS
from tests.servers import RedisServer

URL = "redis://127.0.0.1:6379/3"
MEMORY = {"ENGINE": "lockapp.engines.memory.MemoryEngine"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"


def ids(found: list[checks.CheckMessage]) -> list[str]:
    assert all(message.hint for message in found)
    return [str(message.id) for message in found]


@pytest.fixture
def no_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Django's mark of a test run disappear."""
    monkeypatch.delattr(mail, "outbox", raising=False)


def test_the_checks_are_registered_with_django(
    settings: Any, delete_lockapp: Callable[[], None]
) -> None:
    """`manage.py check` runs them, and `--tag lockapp` them alone."""
    settings.LOCKAPP = {"default": {"LOCATION": URL, "OPTIONS": {"ttl": 1}}}
    assert "lockapp.W004" in ids(checks.run_checks(tags=[TAG]))
    delete_lockapp()
    with pytest.raises(SystemCheckError, match=r"lockapp\.E001"):
        call_command("check", "--tag", TAG)


def test_good_settings_have_no_problem(settings: Any) -> None:
    """Not one message."""
    settings.LOCKAPP = {"default": {"LOCATION": URL}}
    assert [*check_settings(), *check_neighbours()] == []


@pytest.mark.parametrize("lockapp", [None, {}, {"locks": {}}, {"LOCATION": URL}, "redis://"])
def test_missing_settings_are_an_error_and_no_exception(
    settings: Any, delete_lockapp: Callable[[], None], lockapp: Any
) -> None:
    """E001; the other checks have nothing to say then."""
    if lockapp is None:
        delete_lockapp()
    else:
        settings.LOCKAPP = lockapp
    assert ids(check_settings()) == ["lockapp.E001"]
    assert [*check_neighbours(), *check_deployed()] == []


def test_every_bad_engine_is_told(settings: Any) -> None:
    """E002 for each, whatever is wrong with it."""
    settings.LOCKAPP = {
        "default": {"LOCATION": ""},
        "a": {"LOCATION": URL, "OPTIONS": {"ttl": -1}},
        "b": {"ENGINE": "nowhere.Engine", "LOCATION": URL},
        "c": {"LOCATION": "127.0.0.1"},
        "d": {"CACHE": "default"},
        "e": {"LOCATION": URL},
    }
    found = check_settings()
    assert ids(found) == ["lockapp.E002"] * 5
    assert "LOCKAPP['d']['CACHE']" in found[-1].msg
    assert check_deployed() == []


@pytest.mark.parametrize("debug", [True, False])
def test_memory_locks_are_an_error_in_production(
    settings: Any, no_test_run: None, debug: bool
) -> None:
    """E003, once: without DEBUG always, with it under --deploy."""
    settings.LOCKAPP = {"default": MEMORY}
    settings.DEBUG = debug
    assert ids(check_settings()) == ([] if debug else ["lockapp.E003"])
    assert ids([*check_settings(), *check_deployed()]) == ["lockapp.E003"]


def test_memory_locks_are_no_error_where_one_process_is_all_there_is(
    settings: Any, no_test_run: None
) -> None:
    """Said by an option of that engine; another one in memory is told all the same."""
    alone = {**MEMORY, "OPTIONS": {"single_process": True}}
    settings.LOCKAPP = {"default": alone}
    assert [*check_settings(), *check_deployed()] == []
    settings.LOCKAPP = {"default": alone, "other": MEMORY}
    found = check_settings()
    assert ids(found) == ["lockapp.E003"]
    assert "'other'" in found[0].msg


def test_memory_locks_are_no_error_in_a_test_run(settings: Any) -> None:
    """Where Django sets DEBUG to False as well."""
    settings.LOCKAPP = {"default": MEMORY}
    settings.DEBUG = False
    mail.outbox = getattr(mail, "outbox", [])
    assert check_settings() == []


def test_two_aliases_with_the_same_keys_are_told(settings: Any) -> None:
    """W001, however the server is spelled; another prefix or database is enough."""
    settings.LOCKAPP = {
        "default": {"LOCATION": "redis://localhost:6379/3"},
        "same": {"LOCATION": "redis://user:word@127.0.0.1/3"},
        "prefix": {"LOCATION": URL, "OPTIONS": {"prefix": "other"}},
        "database": {"LOCATION": "redis://localhost/4"},
    }
    found = check_neighbours()
    assert ids(found) == ["lockapp.W001"]
    assert "'default' and 'same'" in found[0].msg
    assert "word" not in found[0].msg


@pytest.mark.parametrize(
    ("cache", "warned"),
    [
        ({"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}, True),
        ({"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost/4"}, False),
        ({"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL}, True),
        (
            {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": ["redis://other/1", "redis://localhost"],
                "OPTIONS": {"db": 3},
            },
            True,
        ),
        ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": URL}, False),
    ],
)
def test_a_cache_on_the_locks_database_is_told(settings: Any, cache: Any, warned: bool) -> None:
    """W002: `cache.clear()` empties the database, locks included."""
    settings.CACHES = {"default": cache}
    settings.LOCKAPP = {"default": {"LOCATION": URL}}
    assert ids(check_neighbours()) == (["lockapp.W002"] if warned else [])


def test_a_cache_made_for_locks_is_no_neighbour(settings: Any) -> None:
    """Unless it is the default one, which everybody clears."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": cache,
    }
    settings.LOCKAPP = {"default": {"CACHE": "locks"}}
    assert check_neighbours() == []
    settings.CACHES = {"default": cache}
    settings.LOCKAPP = {"default": {"CACHE": "default"}}
    assert ids(check_neighbours()) == ["lockapp.W002"]


@pytest.mark.parametrize("name", ["CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "BROKER_URL"])
def test_celery_on_the_locks_database_is_told(settings: Any, name: str) -> None:
    """W003; a broker elsewhere, or of another kind, is not."""
    settings.LOCKAPP = {"default": {"LOCATION": URL}}
    setattr(settings, name, "redis://localhost:6379/3")
    assert ids(check_neighbours()) == ["lockapp.W003"]
    setattr(settings, name, ["amqp://localhost", "redis://localhost:6379/4"])
    assert check_neighbours() == []


@pytest.mark.parametrize(("ttl", "warned"), [(4.5, True), (4.6, False), (30, False), (1, True)])
def test_a_ttl_that_one_lost_renewal_ends_is_told(settings: Any, ttl: float, warned: bool) -> None:
    """W004: a third into the ttl, the timeouts (1 + 2 s) must leave time to ask again."""
    settings.LOCKAPP = {"default": {"LOCATION": URL, "OPTIONS": {"ttl": ttl}}}
    assert ids(check_settings()) == (["lockapp.W004"] if warned else [])


def test_views_that_wait_too_long_are_told(settings: Any) -> None:
    """W005: a web worker waits with them."""
    settings.LOCKAPP = {"default": {"LOCATION": URL, "OPTIONS": {"view_wait": 31}}}
    assert ids(check_settings()) == ["lockapp.W005"]


def test_a_good_server_passes(settings: Any, redis_url: str) -> None:
    """Asked by --deploy, on a connection that is closed again."""
    settings.LOCKAPP = {"default": {"LOCATION": redis_url}}
    assert check_deployed() == []


@pytest.mark.parametrize(("mode", "told"), [("open", True), ("local", False), ("raise", False)])
def test_locks_that_all_let_everybody_in_are_told(
    settings: Any, redis_url: str, mode: str, told: bool
) -> None:
    """W009: without the server, unless a lock says otherwise; asked by --deploy."""
    options = {"on_unavailable": mode}
    settings.LOCKAPP = {"default": {"LOCATION": redis_url, "OPTIONS": options}}
    assert ids(check_deployed()) == (["lockapp.W009"] if told else [])
    assert check_settings() == []


def test_a_server_that_may_evict_is_told(settings: Any, fresh_redis: RedisServer) -> None:
    """W006, with the policy."""
    settings.LOCKAPP = {"default": {"LOCATION": fresh_redis.url}}
    fresh_redis.config(maxmemory_policy="allkeys-lru", maxmemory="100mb")
    found = check_deployed()
    assert ids(found) == ["lockapp.W006"]
    assert "allkeys-lru, maxmemory 100.00M" in found[0].msg


def test_a_server_that_is_not_there_is_a_warning(settings: Any) -> None:
    """W007: a build has no Redis, and must not fail for it."""
    settings.LOCKAPP = {"default": {"LOCATION": "redis://:s3cret@127.0.0.1:1/0"}}
    found = check_deployed()
    assert ids(found) == ["lockapp.W007"]
    assert "s3cret" not in found[0].msg


@pytest.mark.parametrize(
    ("version", "old"), [("6.2.14", True), ("7.0.0", False), ("10.1", False), ("", True)]
)
def test_an_old_server_is_an_error(
    settings: Any, monkeypatch: pytest.MonkeyPatch, version: str, old: bool
) -> None:
    """E004: its scripts can't do what ours need."""
    found = health.judge({"redis_version": version}, {})
    assert [problem.kind for problem in found] == (["version"] if old else [])
    settings.LOCKAPP = {"default": {"LOCATION": URL}}
    monkeypatch.setattr("lockapp.engines.redis.engine.problems", lambda *args: found)
    assert ids(check_deployed()) == (["lockapp.E004"] if old else [])


LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
SHARED_CACHE = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}


@pytest.mark.parametrize(
    ("cache", "engine", "told"),
    [
        (LOCMEM, {"LOCATION": URL}, True),
        (None, {"LOCATION": URL}, True),
        (SHARED_CACHE, {"LOCATION": URL}, False),
        (LOCMEM, MEMORY, False),
        (LOCMEM, {"LOCATION": 5}, False),
    ],
)
def test_a_flight_whose_results_stay_in_their_process(
    settings: Any, monkeypatch: pytest.MonkeyPatch, cache: Any, engine: Any, told: bool
) -> None:
    """W008, with the function that says so; not while developing."""
    monkeypatch.setitem(FLIGHTS, ("answers", "default"), "shop.answer")
    settings.CACHES = {"default": SHARED_CACHE} | ({"answers": cache} if cache else {})
    settings.LOCKAPP = {"default": engine}
    assert check_flights() == []
    monkeypatch.delattr(mail, "outbox", raising=False)
    found = check_flights()
    assert ids(found) == (["lockapp.W008"] if told else [])
    assert all("shop.answer" in message.msg for message in found)
    settings.DEBUG = True
    assert check_flights() == []


def test_the_reference_page_has_a_section_for_each_id() -> None:
    """No more and no less, in order."""
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### lockapp\.([EW]\d{3})\b", page, re.MULTILINE) == sorted(
        HINTS | TASK_HINTS | FENCE_HINTS
    )


def test_every_id_is_used_and_tested() -> None:
    """By its full spelling, here and in the code."""
    tests = Path(__file__).read_text(encoding="utf-8")
    code = (PAGE.parents[2] / "lockapp" / "checks.py").read_text(encoding="utf-8")
    assert [number for number in HINTS if f"lockapp.{number}" not in tests] == []
    assert [number for number in HINTS if code.count(f'"{number}"') < 2] == []
