"""Settings of the demo. What depends on the machine comes from the environment.

DATABASE_URL         sqlite:///path or postgres://user:password@host:port/name;
                     default: demo_site/var/demo.sqlite3
LOCKAPP_REDIS_URL    Redis or Valkey for locks and Celery; default: redis://127.0.0.1:6379/0
DEMO_PREFIX          starts every key this site writes to that server, so that it can be shared
DEMO_SECRET_KEY      signs sessions; made anew at each start when it is missing
DEMO_DEBUG           1 for Django's debug pages
DEMO_ALLOWED_HOSTS   comma-separated host names besides the loopback ones
"""

import os
from datetime import timedelta
from pathlib import Path

from celery.schedules import crontab
from django.core.management.utils import get_random_secret_key

from demo_site.addresses import celery_redis_url, database_from_url

BASE_DIR = Path(__file__).resolve().parent

SECRET_KEY = os.environ.get("DEMO_SECRET_KEY") or get_random_secret_key()
DEBUG = os.environ.get("DEMO_DEBUG") == "1"
ALLOWED_HOSTS = [
    "localhost",
    "127.0.0.1",
    "[::1]",
    *filter(None, os.environ.get("DEMO_ALLOWED_HOSTS", "").split(",")),
]

INSTALLED_APPS = [
    "demo_site.shop",
    "lockapp",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "demo_site.urls"
WSGI_APPLICATION = "demo_site.wsgi.application"
ASGI_APPLICATION = "demo_site.asgi.application"

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

# Transactions are opened where something is written and are short. With ATOMIC_REQUESTS every
# request would sit in a transaction while it waits for the payment provider, and on SQLite, which
# has one writer, everybody else would wait too.
DATABASES = {
    "default": database_from_url(
        os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'var' / 'demo.sqlite3'}"
    ),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("LOCKAPP_REDIS_URL", "redis://127.0.0.1:6379/0")
PREFIX = os.environ.get("DEMO_PREFIX", "lockapp-demo")

LOCKAPP = {
    "default": {
        "ENGINE": "lockapp.engines.redis.RedisEngine",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"prefix": PREFIX},
    },
}

# The broker has a database of its own: emptying a queue with FLUSHDB must not free anybody's lock.
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = celery_redis_url(REDIS_URL)
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{PREFIX}:celery:"}
CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = {"global_keyprefix": f"{PREFIX}:celery:"}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_RESULT_EXPIRES = timedelta(hours=1)
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {
    "nightly report": {
        "task": "shop.nightly_report",
        "schedule": crontab(hour="3", minute="0"),
    },
    # Lock events reach the audit tables through this task; a demo wants to see them soon.
    "collect lock events": {
        "task": "lockapp.tasks.collect",
        "schedule": timedelta(seconds=2),
        "options": {"expires": 10},
    },
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
