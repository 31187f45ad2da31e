"""Read the stock, wait, write: eight processes, on each database.

Each article has one piece. Who releases the lock before the COMMIT sells it twice on PostgreSQL and
MariaDB; SQLite refuses the write of a transaction that has read something old, so there sales fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.addresses import ADDRESSES, address_of
from tests.django.fence_places import Place
from tests.django.transactions_child import ORDERS, STOCK

PROCESSES = 8
PAUSE_S = 0.002


@pytest.fixture(scope="module")
def place(place: Place, django_db_blocker: Any) -> Place:
    """A database of each kind, with the tables of a shop."""
    with (
        django_db_blocker.unblock(),
        place.opened() as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"CREATE TABLE {STOCK} (article int PRIMARY KEY, pieces int)")
        cursor.execute(f"CREATE TABLE {ORDERS} (article int, seller int)")
    return place


@pytest.fixture(scope="module")
def children() -> Iterator[list[subprocess.Popen[str]]]:
    """The sellers."""
    command = [sys.executable, "-m", "tests.django.transactions_child"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        for _ in range(PROCESSES)
    ]
    yield started
    for child in started:
        child.communicate("", timeout=30)


def environment_of(place: Place) -> dict[str, str]:
    """What tells a child which database."""
    if place.kind == "sqlite":
        return {"LOCKAPP_TEST_DATABASE": place.kind, "LOCKAPP_TEST_SQLITE": place.name}
    address = f"{address_of(place.kind).rpartition('/')[0]}/{place.name}"
    return {"LOCKAPP_TEST_DATABASE": place.kind, ADDRESSES[place.kind][0]: address}


@dataclass
class Outcome:
    """What came of a run."""

    orders: list[int]
    """How often each article was ordered."""
    sold: int
    refused: int


class Shop:
    """Articles, and those who sell them."""

    def __init__(self, place: Place, children: list[Any], **options: Any) -> None:
        self.place, self.children, self.options = place, children, options

    def sell(self, articles: int, **how: Any) -> Outcome:
        """Have everybody try to sell each of so many new articles."""
        with self.place.opened() as connection, connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {ORDERS}")
            cursor.execute(f"DELETE FROM {STOCK}")
            cursor.executemany(
                f"INSERT INTO {STOCK} VALUES (%s, 1)", [(number,) for number in range(articles)]
            )
        task = {"environment": environment_of(self.place), "begin": 0, "end": articles}
        line = json.dumps({**task, "pause": PAUSE_S, **self.options, **how}) + "\n"
        for child in self.children:
            child.stdin.write(line)
            child.stdin.flush()
        said = [json.loads(child.stdout.readline()) for child in self.children]
        with self.place.opened() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT article FROM {ORDERS}")
            ordered = [article for (article,) in cursor.fetchall()]
        return Outcome(
            orders=[ordered.count(number) for number in range(articles)],
            sold=sum(child["sold"] for child in said),
            refused=sum(child["refused"] for child in said),
        )


@pytest.fixture
def shop(place: Place, children: list[Any], redis_url: str, prefix: str, no_litter: None) -> Shop:
    """One with locks on the shared server."""
    return Shop(place, children, url=redis_url, prefix=prefix)


def test_each_article_is_sold_once(shop: Shop) -> None:
    """And every transaction succeeds."""
    outcome = shop.sell(12)
    assert outcome.orders == [1] * 12
    assert outcome.sold == 12
    assert not outcome.refused


def test_the_old_way_does_not_do(shop: Shop) -> None:
    """Released before the COMMIT: this is what the lock is held on for."""
    # Long enough before the COMMIT for the next one to come and read, also on a busy machine.
    outcome = shop.sell(12, release="now", pause=0.03)
    if shop.place.kind == "sqlite":
        assert outcome.refused
    else:
        assert max(outcome.orders) > 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_of_three_hundred_articles_is_sold_once(shop: Shop) -> None:
    """As above."""
    outcome = shop.sell(300)
    assert outcome.orders == [1] * 300
    assert outcome.sold == 300
    assert not outcome.refused
