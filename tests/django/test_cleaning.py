"""What cleans up leaves alone what is held: only a lease that has run out on the server is over."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from lockapp import tasks
from lockapp.core.values import HolderState
from lockapp.handler import locks, semaphore
from lockapp.models import LockEvent, LockHold
from lockapp.testing import held_by_other

pytestmark = pytest.mark.django_db(transaction=True)


def command(*words: str) -> Callable[[], object]:
    return lambda: call_command(*words, stdout=io.StringIO(), stderr=io.StringIO())


CLEANERS = {
    "sweep": command("lockapp", "sweep"),
    "the sweep task": lambda: tasks.sweep(),
    "collect": command("lockapp", "collect"),
    "the collect task": lambda: tasks.collect(),
    "prune": command("lockapp", "prune", "--events", "1", "--holds", "1", "--fences", "1"),
    "events deleted": lambda: LockEvent.objects.all()._raw_delete("default"),
    "holds deleted": lambda: LockHold.objects.all()._raw_delete("default"),
    "migrate": command("migrate"),
    "check": command("check"),
    "another engine object": locks.reset,
}


def holders() -> dict[str, list[HolderState]]:
    return {state.name: list(state.holders) for state in locks["default"].snapshot().locks}


@pytest.mark.parametrize("cleaner", CLEANERS)
def test_what_is_held_is_held_afterwards(redis_locks: Any, cleaner: str) -> None:
    """By the same holders, for no less time; none of them hears of anything."""
    lost: list[Any] = []
    with (
        held_by_other("import", 1, ttl=60, on_lost=lost.append) as one,
        held_by_other(semaphore("gpu", limit=2, ttl=60, on_lost=lost.append)) as two,
    ):
        before = holders()
        CLEANERS[cleaner]()
        after = holders()
        assert [one.live, two.live, lost] == [True, True, []]
        assert before.keys() == after.keys() == {"import:1", "gpu"}
        for name, were in before.items():
            assert [it.fence for it in after[name]] == [it.fence for it in were]
            lives = zip(after[name], were, strict=True)
            assert all(it.deadline_ms >= was.deadline_ms for it, was in lives)
