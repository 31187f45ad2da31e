"""Databases of each kind to fence in, made for the tests and removed after them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

from django.db import connections
from django.db.utils import ConnectionHandler

from lockapp.models import Fence
from tests import settings
from tests.addresses import address_of
from tests.django.fencing_child import WORDS

KINDS = ("sqlite", "postgres", "mariadb")
ALIAS = "fences"
"""Under which the database of the running test is found in this process."""


class Place:
    """One database."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name

    def settings(self, **options: Any) -> dict[str, Any]:
        """What stands in DATABASES for it, with these OPTIONS."""
        chosen = {"LOCKAPP_TEST_DATABASE": self.kind, "LOCKAPP_TEST_SQLITE": self.name}
        with mock.patch.dict(os.environ, chosen):
            given = settings._database()
        return {**given, "NAME": self.name, "OPTIONS": {**given.get("OPTIONS", {}), **options}}

    def connect(self, **options: Any) -> Any:
        """Make a connection with these OPTIONS, to be used as ALIAS."""
        return ConnectionHandler({"default": {}, ALIAS: self.settings(**options)})[ALIAS]

    @contextmanager
    def opened(self, **options: Any) -> Iterator[Any]:
        """Have it as ALIAS in this process; yields the connection."""
        connection = connections[ALIAS] = self.connect(**options)
        try:
            yield connection
        finally:
            connection.close()
            del connections[ALIAS]

    def waiting(self, connection: Any) -> int:
        """How many transactions wait for a lock in it; not known of SQLite."""
        sql = {
            "postgres": "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'",
            # Whose INSERT goes on. innodb_trx says more, but is not looked up anew while anybody on
            # the server has asked for it within a tenth of a second.
            "mariadb": "SELECT count(*) FROM information_schema.processlist "
            "WHERE db = database() AND state = 'Update'",
        }[self.kind]
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.fetchone()[0])


@contextmanager
def made(kind: str, directory: Path) -> Iterator[Place]:
    """Make a database with its tables; it is removed at the end."""
    if kind == "sqlite":
        with _filled(Place(kind, str(directory / "fences.sqlite3"))) as place:
            yield place
        return
    name = f"lockapp_fences_{os.getpid()}"
    with _server(kind) as execute:
        execute(f"CREATE DATABASE {name}")
        try:
            with _filled(Place(kind, name)) as place:
                yield place
        finally:
            execute(f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgres" else ""))


@contextmanager
def _filled(place: Place) -> Iterator[Place]:
    with place.opened() as connection:
        with connection.schema_editor() as editor:
            editor.create_model(Fence)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {WORDS} (name varchar(50) PRIMARY KEY, word varchar(50))")
    yield place


@contextmanager
def _server(kind: str) -> Iterator[Any]:
    if kind == "postgres":
        import psycopg

        with psycopg.connect(address_of(kind), autocommit=True) as server:
            yield server.execute
        return
    import pymysql

    parts = urlsplit(address_of(kind))
    server = pymysql.connect(
        host=parts.hostname, port=parts.port or 3306,
        user=unquote(parts.username or ""), password=unquote(parts.password or ""),
    )  # fmt: skip
    with server, server.cursor() as cursor:
        yield cursor.execute
