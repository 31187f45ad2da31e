"""Writes down who was inside, and judges at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockapp.lease import Lease


class Journal:
    """Entries and exits in the order in which they happened, with each visitor's fence."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.lines: list[tuple[str, int]] = []

    @contextmanager
    def inside(self, lease: Lease) -> Iterator[None]:
        """Note that the holder of `lease` is inside for the time of the block."""
        self.note("enter", lease.fence)
        try:
            yield
        finally:
            self.note("leave", lease.fence)

    def note(self, what: str, fence: int) -> None:
        with self._guard:
            self.lines.append((what, fence))

    @property
    def visits(self) -> list[int]:
        """The fences in the order of entering."""
        return [fence for what, fence in self.lines if what == "enter"]

    def assert_exclusive(self, visits: int) -> None:
        """Nobody entered before the last one had left, and every fence is larger."""
        entries = self.visits
        assert len(entries) == visits
        wanted = [line for fence in entries for line in (("enter", fence), ("leave", fence))]
        assert self.lines == wanted, "two were inside at once"
        assert entries == sorted(set(entries)), "fences did not grow"
