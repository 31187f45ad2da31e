"""Django settings inside the worker processes of the suite; addresses come from the environment."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["lockapp.metrics"] if "PROMETHEUS_MULTIPROC_DIR" in os.environ else []
DATABASES: dict[str, dict[str, object]] = {}

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": urlsplit(os.environ["LOCKAPP_TEST_LOCKS"])._replace(path="/3").geturl(),
    }
}

LOCKAPP = {
    "default": {
        "ENGINE": "lockapp.engines.redis.RedisEngine",
        "LOCATION": os.environ["LOCKAPP_TEST_LOCKS"],
        "OPTIONS": {"prefix": os.environ["LOCKAPP_TEST_PREFIX"]},
    },
    # A server that tests stop and start.
    "frail": {
        "ENGINE": "lockapp.engines.redis.RedisEngine",
        "LOCATION": os.environ["LOCKAPP_TEST_FRAIL_LOCKS"],
        "OPTIONS": {"connect_timeout": 0.5, "command_timeout": 0.5},
    },
}

if zookeeper := os.environ.get("LOCKAPP_TEST_ZOOKEEPER_LOCKS"):
    LOCKAPP["zookeeper"] = {
        "ENGINE": "lockapp.engines.zookeeper.ZooKeeperEngine",
        "LOCATION": zookeeper,
        "OPTIONS": {"prefix": os.environ["LOCKAPP_TEST_PREFIX"]},
    }
