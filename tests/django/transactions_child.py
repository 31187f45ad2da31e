"""A process that sells the last piece of one article after another.

Run by test_transactions_processes.py.

Each line of its input is a JSON object with one task, each line of its output the answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from unittest import mock

import django

STOCK, ORDERS = "stock", "orders"


def main() -> None:
    """Do tasks until the input ends."""
    django.setup()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(work(**json.loads(line))) + "\n")
        sys.stdout.flush()


def connect(environment: dict[str, str]) -> None:
    """Have another database as the default one."""
    from django.db import connections
    from django.db.utils import ConnectionHandler

    from tests import settings

    with mock.patch.dict(os.environ, environment):
        database = settings._database()
    if database["ENGINE"].endswith("sqlite3"):
        # IMMEDIATE would keep the others out by itself, before they ask for the lock.
        database["OPTIONS"]["transaction_mode"] = "DEFERRED"
    connections["default"].close()
    connections["default"] = ConnectionHandler({"default": database})["default"]
    connections["default"].ensure_connection()


def work(
    environment: dict[str, str],
    url: str,
    prefix: str,
    begin: int,
    end: int,
    pause: float,
    **how: Any,
) -> dict[str, Any]:
    """Try to sell each article once.

    Args:
        environment: names the database.
        url: of the lock server.
        prefix: of its keys.
        begin: the first article.
        end: the one after the last.
        pause: seconds between reading and writing, and between the end of the lock's block and
            the COMMIT.
        **how: options of the lock.
    """
    from django.conf import settings
    from django.db import OperationalError
    from django.test import override_settings

    engine = {"ENGINE": "lockapp.engines.redis.RedisEngine", "LOCATION": url}
    configured = {"default": {**engine, "OPTIONS": {"prefix": prefix}}}
    connect(environment)
    sold = refused = 0
    with override_settings(LOCKAPP=configured):
        assert settings.LOCKAPP is configured
        for article in range(begin, end):
            try:
                sold += sell(article, pause, how)
            except OperationalError:
                refused += 1
    return {"sold": sold, "refused": refused}


def sell(article: int, pause: float, how: dict[str, Any]) -> bool:
    """The classical mistake, if the lock is no good."""
    from django.db import connection, transaction

    from lockapp import lock

    with transaction.atomic(), connection.cursor() as cursor:
        with lock("article", article, wait=60, **how):
            cursor.execute(f"SELECT pieces FROM {STOCK} WHERE article = %s", [article])
            (pieces,) = cursor.fetchone()
            if not pieces:
                return False
            time.sleep(pause)
            cursor.execute(
                f"UPDATE {STOCK} SET pieces = %s WHERE article = %s", [pieces - 1, article]
            )
            cursor.execute(f"INSERT INTO {ORDERS} VALUES (%s, %s)", [article, os.getpid()])
        time.sleep(pause)
    return True


if __name__ == "__main__":
    main()
