"""The Celery application that the bench's worker runs: an empty task, bare and under two locks.

Celery's defaults, as an application would have them. Tasks are sent by name.
"""

from __future__ import annotations

import os
import secrets

import redis
from celery import Celery
from django.conf import settings

settings.configure(
    SECRET_KEY="only for the bench",
    LOCKAPP={
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": os.environ["LOCKAPP_BENCH_LOCKS"],
            "OPTIONS": {"prefix": "bench"},
        }
    },
)

from lockapp.celery import single_instance  # noqa: E402 - after the settings
from tests.bench.contestants import RELEASE, TTL_S  # noqa: E402

BROKER = os.environ["LOCKAPP_BENCH_BROKER"]

app = Celery("tests.bench", broker=BROKER, backend=BROKER)
app.conf.broker_connection_retry_on_startup = False

# Connects at its first command, which a child sends: nothing is shared with its parent.
client = redis.Redis.from_url(os.environ["LOCKAPP_BENCH_LOCKS"])
release = client.register_script(RELEASE)


@app.task(name="bare")
def bare(number: int) -> None:
    """Nothing at all."""


@app.task(name="single")
@single_instance
def single(number: int) -> None:
    """Nothing, by one at a time; each number is a key of its own."""


@app.task(name="plain")
def plain(number: int) -> None:
    """Nothing, between what two plain commands of redis-py make a lock."""
    name, token = f"plain:{number}", secrets.token_hex(16)
    if client.set(name, token, nx=True, px=TTL_S * 1000):
        try:
            pass
        finally:
            release(keys=[name], args=[token])
