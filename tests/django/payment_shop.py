"""A shop: a web server of its own that takes orders and has a provider charge them.

Run by test_idempotency_processes.py, which says in its first argument where the locks, the
provider and nothing are. The request says by X-Die to die after the charge, before the commit, and
by X-Fail that the first attempt fails there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any
from uuid import uuid4

import django

ORDERS = "orders"
"""The table that is written: an order and its charge."""


def main() -> None:
    """Serve until killed."""
    from django.conf import settings

    where = json.loads(sys.argv[1])
    redis = {"ENGINE": "lockapp.engines.redis.RedisEngine"}
    settings.LOCKAPP = {
        "default": {
            **redis,
            "LOCATION": where["redis"],
            "OPTIONS": {"prefix": where["prefix"], "ttl": where["ttl"]},
        },
        "down": {**redis, "LOCATION": where["down"], "OPTIONS": {"prefix": "down"}},
    }
    settings.PROVIDER = where["provider"]
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    django.setup()

    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class Handler(WSGIRequestHandler):
        def log_message(self, *args: object) -> None:
            """Say nothing."""

    global urlpatterns
    urlpatterns = urls()
    server = ThreadedWSGIServer(("127.0.0.1", 0), Handler)
    server.set_app(get_wsgi_application())
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


urlpatterns: list[Any] = []


def urls() -> list[Any]:
    """One way of paying for each case."""
    from django.urls import path

    from lockapp.decorators import idempotent_view

    def whose(request: Any) -> str:
        return str(request.headers["Client"])

    ways: dict[str, dict[str, Any]] = {
        "at-once": {"wait": 0},
        "briefly": {"wait": 0.2},
        "waiting": {"wait": 60},
        "without-redis": {"engine": "down"},
    }
    return [
        path(f"{way}/", idempotent_view(scope=whose, **options)(pay))
        for way, options in ways.items()
    ]


def pay(request: Any) -> Any:
    """Order, charge, answer."""
    from django.db import connection
    from django.http import JsonResponse

    order = uuid4().hex
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {ORDERS} VALUES (%s, %s)", [order, request.headers["Client"]])
    charge = charged(request.lockapp_idempotency.derive("charge"))
    if "X-Die" in request.headers:
        os.kill(os.getpid(), signal.SIGKILL)
    failed = charge.pop("new") and "X-Fail" in request.headers
    return JsonResponse({"order": order, **charge}, status=500 if failed else 201)


def charged(key: str) -> Any:
    """Have the provider charge."""
    from urllib.request import Request, urlopen

    from django.conf import settings

    url = f"http://127.0.0.1:{settings.PROVIDER}/charges"
    with urlopen(Request(url, b"{}", {"Idempotency-Key": key})) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
