"""The nodes of the locks themselves, which nobody needs once their queues are empty.

They are made by who finds none, and deleted by who leaves last. Who was alone does so at once. Who
was not, of whom that is not to be expected, looks after it a moment later, when nobody waits for
the server's answer.
"""

from __future__ import annotations

import threading

TIDY_S = 0.25
"""So long a lock's node stays after the last of this process has left its queue."""


class Parents:
    """Which of them are there, as far as this process has seen. Any thread may use any method."""

    def __init__(self) -> None:
        self._entered: dict[str, int] = {}  # by how many nodes of ours
        self._left: dict[str, float] = {}  # since when; in the order of time
        self._guard = threading.Lock()

    def known(self, lock: str) -> bool:
        """Whether it was there when it was last seen."""
        return lock in self._entered or lock in self._left

    def enter(self, lock: str) -> None:
        """Note that a node of ours stands in its queue."""
        with self._guard:
            self._left.pop(lock, None)
            self._entered[lock] = self._entered.get(lock, 0) + 1

    def leave(self, lock: str, now: float) -> None:
        """Note that one does no more."""
        with self._guard:
            self._entered[lock] -= 1
            if not self._entered[lock]:
                del self._entered[lock]
                self._left[lock] = now

    def missing(self, lock: str) -> None:
        """Note that it is gone."""
        self._left.pop(lock, None)

    def put_off(self, lock: str, now: float) -> None:
        """Note that it could not be deleted yet."""
        with self._guard:
            if lock not in self._entered:
                self._left[lock] = now

    def next(self) -> float | None:
        """Return when the next one is to be deleted."""
        first = next(iter(self._left.values()), None)
        return None if first is None else first + TIDY_S

    def take_due(self, now: float, *, all_left: bool) -> list[str]:
        """Forget those that are to be deleted now, and return them."""
        with self._guard:
            due = [lock for lock, at in self._left.items() if all_left or at + TIDY_S <= now]
            for lock in due:
                del self._left[lock]
            return due
