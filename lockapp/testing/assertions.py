"""Assertions about who holds what. Each asks the engine, once."""

from __future__ import annotations

from lockapp.conf import DEFAULT_ALIAS
from lockapp.core.values import LockState
from lockapp.engines.base import Engine
from lockapp.engines.memory.engine import MemoryEngine
from lockapp.engines.memory.hands import waiting
from lockapp.handler import locks
from lockapp.naming import lock_name, readable

PAGE = 100


def assert_locked(*parts: object, using: str = DEFAULT_ALIAS) -> None:
    """Assert that somebody, whoever it is, holds this lock.

    Not to be taken for :func:`lockapp.assert_locked`, which is for the code itself: there it is the
    caller who must hold it.

    Raises:
        AssertionError: nobody does; the message says which locks are held.
        EngineUnavailable: could not ask.
    """
    engine, name = locks[using], lock_name(*parts)
    if engine.show(name) is None:
        held = ", ".join(readable(state.name) for state in _held(engine)) or "nothing is"
        raise AssertionError(f"{readable(name)!r} is not held on {using!r}; held: {held}")


def assert_not_locked(*parts: object, using: str = DEFAULT_ALIAS) -> None:
    """Assert that nobody holds this lock.

    Raises:
        AssertionError: somebody does; the message says who.
        EngineUnavailable: could not ask.
    """
    state = locks[using].show(lock_name(*parts))
    if state is not None:
        raise AssertionError(_about(state))


def assert_no_litter(using: str | None = None) -> None:
    """Assert that nothing is held and nobody waits, on any engine or on one.

    For the end of a test. On a shared server that is what anybody does under this prefix. Of other
    engines than the memory engine, who waits is seen only where somebody holds.

    Raises:
        AssertionError: something is left; the message says what and whose.
        EngineUnavailable: could not ask.
    """
    engines = locks.all(initialized_only=True) if using is None else [locks[using]]
    left = [_about(state) for engine in engines for state in _held(engine)]
    for engine in engines:
        if isinstance(engine, MemoryEngine):
            left += [f"{readable(name)!r} is waited for" for name in waiting(engine.server)]
    if left:
        raise AssertionError("left behind: " + "; ".join(left))


def _held(engine: Engine) -> list[LockState]:
    found: list[LockState] = []
    while True:
        page = engine.snapshot(len(found), PAGE)
        found.extend(page.locks)
        if len(page.locks) < PAGE:
            return found


def _about(state: LockState) -> str:
    holders = "; ".join(
        ", ".join(f"{key} {value}" for key, value in holder.description.items())
        for holder in state.holders
    )
    more = f", and {state.waiter_count} wait for it" if state.waiter_count else ""
    return f"{readable(state.name)!r} is held by {holders}{more}"
