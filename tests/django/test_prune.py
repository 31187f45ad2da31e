"""What is kept for a time only is removed by age, a batch at a time."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lockapp.management.subcommands import pruning
from lockapp.models import Fence, IdempotencyRecord, LockEvent, LockHold

pytestmark = pytest.mark.django_db
TABLES = (LockEvent, LockHold, Fence, IdempotencyRecord)


def ago(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


def fill(*ages: float) -> None:
    """A row in each table for each age in days."""
    for number, age in enumerate(ages):
        at, digest = ago(age), f"{number:032x}"
        LockEvent.objects.create(identity=digest, alias="default", kind="released", at=at)
        LockHold.objects.create(
            alias="default", name="a", name_digest=digest, fence=1, granted_at=at, ended_at=at
        )
        Fence.objects.create(
            digest=digest, name="a", engine="e", epoch=1, fence=1, owner="", claimed_at=at
        )
        IdempotencyRecord.objects.create(
            digest=digest, key=digest, method="POST", path="/", created_at=at, expires_at=at
        )


def left() -> list[int]:
    return [table._default_manager.count() for table in TABLES]


def prune(*arguments: str) -> None:
    call_command("lockapp", "prune", *arguments)


def test_only_what_has_expired_goes_unless_an_age_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody loses an audit log by a command that used to tidy up."""
    fill(400, 3, -1)
    prune()
    assert left() == [3, 3, 3, 1]
    assert capsys.readouterr().out == "2 expired idempotency records removed\n"


def test_each_table_has_an_age_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """In whole days."""
    fill(400, 40, 4, -1)
    prune("--events", "30", "--holds", "365", "--fences", "1")
    assert left() == [2, 3, 1, 1]
    assert capsys.readouterr().out.splitlines() == [
        "3 expired idempotency records removed",
        "2 lock events removed",
        "1 lock holds removed",
        "3 fences removed",
    ]


def test_a_dry_run_removes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """And tells what would be; also to programs."""
    fill(40, 4, -1)
    prune("--events", "30", "--dry-run")
    assert "1 lock events would be removed" in capsys.readouterr().out
    prune("--events", "3", "--holds", "1", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out) == {"records": 2, "events": 2, "holds": 2}
    assert left() == [3, 3, 3, 3]


@pytest.mark.parametrize("age", ["-1", "0", "1.5", "x", "²", "1000000"])
def test_an_age_that_makes_no_sense_is_refused(age: str) -> None:
    """Before anything is removed."""
    with pytest.raises(CommandError, match="days"):
        prune("--events", age)


@pytest.mark.parametrize("table", TABLES)
def test_a_batch_is_a_statement_of_its_own(table: Any) -> None:
    """No statement removes more than that, and the oldest go first."""
    fill(*range(7, 0, -1), -1)
    seen: list[int] = []
    rows = table.objects
    before = {} if table is IdempotencyRecord else {"before": timezone.now()}
    with CaptureQueriesContext(connection) as sent:
        assert rows.prune(**before, batch=3, progress=seen.append) == 7
    deletes = [each["sql"] for each in sent if each["sql"].startswith("DELETE")]
    assert (seen, len(deletes), rows.count()) == ([3, 6, 7], 3, 1)


@pytest.mark.django_db(transaction=True)
def test_each_batch_is_committed_before_the_next() -> None:
    """What was removed before an interruption stays so; others don't wait for the whole."""
    fill(*range(7, 0, -1))
    seen: list[int] = []

    def look() -> None:
        seen.append(LockEvent.objects.count())
        connection.close()

    def progress(removed: int) -> None:
        other = threading.Thread(target=look)
        other.start()
        other.join()
        if removed == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LockEvent.objects.prune(timezone.now(), batch=2, progress=progress)
    assert seen == [5, 3]
    assert LockEvent.objects.count() == 3


def test_a_hold_is_as_old_as_its_end() -> None:
    """One that was held for long is kept; one that has no end after so long is not."""
    fill(40, 40, 40)
    long, endless, _ = LockHold.objects.order_by("pk")
    LockHold.objects.filter(pk=long.pk).update(ended_at=ago(2))
    LockHold.objects.filter(pk=endless.pk).update(ended_at=None)
    assert LockHold.objects.prune(ago(30), batch=1) == 2
    assert LockHold.objects.get() == long


def test_a_fence_that_is_claimed_meanwhile_stays() -> None:
    """It is compared again when it is removed."""
    fill(40, 40, 40)

    def claim(removed: int) -> None:
        Fence.objects.filter(digest=f"{2:032x}").update(claimed_at=timezone.now())

    assert Fence.objects.prune(ago(30), batch=1, progress=claim) == 2
    assert Fence.objects.get().digest == f"{2:032x}"


def test_a_long_run_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a program reads it."""
    monkeypatch.setattr(pruning, "TELL_S", 0)
    fill(40, 40, 40)
    prune("--events", "30", "--batch", "2", "--dry-run")
    assert "so far" not in capsys.readouterr().out
    prune("--holds", "30", "--batch", "2", "--json")
    assert "so far" not in capsys.readouterr().out
    prune("--events", "30", "--batch", "2")
    assert (
        "… 2 lock events so far\n… 3 lock events so far\n3 lock events" in capsys.readouterr().out
    )
