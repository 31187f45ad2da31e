"""Names of task calls: equal calls share one, however they were written or carried."""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lockapp.naming import bind_call, call_name, lock_name
from tests.unit.naming_golden import row


def name_of(function: Callable[..., object], *args: object, **kwargs: object) -> str:
    return call_name("t", bind_call(function, args, kwargs))


class Task:
    def run(self, order: int, alpha: object = None) -> None: ...

    @classmethod
    def build(cls, order: int) -> None: ...


def anything(**options: object) -> None: ...


# ------------------------------------------------------------------ equal calls


def test_a_default_left_out_given_by_place_or_by_name_is_one_call() -> None:
    def t(alpha: object = None) -> None: ...

    assert name_of(t) == name_of(t, None) == name_of(t, alpha=None) == "t:alpha=!none"


def test_none_for_args_or_kwargs_means_none_given() -> None:
    def t(x: int, y: int = 2) -> None: ...

    assert bind_call(t, (1,), None) == bind_call(t, None, {"x": 1}) == {"x": 1, "y": 2}
    assert bind_call(lambda: None, None, None) == {}


def test_the_bound_task_is_no_part_of_the_call() -> None:
    """Its repr holds an address, which no second process shares."""
    assert bind_call(Task().run, (1,), {}) == {"alpha": None, "order": 1}
    assert bind_call(Task.run, (Task(), 1), {}) == {"alpha": None, "order": 1}
    assert bind_call(Task.build, (1,), {}) == {"order": 1}
    assert bind_call(Task.build.__func__, (Task, 1), {}) == {"order": 1}  # type: ignore[attr-defined]


def test_an_argument_that_is_only_called_cls_is_kept() -> None:
    def t(cls: str) -> None: ...

    assert bind_call(t, ("first",), {}) == {"cls": "first"}


def test_a_call_packed_by_a_wrapper_is_unwrapped_to_the_true_signature() -> None:
    task = Task()

    @functools.wraps(task.run)
    def run(*args: Any, **kwargs: Any) -> Any: ...

    assert name_of(run, 1, alpha=2) == name_of(task.run, 1, 2)
    assert name_of(functools.partial(task.run, alpha=2), 1) == name_of(task.run, 1, 2)


def test_the_celery_retry_wrapper_is_unwrapped_too() -> None:
    from celery import Celery

    app = Celery("t", broker="memory://", set_as_current=False)

    @app.task(bind=True, autoretry_for=(KeyError,))  # type: ignore[untyped-decorator, unused-ignore]
    def t(self: Any, foo: object, bar: int = 1) -> None: ...

    assert bind_call(t.run, ("x",), None) == {"bar": 1, "foo": "x"}


def test_the_order_of_keys_plays_no_part_at_any_depth() -> None:
    one = {"spam": 10, "eggs": {"b": 1, "a": 2}}
    other = OrderedDict(eggs={"a": 2, "b": 1}, spam=10)
    expected = "t:foo=!m(eggs=!m(a=2,b=1),spam=10)"
    assert name_of(anything, foo=one) == name_of(anything, foo=other) != expected
    assert call_name("t", {"foo": one}) == call_name("t", {"foo": other}) == expected
    assert call_name("t", {"a": 1, "b": 2}) == call_name("t", {"b": 2, "a": 1})
    assert list(bind_call(lambda b, a: None, (1, 2), {})) == ["a", "b"]
    assert call_name("t", {"s": {"b", "a"}}) == call_name("t", {"s": frozenset(["a", "b"])})


def test_a_tuple_equals_the_list_that_a_serializer_makes_of_it() -> None:
    assert call_name("t", {"x": (1, (2,))}) == call_name("t", {"x": [1, [2]]})
    assert call_name("t", {"x": [1, 2]}) != call_name("t", {"x": {1, 2}})


@pytest.mark.parametrize(
    "value",
    [
        None, "", "見", 1, 1.0, True, [1, (2, "3")], {"b": 1, "a": {"c": None}}, b"\xff", b"a",
        Decimal("1.10"), UUID(int=5), datetime(2025, 3, 30, 1),
        datetime(2025, 3, 30, tzinfo=UTC),
        datetime(2025, 3, 30).date(), datetime(2025, 3, 30, 4, 5).time(),
    ],
)  # fmt: skip
def test_the_broker_does_not_change_the_name(value: object) -> None:
    """Both sides compute it: the publisher from its objects, the worker from what arrived."""
    from kombu.utils.json import dumps, loads

    arrived = loads(dumps({"x": value}))
    assert call_name("t", arrived) == call_name("t", {"x": value})


# ------------------------------------------------------------------ different calls


def test_an_argument_cannot_run_into_its_neighbour_or_its_name() -> None:
    assert call_name("t", {"a": "b=1"}) != call_name("t", {"a=b": "1"})
    assert name_of(anything, a="b=1") != name_of(anything, **{"a=b": "1"})
    assert call_name("t", {"a": "1:b=2"}) != call_name("t", {"a": "1", "b": "2"})
    assert call_name("t", {"x": ["a,b"]}) != call_name("t", {"x": ["a", "b"]})


def test_nothing_empty_and_none_are_different_arguments() -> None:
    values: list[object] = [None, "None", "", b"", [], {}, set(), 0, False, "!none", [None], [""]]
    assert len({call_name("t", {"x": value}) for value in values}) == len(values)


def test_a_call_without_arguments_has_the_name_of_its_prefix() -> None:
    assert call_name("shop.report", {}) == lock_name("shop.report")


def test_a_long_family_is_cut_alike_for_calls_and_for_parts() -> None:
    family = "f" * 150
    assert call_name(family, {"a": 1}) == f"{lock_name(family)}:a=1"


# ------------------------------------------------------------------ refused, the argument named


def test_a_value_without_stable_name_is_refused_with_the_way_to_it() -> None:
    nested = {"spam": [1, {"eggs": object()}]}
    expected = (
        r"argument 'foo'\['spam'\]\[1\]\['eggs'\] of the call 'shop.report' has the type object"
    )
    with pytest.raises(TypeError, match=expected):
        call_name("shop.report", {"foo": nested})
    with pytest.raises(
        ValueError, match=r"argument 'row' of the call 't' is an unsaved shop.order"
    ):
        call_name("t", {"row": row("shop.order", None)})
    with pytest.raises(ValueError, match=r"argument 'x' element of the call 't' is nan"):
        call_name("t", {"x": {float("nan")}})
    with pytest.raises(ValueError, match=r"argument 'x' key of .* lone surrogate"):
        call_name("t", {"x": {"\ud800": 1}})


def test_keys_that_json_would_turn_into_text_are_refused() -> None:
    """The worker would see "1" where the publisher saw 1, and compute another name."""
    assert json.loads(json.dumps({1: "a"})) == {"1": "a"}
    with pytest.raises(TypeError, match=r"argument 'x' .*key of type int; use text keys"):
        call_name("t", {"x": {1: "a"}})


def test_a_structure_that_contains_itself_is_refused_at_once() -> None:
    loop: list[object] = []
    loop += [loop, loop]
    with pytest.raises(ValueError, match=r"contains itself"):
        call_name("t", {"x": loop})
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match=r"nested deeper than 32"):
        call_name("t", {"x": deep})
    twice = [1]
    assert call_name("t", {"x": [twice, twice]}) == "t:x=!l(!l(1),!l(1))"


def test_arguments_that_do_not_fit_are_named() -> None:
    def t(x: int) -> None: ...

    with pytest.raises(TypeError, match=r"call of .*t does not fit .*missing .*'x'"):
        bind_call(t, (), None)
    with pytest.raises(TypeError, match=r"call of .*t does not fit .*unexpected .*'y'"):
        bind_call(t, (1,), {"y": 2})
    with pytest.raises(TypeError, match=r"has no signature"):
        bind_call(iter, ([],), None)


def test_an_empty_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the family .*is empty"):
        call_name("", {"a": 1})
