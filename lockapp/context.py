"""What the edges know about the work at hand: task, user, request path.

Set once around a task or a request; every lease taken inside carries it in its description, so
that an operator sees *who* holds a lock and not only which process.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType

from lockapp.process import Details

_DETAILS: ContextVar[Details] = ContextVar("lockapp_holder_details", default=())


def current_details() -> Details:
    """Return the details set around this point."""
    return _DETAILS.get()


def holder_details(**details: object) -> AbstractContextManager[None]:
    """Add details to the description of every lease taken inside the block.

    None and empty values are left out; values become text. Blocks nest.
    """
    added = {key: str(value) for key, value in details.items() if value not in (None, "")}
    return _Around(added)


class _Around:
    """One block; left as it was entered, in the same context."""

    __slots__ = ("_added", "_before")

    def __init__(self, added: dict[str, str]) -> None:
        self._added = added
        self._before: Token[Details]

    def __enter__(self) -> None:
        self._before = _DETAILS.set(tuple({**dict(_DETAILS.get()), **self._added}.items()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _DETAILS.reset(self._before)
