"""What can't work is refused where it is written, with the name of what can."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from lockapp.celery import single_instance


def refused(match: str, kind: type[Exception] = TypeError) -> Any:
    """Expect a refusal whose message matches."""
    return pytest.raises(kind, match=match)


def body(order_id: int, amount: int = 1) -> str:
    """Body's own words."""
    return f"{order_id}/{amount}"


def test_a_task_object_is_refused_with_the_right_order(app: Celery) -> None:
    """Locking outside of the task would lock the sender."""
    with refused("goes below the decorator that makes the task"):
        single_instance(app.task(body))  # type: ignore[type-var]
    with refused("goes below the decorator that makes the task"):
        single_instance(key="order:{order_id}")(shared_task(body))


@pytest.mark.parametrize("bare", [True, False])
def test_shapes_whose_body_would_run_unlocked_are_refused(bare: bool) -> None:
    """Calling them only begins the body; the lock would be gone before it runs."""

    async def coroutine() -> None: ...
    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> Any:
        yield 1

    decorate: Callable[..., Any] = (
        single_instance if bare else single_instance(on_contention="raise")
    )
    with refused("is async: .* sync task"):
        decorate(coroutine)
    with refused("is a generator"):
        decorate(generator)
    with refused("is a generator"):
        decorate(asynchronous_generator)

    class Report:
        async def __call__(self) -> None: ...

    class Pages:
        def __call__(self) -> Iterator[int]:
            yield 1

    for asynchronous in (partial(coroutine), Report()):
        with refused("is async: .* sync task"):
            decorate(asynchronous)
    for late in (partial(generator), partial(asynchronous_generator), Pages()):
        with refused("is a generator"):
            decorate(late)


def test_a_partial_is_a_task_body_like_any_other(app: Celery, redis_locks: object) -> None:
    """With a name of its own, since a partial has none; called as Celery calls it."""
    task = app.task(name="partly")(single_instance(partial(body, 7)))
    assert task.apply((2,)).get() == "7/2"


def test_what_is_no_function_is_refused() -> None:
    """A class, a descriptor, a key given by position."""

    class Report(Task):
        name = "report"

    with refused(r"run\(\) method of Report"):
        single_instance(Report)
    with refused("below @staticmethod"):
        single_instance(staticmethod(body))
    with refused(r"by name, as in @single_instance\(key='order:\{order_id\}'\)"):
        single_instance("order:{order_id}")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        (
            {"on_contention": "skipp"},
            ValueError,
            r"'rerun', 'retry', 'skip', 'wait'\].*did you mean 'skip'",
        ),
        ({"on_contention": None}, TypeError, "on_contention must be one of"),
        ({"wait": 5}, TypeError, "use on_contention='wait'"),
        ({"on_contention": "raise", "wait": 5}, TypeError, "use on_contention='wait'"),
        ({"on_contention": "wait", "wait": 0}, ValueError, "use on_contention='raise' or 'skip'"),
        ({"on_contention": "wait", "wait": -1}, ValueError, "wait must be"),
        ({"on_contention": "wait", "wait": "5"}, TypeError, "wait must be"),
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"ttl": True}, TypeError, "ttl must be"),
        ({"ttl": float("nan")}, ValueError, "ttl must be"),
        ({"max_hold": -1}, ValueError, "max_hold must be"),
        ({"using": None}, TypeError, "using must be text"),
        ({"key": 5}, TypeError, "key must be a template"),
        ({"limit": 0}, ValueError, "limit must be"),
        ({"limit": 1.5}, TypeError, "limit must be"),
        ({"limit": 2, "on_contention": "join"}, ValueError, "'join' speaks of the one that runs"),
        ({"limit": 2, "remember": 5}, ValueError, "remember= speaks of the one that runs"),
        ({"remember": -1}, ValueError, "remember must be"),
        ({"remember": 5, "on_contention": "rerun"}, ValueError, "leave out one of them"),
        ({"remember": 5, "on_unavailable": "open"}, ValueError, "runs without a lock"),
        ({"cache": "default"}, TypeError, "cache= has no meaning with on_contention='skip'"),
        ({"on_contention": "retry", "wait": 0}, ValueError, "wait"),
        ({"scope": "queue"}, ValueError, r"scope must be one of \['queued'.*did you mean 'queued'"),
        ({"scope": None}, TypeError, "scope must be one of"),
        ({"queued_ttl": 60}, TypeError, "queued_ttl= has no meaning with scope='running'"),
        ({"scope": "queued", "queued_ttl": 0}, ValueError, "queued_ttl must be"),
        ({"scope": "queued", "on_contention": "wait"}, TypeError, "on_contention= has no meaning"),
        ({"scope": "queued", "limit": 2}, TypeError, "limit= has no meaning with scope='queued'"),
        ({"scope": "queued", "ttl": 5}, TypeError, "ttl= has no meaning with scope='queued'"),
        ({"scope": "queued", "on_lost": "raise"}, TypeError, "on_lost= has no meaning"),
        (
            {"scope": "queued_or_running", "on_contention": "rerun"},
            ValueError,
            "'rerun' wants every copy sent.*scope='queued_and_running'",
        ),
        ({"scope": "queued_or_running", "limit": 2}, ValueError, "one copy from publish to end"),
        ({"scope": "queued_and_running"}, ValueError, "use on_contention='wait' or 'retry'"),
        (
            {"scope": "queued_and_running", "on_contention": "join"},
            ValueError,
            "use on_contention='wait' or 'retry'",
        ),
        (
            {"scope": "queued_and_running", "on_contention": "wait", "remember": 5},
            ValueError,
            "remember= would end the copy",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], kind: type[Exception], match: str
) -> None:
    """Before any worker runs, naming the option."""
    with refused(match, kind):
        single_instance(**options)(body)


@pytest.mark.parametrize(
    ("key", "kind", "match"),
    [
        ("{order_id}", ValueError, "must start with fixed text"),
        ("", ValueError, "empty part"),
        ("order::{order_id}", ValueError, "empty part"),
        ("order:{order}", TypeError, "no parameter 'order'; there are: order_id, amount"),
        ("order:{self.name}", TypeError, "self says where"),
        ("order:{order_id}-{amount}", ValueError, "put a colon between"),
        ("order:no-{order_id}", ValueError, "put a colon between"),
        ("order:{}", ValueError, "must name an argument"),
        ("order:{0}", ValueError, "must name an argument"),
        ("order:{order_id!r}", ValueError, "must name an argument"),
        ("order:{order_id[0]}", ValueError, "must name an argument"),
        ("order:{order_id:05}", ValueError, "before the colon"),
        ("order:{order_id", ValueError, "can't be read"),
        ("order:{order_id.__class__}", ValueError, "private attribute"),
    ],
)
def test_templates_that_make_no_sense_are_refused(
    key: str, kind: type[Exception], match: str
) -> None:
    """At decoration, since the signature is known there."""
    with refused(match, kind):
        single_instance(key=key)(body)


def test_the_function_keeps_its_name_signature_and_words() -> None:
    """For people, documentation and Celery."""
    decorated = single_instance(body)
    assert decorated.__name__ == "body"
    assert decorated.__doc__ == "Body's own words."
    assert inspect.signature(decorated) == inspect.signature(body)


@pytest.mark.parametrize("bound", [True, False])
def test_celery_still_checks_arguments_when_a_task_is_sent(app: Celery, bound: bool) -> None:
    """Its check does not look behind wrappers."""

    def bound_body(self: object, order_id: int, amount: int = 1) -> None: ...

    task = app.task(bind=bound, name="checked")(single_instance(bound_body if bound else body))
    with refused("missing 1 required positional argument: 'order_id'"):
        task.apply_async(())
    with refused("unexpected keyword argument 'nobody'"):
        task.apply_async((1,), {"nobody": 2})
