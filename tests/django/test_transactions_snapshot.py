"""A transaction that has read before it takes a lock, on databases that go on reading the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from lockapp import lock, multilock
from tests.django import fence_places
from tests.django.fence_places import Place
from tests.services import require

pytestmark = pytest.mark.usefixtures("redis_locks")
ALIAS = "levels"


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Place]:
    """A database of each kind that has such levels."""
    require(request.param)
    directory: Path = tmp_path_factory.mktemp("db")
    with django_db_blocker.unblock(), fence_places.made(request.param, directory) as it:
        yield it


@contextmanager
def at(place: Place, level: str) -> Iterator[Any]:
    """Have the database as ALIAS, at this isolation level; yields a cursor."""
    with place.opened() as first:
        connection = connections[ALIAS] = first.copy(ALIAS)
    given: Any = level.lower()
    if place.kind == "postgres":
        from psycopg import IsolationLevel

        given = IsolationLevel[level.replace(" ", "_")]
    connection.settings_dict["OPTIONS"]["isolation_level"] = given
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()
        del connections[ALIAS]


def test_who_has_read_before_is_warned(place: Place) -> None:
    """With the line that takes the lock, before anything is taken."""
    with at(place, "REPEATABLE READ") as cursor, transaction.atomic(using=ALIAS):
        cursor.execute("SELECT count(*) FROM words")
        with pytest.warns(RuntimeWarning, match="goes on reading what was there") as seen:
            lock("stock", 1).acquire().release()
        assert seen[0].filename == __file__
        with pytest.warns(RuntimeWarning, match="'stock:3'"), multilock([lock("stock", 3)]):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with lock("stock", 1):
                pass  # held since: nobody else has written
            with pytest.raises(RuntimeWarning):
                lock("stock", 2).acquire()
            with lock("stock", 2, release="now"):
                pass


def test_who_reads_afterwards_is_not(place: Place) -> None:
    """Nor at a level that reads anew each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with at(place, "REPEATABLE READ") as cursor:
            cursor.execute("SELECT count(*) FROM words")
            with transaction.atomic(using=ALIAS), lock("stock", 1):
                cursor.execute("SELECT count(*) FROM words")
        with at(place, "READ COMMITTED") as cursor, transaction.atomic(using=ALIAS):
            cursor.execute("SELECT count(*) FROM words")
            with lock("stock", 1):
                pass


def test_serializable_reads_the_same_on_postgresql_only(place: Place) -> None:
    """MySQL and MariaDB read what is there, and lock it."""
    with at(place, "SERIALIZABLE") as cursor, transaction.atomic(using=ALIAS):
        cursor.execute("SELECT count(*) FROM words")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with lock("stock", 1):
                pass
    assert len(seen) == (place.kind == "postgres")
