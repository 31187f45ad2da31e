"""Tasks with `pydantic=True`: Celery makes models of arguments before the locked body runs.

Without postponed annotations: releases of Celery before 5.6 don't look behind them.
"""

from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from lockapp.celery import current_lease, publish, single_instance
from tests.celery.deliveries import Deliveries
from tests.celery.test_positions import WAYS, ways

pytestmark = [pytest.mark.usefixtures("redis_locks")]


class Order(BaseModel):
    """An argument that Celery makes of a dictionary."""

    pk: int
    note: str = ""


class Receipt(BaseModel):
    """A result that Celery makes a dictionary of."""

    total: int


@ways
@pytest.mark.parametrize("bound", [True, False])
def test_a_model_of_pydantic_names_the_lock_by_a_field(app: Celery, way: str, bound: bool) -> None:
    """The body and the template get the model, the caller the dictionary."""
    names = []

    def capture(order: Order) -> Receipt:
        names.append(current_lease().name)
        assert isinstance(order, Order)
        return Receipt(total=3)

    def bound_capture(self: Any, order: Order) -> Receipt:
        return capture(order)

    task = app.task(bind=bound, name="capture", pydantic=True)(
        single_instance(key="order:{order.pk}")(bound_capture if bound else capture)
    )
    assert WAYS[way](task, {"pk": 7}) == {"total": 3}
    assert names == ["order:7"]


def test_a_model_of_pydantic_has_no_name_of_its_own(app: Celery) -> None:
    """Which of its fields matter is not for us to say; the error asks for them."""

    @app.task(name="capture", pydantic=True)
    @single_instance
    def capture(order: Order) -> None: ...

    with pytest.raises(TypeError, match=r"argument 'order' .* pass what identifies it"):
        capture({"pk": 7})


def test_a_call_whose_model_is_made_later_is_sent_without_a_place(
    deliveries: Deliveries, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what its caller gave; the log says so once, and the body runs under its lock."""
    monkeypatch.setattr(publish, "_WARNED", set())

    def capture(order: Order) -> str:
        return current_lease().name

    locked = {"key": "order:{order.pk}", "scope": "queued_or_running", "pydantic": True}
    task = deliveries.task("capture", **locked)(capture)
    for _ in range(2):
        task.apply_async(({"pk": 7},), headers={"trace": "own"})
    first, second = deliveries.app.sent
    assert first.options["headers"] == second.options["headers"] == {"trace": "own"}
    assert caplog.text.count("sent without a look at the queue") == 1
    assert deliveries.deliver(task, *first.args, task_id=first.id).value == "order:7"
