"""What the admin's list of holds asks is answered by an index, however many rows there are.

Each query that the list sends is judged by the rows that the database reads for it, as it counts
them itself. The small table is as telling as the large one: it is many times what a page may read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lockapp.dashboard import long_lists
from lockapp.models import LockHold
from lockapp.naming import name_digest
from tests.django.fence_places import ALIAS, Place

SMALL = 20_000
LARGE = int(os.environ.get("LOCKAPP_TEST_HOLDS", "500000"))
"""Five million on PostgreSQL have been shown too; filling them takes minutes."""
MOST_READ = 10_000  # by one query: the count goes up to 1,000

# One text for all three, but for how numbers are made and what is done with them.
ROWS = """
INSERT INTO lockapp_lockhold (alias, kind, name, name_digest, family, fence, host, pid, task,
  task_id, {user}, path, granted_at, ended_at, ended, actor, reason, ttl_ms, waited_ms, held_ms)
{numbers}
SELECT 'default', CASE WHEN n % 2000 = 7 THEN 'write' ELSE 'mutex' END, {name}, {digest},
  {family}, n, 'web1', '77', 'shop.report', '', '', '', {at}, {at},
  CASE n % 5000 WHEN 0 THEN '' WHEN 1 THEN 'forced' ELSE 'released' END, '', '', 30000, 0, 5
FROM {source}
"""
DIALECTS = {
    "postgres": {
        "user": '"user"',
        "numbers": "",
        "name": "'family' || (n % 20) || ':' || (n / 10)",
        "digest": "md5('family' || (n % 20) || ':' || (n / 10))",
        "family": "'family' || (n % 20)",
        "at": "timestamptz '2026-01-01' + n * interval '500 ms'",
        "source": "generate_series(1, {rows}) n",
    },
    "mariadb": {
        "user": "`user`",
        "numbers": "",
        "name": "concat('family', n % 20, ':', n div 10)",
        "digest": "md5(concat('family', n % 20, ':', n div 10))",
        "family": "concat('family', n % 20)",
        "at": "timestamp('2026-01-01') + interval n second",
        "source": "(SELECT seq AS n FROM seq_1_to_{rows}) numbers",
    },
    "sqlite": {
        "user": '"user"',
        "numbers": "WITH RECURSIVE numbers(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})",
        "name": "'family' || (n % 20) || ':' || (n / 10)",
        "digest": "printf('%032x', n / 10 * 20 + n % 20)",
        "family": "'family' || (n % 20)",
        "at": "datetime('2026-01-01', n || ' seconds')",
        "source": "numbers",
    },
}


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.soak)])
def rows(request: pytest.FixtureRequest) -> int:
    """How many there are."""
    return int(request.param)


@pytest.fixture(scope="module")
def database(place: Place, rows: int, django_db_blocker: Any) -> Iterator[Any]:
    """The table of holds, filled, as ALIAS."""
    with django_db_blocker.unblock(), place.opened() as connection:
        words = {key: text.format(rows=rows) for key, text in DIALECTS[place.kind].items()}
        with connection.schema_editor() as editor:
            editor.create_model(LockHold)
            # The indexes come when the editor is left, which is quicker.
            editor.execute(ROWS.format(**words), params=None)
        with connection.cursor() as cursor:
            for number in range(3):
                LockHold.objects.using(ALIAS).create(
                    name="report:nightly", name_digest=name_digest("report:nightly"),
                    family="report", fence=number, granted_at=timezone.now(),
                )  # fmt: skip
            cursor.execute(TIDY[place.kind])
        yield connection
        with connection.schema_editor() as editor:
            editor.delete_model(LockHold)


class ToPlace:
    """Sends what concerns holds to the database under test."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """See Django."""
        return ALIAS if model is LockHold else None


def reads(connection: Any, kind: str, sql: str) -> int:
    """How many rows the database reads for a query, about."""
    with connection.cursor() as cursor:
        if kind == "postgres":
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            (plan,) = cursor.fetchone()
            return _scanned((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
        if kind == "mariadb":
            cursor.execute("FLUSH STATUS")
            cursor.execute(sql)
            cursor.fetchall()
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for name, value in cursor.fetchall() if "deleted" not in name)
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 10

        connection.connection.set_progress_handler(count, 10)
        try:
            cursor.execute(sql)
            cursor.fetchall()
        finally:
            connection.connection.set_progress_handler(None, 0)
        return steps // 3  # of its machine, a row, at least


def _scanned(node: dict[str, Any]) -> int:
    """What the scans of a PostgreSQL plan read, with what they threw away."""
    below = sum(_scanned(each) for each in node.get("Plans", ()))
    if not node["Node Type"].endswith("Scan"):
        return below
    found = sum(node.get(key, 0) for key in ("Actual Rows", "Rows Removed by Filter"))
    return below + int(found * node["Actual Loops"])


# As the databases do by themselves after a while; PostgreSQL then reads indexes without the table.
TIDY = {
    "postgres": "VACUUM ANALYZE",
    "mariadb": "ANALYZE TABLE lockapp_lockhold",
    "sqlite": "ANALYZE",
}

QUESTIONS = {
    "list": {},
    "second page": {"p": "2"},
    "oldest": {"o": "1"},
    "without end": {"ended__exact": ""},
    "rare end": {"ended__exact": "forced"},
    "common end": {"ended__exact": "released"},
    "rare kind": {"kind__exact": "write"},
    "family": {"family": "family7"},
    "engine": {"alias": "default"},
    "other engine": {"alias": "other"},
    "exact name": {"q": "report:nightly"},
    "beginning of a name": {"q": "report:ni"},
    "name of one of many": {"q": "family7:100"},
    "a whole family by name": {"q": "family7:"},
    "nothing": {"q": "nothing"},
}


@pytest.mark.django_db
@pytest.mark.timeout(1800)
def test_no_page_of_the_list_reads_more_than_a_few_rows(
    database: Any, place: Place, rows: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the page, the count up to its limit, and the values of the filters."""
    monkeypatch.setattr(long_lists, "MOST_ROWS", 1000)
    settings.DATABASE_ROUTERS = [ToPlace()]
    most = {}
    for question, query in QUESTIONS.items():
        request = RequestFactory().get("/", query)
        request.user = User(is_superuser=True, is_active=True, is_staff=True)
        with CaptureQueriesContext(database) as sent:
            changes = admin.site.get_model_admin(LockHold).get_changelist_instance(request)
            found = list(changes.result_list)
        assert bool(found) is (question not in ("nothing", "other engine")), question
        assert len(sent) >= 3, question
        counts = {each["sql"]: reads(database, place.kind, each["sql"]) for each in sent}
        most[question] = max((count, sql) for sql, count in counts.items())
    assert {key: it for key, it in most.items() if it[0] > MOST_READ} == {}

    history = LockHold.objects.using(ALIAS).for_lock("report:nightly").order_by("-fence")
    with CaptureQueriesContext(database) as sent:
        assert [hold.fence for hold in history] == [2, 1, 0]
    assert reads(database, place.kind, sent[0]["sql"]) <= 400
    everything = "SELECT count(*) FROM lockapp_lockhold WHERE reason = 'x'"
    assert reads(database, place.kind, everything) >= rows, "the measure sees a whole table"
