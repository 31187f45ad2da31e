"""Complete a coroutine that never suspends.

Procedures are written once as ``async def``. With a blocking port none of their awaits ever
suspends, so a single ``send(None)`` runs them to the end: no event loop, no thread, under a
microsecond.

Source: the idea is gel-python's ``iter_coroutine``; the arithmetic of its cost is in
docs/explanation/one-text.md.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end and return its value.

    Raises:
        RuntimeError: the coroutine suspended, so a port that must block is really asynchronous.
        Whatever the coroutine raises, unchanged.
    """
    try:
        waiting_for = coroutine.send(None)
    except StopIteration as done:
        # Not in a name: a kept traceback keeps this frame, and would keep a dropped lease alive.
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError(
        f"{coroutine!r} suspended on {waiting_for!r}: a blocking port must not suspend"
    )
