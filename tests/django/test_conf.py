"""`LOCKAPP` is read once, late, strictly, and never changed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis.connection import Connection

from lockapp import conf
from lockapp.core.options import EngineOptions
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.redis import RedisEngine
from lockapp.handler import locks

URL = "redis://127.0.0.1:6379/3"
SECRET = "s3cret"


def given(**engine: Any) -> dict[str, Any]:
    return {"default": engine}


def test_defaults_are_filled_in(settings: Any) -> None:
    """A LOCATION is enough."""
    settings.LOCKAPP = given(LOCATION=URL)
    assert conf.configs()["default"] == conf.EngineConfig(
        alias="default",
        engine="lockapp.engines.redis.RedisEngine",
        location=URL,
        cache="",
        options=EngineOptions(),
    )
    assert isinstance(locks["default"], RedisEngine)


def test_the_default_engine_can_be_imported() -> None:
    """By the path that the documentation gives."""
    assert conf.EngineConfig("default").engine_class() is RedisEngine


def test_options_are_read_in_seconds(settings: Any) -> None:
    """And kept with their unit."""
    settings.LOCKAPP = given(LOCATION=URL, OPTIONS={"ttl": 12, "prefix": "shop", "view_wait": 0.5})
    options = conf.configs()["default"].options
    assert (options.ttl_ms, options.prefix, options.view_wait_ms) == (12_000, "shop", 500)


def test_configurations_are_frozen_and_hide_the_location(settings: Any) -> None:
    """A configuration in a log line shows no password."""
    settings.LOCKAPP = given(LOCATION=f"redis://:{SECRET}@127.0.0.1/0")
    config = conf.configs()["default"]
    assert SECRET not in repr(config)
    assert SECRET not in repr(locks["default"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.cache = "x"  # type: ignore[misc]


def test_the_users_dictionaries_are_left_alone(settings: Any) -> None:
    """Reading and building changes neither LOCKAPP nor CACHES."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": URL,
            "OPTIONS": {"PASSWORD": SECRET},
        },
    }
    settings.LOCKAPP = {
        "default": {"LOCATION": URL, "OPTIONS": {"ttl": 5}},
        "b": {"CACHE": "locks", "OPTIONS": {}},
    }
    before = copy.deepcopy((settings.LOCKAPP, settings.CACHES))
    locks.all()
    assert before == (settings.LOCKAPP, settings.CACHES)


def test_settings_are_read_again_after_a_change(settings: Any) -> None:
    """Once per change, not at each use."""
    settings.LOCKAPP = given(LOCATION=URL)
    first = conf.configs()
    assert conf.configs() is first
    settings.LOCKAPP = given(LOCATION=URL, OPTIONS={"ttl": 5})
    assert conf.configs()["default"].options.ttl_ms == 5_000


def test_the_memory_engine_needs_no_location(settings: Any) -> None:
    """There is nowhere to go."""
    settings.LOCKAPP = given(ENGINE="lockapp.engines.memory.MemoryEngine")
    assert isinstance(locks["default"], MemoryEngine)


@pytest.mark.parametrize(
    ("lockapp", "said"),
    [
        (None, "needs the setting LOCKAPP"),
        ({}, "must define the engine 'default'"),
        ({"locks": {"LOCATION": URL}}, "'default'; it has 'locks'"),
        ([], "must be a dictionary"),
        ({"LOCATION": URL}, "one level is missing"),
        ({"ENGINE": "x", "URL": URL}, "one level is missing"),
        ({"default": {"LOCATION": URL}, "": {}}, "an alias must be a word"),
        ({"default": URL}, "must be a dictionary such as"),
        (given(location=URL), "did you mean 'LOCATION'"),
        (given(LOCATON=URL), "did you mean 'LOCATION'"),
        (given(URL=URL), "did you mean 'LOCATION'"),
        (given(BACKEND="x", LOCATION=URL), "did you mean 'ENGINE'"),
        (given(LOCATION=URL, OPTION={}), "did you mean 'OPTIONS'"),
        (given(LOCATION=URL, ttl=30), "'ttl' belongs into OPTIONS"),
        (given(LOCATION=URL, TTL=30), "'ttl' belongs into OPTIONS"),
        (given(LOCATION=URL, COLOUR=1), "unknown key 'COLOUR'; known: ENGINE"),
        (given(LOCATION=URL, CACHE="locks"), "LOCATION or CACHE, not both"),
        (given(LOCATION=""), r"\['LOCATION'\] is empty; is the environment variable"),
        (given(LOCATION="  "), "is empty"),
        (given(LOCATION=None), "must be text, not NoneType"),
        (given(LOCATION=[URL]), "is a list, and RedisEngine is on one server"),
        (given(LOCATION=[URL, 1]), r"\['LOCATION'\]\[1\] must be text, not int"),
        (given(LOCATION=URL, OPTIONS=None), r"\['OPTIONS'\] must be a dictionary"),
        (given(LOCATION=URL, OPTIONS={"tl": 3}), "did you mean 'ttl'"),
        (given(LOCATION=URL, OPTIONS={"ttl": 0}), "'ttl' must be more than 0"),
        (given(LOCATION=URL, OPTIONS={"ttl": "30"}), "'ttl' must be seconds"),
        (given(LOCATION=URL, OPTIONS={"view_wait": None}), "'view_wait' must be seconds"),
        (given(), "says nowhere to keep locks"),
        (given(ENGINE="lockapp.engines.redis.RedisEngin", LOCATION=URL), "can't import"),
        (given(ENGINE="nowhere.Engine", LOCATION=URL), "can't import 'nowhere.Engine'"),
        (given(ENGINE="lockapp.lock.Lock", LOCATION=URL), "is not a lockapp.engines.base.Engine"),
        (given(LOCATION="127.0.0.1:6379"), "no address that RedisEngine can use"),
        (given(LOCATION="http://127.0.0.1"), "no address that RedisEngine can use"),
        (given(LOCATION=f"redis://:{SECRET}/{SECRET}@host:1/0"), "percent-encoded"),
        (given(LOCATION="redis+sentinel://host:26379"), "no address that RedisEngine can use"),
        (given(LOCATION=f"redis+sentinel://:{SECRET}@h:x/mymaster/0"), "can use; it should"),
        (given(LOCATION="redis+cluster://host:7000/1"), "a Cluster has no numbered databases"),
        (given(LOCATION=f"redis+cluster://:{SECRET}@h:x"), "can use; it should"),
        (
            given(
                ENGINE="lockapp.engines.memory.MemoryEngine", OPTIONS={"min_replicas_acked": 1}
            ),
            "MemoryEngine has no replicas",
        ),
        (given(LOCATION=URL, OPTIONS={"min_replicas_acked": -1}), "whole number of 0 or more"),
        (given(CACHE="nowhere"), "there is no cache 'nowhere' in CACHES; it has 'default'"),
        (given(CACHE="default"), "each process has its own"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told_with_its_cure(
    settings: Any, delete_lockapp: Callable[[], None], lockapp: Any, said: str
) -> None:
    """At the first use, by an ImproperlyConfigured that names place and cure and no secret."""
    if lockapp is None:
        delete_lockapp()
    else:
        settings.LOCKAPP = lockapp
    with pytest.raises(ImproperlyConfigured, match=said) as raised:
        locks["default"]
    told = raised.value
    assert "LOCKAPP" in str(told)
    while told is not None:
        assert SECRET not in str(told)
        told = told.__cause__ if told.__suppress_context__ else told.__cause__ or told.__context__  # type: ignore[assignment]


class FakeConnection(Connection):
    """A server pretended within one process, as fakeredis has it."""


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ({"BACKEND": "django.core.cache.backends.redis.RedisCache"}, "Django's own"),
        ({"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, "keeps nothing"),
        ({"BACKEND": "django.core.cache.backends.filebased.FileBasedCache"}, "directory"),
        ({"BACKEND": "nowhere.Cache"}, "BACKEND is 'nowhere.Cache'"),
        (
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": URL,
                "OPTIONS": {"CONNECTION_POOL_KWARGS": {"connection_class": FakeConnection}},
            },
            "FakeConnection",
        ),
        ({"BACKEND": "django_redis.cache.RedisCache"}, "no address"),
        ({"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "http://x"}, "no address"),
        (
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": [URL, URL],
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
            },
            "several servers",
        ),
    ],
)  # fmt: skip
def test_a_cache_that_has_no_lock_server_is_refused(settings: Any, cache: Any, said: str) -> None:
    """With the reason why this one does not."""
    settings.CACHES = {"default": cache}
    settings.LOCKAPP = given(CACHE="default")
    with pytest.raises(ImproperlyConfigured, match=said):
        locks["default"]


def test_address_credentials_and_tls_come_from_a_django_redis_cache(settings: Any) -> None:
    """From wherever django-redis may be told them; nothing else of its pool is taken."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": ["rediss://shop@cache.example:7000/4", "rediss://replica.example:7000/4"],
            "OPTIONS": {
                "PASSWORD": SECRET,
                "SOCKET_TIMEOUT": 77,
                "CONNECTION_POOL_KWARGS": {"ssl_ca_certs": "/etc/ca.pem", "max_connections": 3},
            },
        },
    }
    settings.LOCKAPP = given(CACHE="locks")
    engine = locks["default"]
    assert isinstance(engine, RedisEngine)
    address = engine.address
    assert address.kind == "SSLConnection"
    taken = address.settings
    assert (taken["host"], taken["port"], taken["db"]) == ("cache.example", 7000, 4)
    assert (taken["username"], taken["password"]) == ("shop", SECRET)
    assert taken["ssl_ca_certs"] == "/etc/ca.pem"
    assert not {"socket_timeout", "max_connections"} & set(taken)
    assert SECRET not in repr(address)
    assert SECRET not in str(address)


def test_sentinels_come_from_a_django_redis_cache(settings: Any) -> None:
    """With the service, its servers' password and database, and the Sentinels' own password."""
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://mymaster/4",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [("one.example", 26379), ("two.example", 26380)],
                "SENTINEL_KWARGS": {"password": "watchword"},
                "PASSWORD": SECRET,
                "CONNECTION_POOL_KWARGS": {"ssl": True, "ssl_ca_certs": "/etc/ca.pem"},
            },
        },
    }
    settings.LOCKAPP = given(CACHE="locks")
    engine = locks["default"]
    assert isinstance(engine, RedisEngine)
    address = engine.address
    assert str(address) == "one.example:26379,two.example:26380/mymaster/4"
    assert address.kind == "SSLConnection"
    assert (address.settings["password"], address.settings["db"]) == (SECRET, 4)
    assert "host" not in address.settings
    assert [each.settings["password"] for each in address.sentinels] == ["watchword"] * 2
    assert SECRET not in repr(address)


def test_locks_work_beside_the_cache_whose_address_they_took(
    settings: Any, redis_url: str, prefix: str, no_litter: None
) -> None:
    """On connections of their own: the cache's pool of one is in use all the time."""
    settings.CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": redis_url,
            "KEY_PREFIX": prefix,
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 1}},
        },
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    settings.LOCKAPP = given(CACHE="locks", OPTIONS={"prefix": prefix})
    pool = caches["locks"].client.get_client().connection_pool  # type: ignore[attr-defined]
    busy = pool.get_connection()
    try:
        from lockapp import lock

        with lock("order", 1):
            assert locks["default"].show("order:1") is not None
    finally:
        pool.release(busy)
        pool.disconnect()
