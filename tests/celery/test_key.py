"""Call → lock name: equal calls share one, different ones never do."""

from __future__ import annotations

import inspect
import types
from types import SimpleNamespace
from typing import Any

import pytest

from lockapp.celery.identity import Call, KeyOption, make_key
from lockapp.naming import lock_name


def capture(order_id: object, amount: int = 1, *rest: object, **more: object) -> None: ...


def bound_capture(this: object, order_id: object, amount: int = 1) -> None: ...


def name(key: KeyOption, *args: object, **kwargs: object) -> str:
    """Name a call of `capture` under the task name shop.capture."""
    made = make_key(key, inspect.signature(capture))
    return made.name("shop.capture", Call(capture, args, kwargs))


def test_by_default_the_task_and_all_its_arguments_count() -> None:
    """However the call is written."""
    assert name(None, 7) == name(None, order_id=7) == name(None, 7, 1) == name(None, 7, amount=1)
    assert len({name(None, 7), name(None, 8), name(None, "7"), name(None, 7, 2)}) == 4
    assert name(None, 7).startswith("shop.capture:")


@pytest.mark.parametrize("key", [None, "order:{order_id}:{amount}"])
def test_a_call_in_order_is_named_as_one_by_name_with_the_task_object_or_without(
    key: KeyOption,
) -> None:
    """The short way and the long way to the same name."""

    def plain(order_id: object, amount: int = 1) -> None: ...

    calls = [
        Call(plain, (7, 1), {}),
        Call(plain, (7,), {}),
        Call(plain, (), {"amount": 1, "order_id": 7}),
    ]
    bound = [
        Call(types.MethodType(bound_capture, object()), args, kwargs) for _, args, kwargs in calls
    ]
    names = {make_key(key, inspect.signature(plain)).name("shop.capture", it) for it in calls}
    names |= {
        make_key(key, inspect.signature(bound_capture)).name("shop.capture", it) for it in bound
    }
    assert len(names) == 1


def test_calls_that_only_look_complete_are_bound_all_the_same() -> None:
    """What is not the work at hand stays out; what does not fit is refused."""

    def built(cls: type, order_id: int) -> None: ...
    def starred(order_id: int, *rest: int) -> None: ...
    def keyed(order_id: int, *, amount: int) -> None: ...

    def named(function: Any, *args: object) -> str:
        return make_key(None, inspect.signature(function)).name("t", Call(function, args, {}))

    assert named(built, int, 7) == "t:order_id=7"
    assert named(starred, 7, 8) != named(starred, 7, 9) != named(starred, 7)
    with pytest.raises(TypeError, match="does not fit"):
        named(keyed, 7, 8)


def test_the_task_object_of_a_bound_task_does_not_count_whatever_it_is_called() -> None:
    """Its repr differs from process to process."""
    call = Call(types.MethodType(bound_capture, object()), (7,), {})
    made = make_key(None, inspect.signature(bound_capture))
    assert made.name("shop.capture", call) == "shop.capture:amount=1:order_id=7"


def test_a_template_names_the_same_lock_as_the_parts_elsewhere() -> None:
    """So that a view and a task can exclude each other; the value keeps its type."""
    assert name("order:{order_id}", 42) == lock_name("order", 42)
    assert name("order:{order_id}", "42") == lock_name("order", "42")
    assert name("order:{order_id}:capture:{amount}", 42, 5) == lock_name("order", 42, "capture", 5)
    assert name("nightly report", 1) == lock_name("nightly report")


def test_a_template_reads_defaults_attributes_and_further_keywords() -> None:
    """Attributes of values, not items."""
    order = SimpleNamespace(customer=SimpleNamespace(pk=9))
    assert name("order:{amount}", 7) == "order:1"
    assert name("customer:{order_id.customer.pk}", order) == "customer:9"
    assert name("tenant:{tenant}", 7, tenant="blue") == "tenant:blue"


@pytest.mark.parametrize(
    ("key", "order_id", "error", "match"),
    [
        ("order:{order_id}", None, TypeError, "order_id is None"),
        ("order:{order_id.pk}", SimpleNamespace(pk=None), TypeError, "order_id.pk is None"),
        ("order:{order_id.pk}", 7, AttributeError, "pk"),
        ("tenant:{tenant}", 7, TypeError, "no argument 'tenant'"),
        ("order:{order_id}", object(), TypeError, "part 2"),
        (None, object(), TypeError, "argument 'order_id'"),
        (lambda order_id: f"order:{order_id}", 7, TypeError, "as a tuple"),
        (lambda order_id: order_id, 7, TypeError, "as a tuple"),
    ],
)
def test_a_call_that_makes_no_name_is_refused(
    key: KeyOption, order_id: object, error: type[Exception], match: str
) -> None:
    """Naming the argument."""
    with pytest.raises(error, match=match):
        name(key, order_id)


def test_a_callable_gets_the_arguments_and_returns_the_parts() -> None:
    """As the call was written."""
    seen: list[Any] = []

    def key(*args: object, **kwargs: object) -> tuple[object, ...]:
        seen.append((args, kwargs))
        return ("order", args[0])

    assert name(key, 7, amount=3) == lock_name("order", 7)
    assert seen == [((7,), {"amount": 3})]
