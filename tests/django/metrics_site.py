"""A site of two addresses, for gunicorn: one takes a lock, one tells the metrics."""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="only for tests",
    INSTALLED_APPS=["lockapp.metrics"],
    LOCKAPP={
        "default": {
            "LOCATION": os.environ["LOCKAPP_TEST_LOCKS"],
            "OPTIONS": {"prefix": os.environ["LOCKAPP_TEST_PREFIX"]},
        }
    },
)
django.setup()

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector  # noqa: E402

from lockapp import lock  # noqa: E402


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer `/lock` with the id of the process, and all else with the metrics of all."""
    if environ["PATH_INFO"] == "/lock":
        with lock("order", 1):
            body = str(os.getpid()).encode()
    else:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        body = generate_latest(registry)
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return [body]
