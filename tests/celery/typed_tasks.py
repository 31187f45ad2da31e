"""What a type checker makes of locked tasks. Read by test_typing.py with mypy; nobody runs it.

Each ignored error is one that must be there: mypy complains of an ignore that nothing needs.
"""

from __future__ import annotations

from typing import Any, assert_type

from celery import Celery, Task, shared_task

from lockapp.celery import Skipped, single_instance, was_skipped

app = Celery("typed")


# The parameters stay, by name and kind; a copy that may be skipped may return so.


@single_instance
def bare(order_id: int, *, note: str = "") -> str:
    return note


assert_type(bare(1, note="urgent"), str | Skipped)
bare("1")  # type: ignore[arg-type]
bare()  # type: ignore[call-arg]
bare(1, "urgent")  # type: ignore[call-arg]
bare(1, nobody=2)  # type: ignore[call-arg]


@single_instance(key="order:{order_id}", limit=2, ttl=30)
def skips(order_id: int) -> str:
    return str(order_id)


@single_instance(on_contention="rerun", cache="default")
def reruns(order_id: int) -> str:
    return str(order_id)


@single_instance(on_contention="join", wait=5, remember=60)
def joins(order_id: int) -> str:
    return str(order_id)


@single_instance(on_contention="retry", wait=None)
def retries(order_id: int) -> str:
    return str(order_id)


assert_type(skips(1), str | Skipped)
assert_type(reruns(1), str | Skipped)
assert_type(joins(1), str)
assert_type(retries(order_id=1), str)
joins("1")  # type: ignore[arg-type]
retries()  # type: ignore[call-arg]

# One decorator for many tasks.

patient = single_instance(on_contention="retry", ttl=10)


@patient
def first(order_id: int) -> str:
    return str(order_id)


@patient
def second(name: str, count: int = 1) -> int:
    return count


assert_type(first(1), str)
assert_type(second("x"), int)
second(1)  # type: ignore[arg-type]

# Under the decorators that make a task.


@shared_task
@single_instance
def shared(order_id: int) -> str:
    return str(order_id)


@shared_task(acks_late=True)
@single_instance(on_contention="join")
def shared_joins(order_id: int) -> str:
    return str(order_id)


assert_type(shared(1), str | Skipped)
assert_type(shared.delay(1).get(), str | Skipped)
assert_type(shared_joins.delay(order_id=1).get(), str)
shared.delay()  # type: ignore[call-arg]
shared_joins.delay("1")  # type: ignore[arg-type]


# Of a bound task, or one of an app, Celery's stubs say Any, with or without us; its body is
# checked.


@app.task(bind=True)
@single_instance
def bound(self: Task[Any, Any], order_id: int) -> str:
    return str(order_id)


bound.delay(1)


class Capture(Task[Any, Any]):
    @single_instance(on_contention="raise")
    def run(self, order_id: int) -> str:
        return str(order_id)


assert_type(Capture().run(1), str)
Capture().run()  # type: ignore[call-arg]

# A result is one of the two.

result = bare(1)
if was_skipped(result):
    assert_type(result, Skipped)
    assert_type(result["name"], str)
else:
    assert_type(result, str)

# Options: what is refused at run time is refused before.

single_instance(on_contention="skipp")  # type: ignore[call-overload]
single_instance(wait=5)  # type: ignore[call-overload]
single_instance(on_contention="rerun", wait=5)  # type: ignore[call-overload]
single_instance("order:{order_id}")  # type: ignore[call-overload]
single_instance(scope="nowhere")  # type: ignore[call-overload]
