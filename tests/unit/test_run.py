"""core.run: completing coroutines that never suspend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

import pytest

from lockapp.core.run import run_sync


async def give(value: object) -> object:
    return value


def test_the_value_of_nested_coroutines_comes_back() -> None:
    """Without an event loop."""

    async def outer() -> list[object]:
        return [await give(1), await give(2)]

    assert run_sync(outer()) == [1, 2]


def test_exceptions_pass_unchanged() -> None:
    """The same object, not a copy or a RuntimeError; StopIteration is Python's own exception."""
    error = KeyError("mine")

    async def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        run_sync(fail())
    assert caught.value is error


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interruptions_run_the_clean_up_and_pass(exception: type[BaseException]) -> None:
    """`except BaseException` inside a procedure gets its turn."""
    done = []

    async def work() -> None:
        try:
            raise exception
        finally:
            done.append(await give("undone"))

    with pytest.raises(exception):
        run_sync(work())
    assert done == ["undone"]


def test_a_port_that_suspends_is_named_and_its_coroutine_closed() -> None:
    """An asynchronous port in a blocking place is a bug of ours."""
    closed = []

    class Suspends(Awaitable[None]):
        def __await__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            yield "a future"

    async def work() -> None:
        try:
            await Suspends()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match=r"work.*suspended on 'a future'"):
        run_sync(work())
    assert closed == [True]


def test_it_works_inside_a_running_loop() -> None:
    """Blocking calls there are bad manners, not impossible."""

    async def main() -> object:
        return run_sync(give(7))

    assert asyncio.run(main()) == 7


def test_context_managers_of_procedures_are_left() -> None:
    """Also when the body raises."""
    steps = []

    @contextlib.asynccontextmanager
    async def block():  # type: ignore[no-untyped-def]  # noqa: ANN202
        steps.append("in")
        try:
            yield
        finally:
            steps.append("out")

    async def work() -> None:
        async with block():
            raise ValueError

    with pytest.raises(ValueError):
        run_sync(work())
    assert steps == ["in", "out"]
