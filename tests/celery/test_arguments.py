"""What counts as the same call once the broker has carried its arguments. On a real worker."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery

from lockapp.celery import LockTask, single_instance, was_skipped
from lockapp.celery.places import places_of
from tests.celery.conftest import Run, get

ORDER = uuid.UUID("b5f2a1a0-6f0d-4c3e-8f8c-0a5a7f0d8d11")
NOON = datetime(2025, 3, 30, 1, 0, tzinfo=UTC)

Sent = dict[str, Any]


def value(given: object) -> Sent:
    """How a call with one positional value is sent."""
    return {"args": (given,)}


SAME: dict[str, tuple[Sent, Sent]] = {
    "a default left out, given, and given by name": ({"args": ()}, {"kwargs": {"value": None}}),
    "a default left out and given": ({"args": ()}, value(None)),
    "by place and by name": (value(7), {"kwargs": {"value": 7}}),
    "no keywords and None for them": ({"args": (7,), "kwargs": None}, value(7)),
    "keys in another order, at every depth": (
        value({"spam": 10, "eggs": {"b": 1, "a": [2]}}),
        value({"eggs": {"a": [2], "b": 1}, "spam": 10}),
    ),
    "a tuple and a list": (value((1, 2)), value([1, 2])),
    "one instant in two zones": (
        value(NOON),
        value(NOON.astimezone(timezone(timedelta(hours=1)))),
    ),
    "zeros behind a decimal": (value(Decimal("1.10")), value(Decimal("1.1"))),
    "the same UUID": (value(ORDER), value(uuid.UUID(str(ORDER)))),
}

DIFFERENT: dict[str, tuple[Sent, Sent]] = {
    "aware and naive": (value(NOON), value(NOON.replace(tzinfo=None))),
    "a day and its first moment": (value(date(2025, 3, 30)), value(datetime(2025, 3, 30))),
    "a number and its digits": (value(1), value("1")),
    "one and true": (value(1), value(True)),
    "None and its name": (value(None), value("None")),
    "digits that move over": (
        {"args": (1,), "kwargs": {"more": 23}},
        {"args": (12,), "kwargs": {"more": 3}},
    ),
    "two code points and one": (value("e\u0301"), value("\u00e9")),
}


def send(run: Run, sent: Sent) -> Any:
    """Send a call; the run comes first among its arguments."""
    args, kwargs = (run.id, *sent.get("args", ())), sent.get("kwargs", {})
    result = run.client.send_task("by_value", args, kwargs, queue="shared")
    run.sent.append(result)
    return result


@pytest.mark.parametrize("case", SAME)
def test_equal_calls_exclude_each_other(run: Run, case: str) -> None:
    """However they were written, and whatever the serializer made of them."""
    first, second = (sent for sent in SAME[case])
    running = send(run, first)
    run.wait_told("enter")
    skip = get(send(run, second))
    assert was_skipped(skip)
    run.open()
    assert get(running) == skip["name"]


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_calls_run_side_by_side(run: Run, case: str) -> None:
    """Both bodies are inside at once."""
    results = [send(run, sent) for sent in DIFFERENT[case]]
    run.wait_told("enter", 2)
    run.open()
    one, other = (get(result) for result in results)
    assert one != other


def test_a_value_without_a_stable_spelling_fails_the_task_and_names_the_argument(run: Run) -> None:
    """Its body does not run. A float that is no number is the one JSON lets through."""
    with pytest.raises(ValueError, match="value"):
        get(send(run, value(float("nan"))))
    assert not run.told("enter")


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (KeyError,)}])
@pytest.mark.parametrize("sent", [{"args": (7, 1)}, {"args": (7,)}, {"kwargs": {"order": 7}}])
def test_who_sends_names_a_call_as_who_runs_it_does(
    app: Celery, bind: bool, options: dict[str, Any], sent: Sent
) -> None:
    """Also where Celery wraps a bound task once more: the task is no argument of the call."""

    def bound(task: object, order: int, amount: int = 1) -> None: ...
    def plain(order: int, amount: int = 1) -> None: ...

    locked = single_instance(scope="queued")(bound if bind else plain)
    task = app.task(bind=bind, name="capture", base=LockTask, **options)(locked)
    places = places_of(task)
    assert places is not None
    note = places.note(task, sent.get("args"), sent.get("kwargs"))
    assert note.name == "capture:amount=1:order=7"
