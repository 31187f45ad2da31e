"""Django settings of the suite.

SQLite unless LOCKAPP_TEST_DATABASE names a service of tests/addresses.py (`postgres`, `mariadb`).
Locks are in memory by default; the fixture `redis_locks` puts them on a real server for one test.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.addresses import address_of

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "Simplified Chinese")]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
ROOT_URLCONF = "tests.urls" if importlib.util.find_spec("tests.urls") else "demo_site.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def _sqlite_path() -> str:
    return str(Path(tempfile.gettempdir()) / f"lockapp-test-{os.getpid()}.sqlite3")


def _database() -> dict[str, Any]:
    kind = os.environ.get("LOCKAPP_TEST_DATABASE", "sqlite")
    if kind == "sqlite":
        # Files, since connections of several threads to one in-memory database lock whole tables
        # and ignore the timeout. A child process finds its parent's database by the variable.
        name = os.environ.get("LOCKAPP_TEST_SQLITE") or _sqlite_path()
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": name,
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",
            },
            "TEST": {"NAME": name},
        }
    engines = {"postgres": "django.db.backends.postgresql", "mariadb": "django.db.backends.mysql"}
    parts = urlsplit(address_of(kind))
    if kind == "mariadb":
        import pymysql

        pymysql.install_as_MySQLdb()
    return {
        "ENGINE": engines[kind],
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
        "TEST": {"NAME": f"test_lockapp_{os.getpid()}"},
    }


DATABASES = {"default": _database()}

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "lockapp",
    "demo_site.shop",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

LOCKAPP: dict[str, dict[str, Any]] = {
    "default": {"ENGINE": "lockapp.engines.memory.MemoryEngine"},
}
