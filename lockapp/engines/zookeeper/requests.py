"""Requests on their way: made by the session's thread, answered in a thread of the client's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Then = Callable[[Exception | None], None]


class Request(NamedTuple):
    """One request: how kazoo is asked, and what happens at once when the answer is there."""

    make: Callable[[Any], Any]
    then: Callable[[Any, Exception | None], None] | None = None

    @classmethod
    def get(cls, path: str, watch: Callable[[Any], None] | None = None) -> Request:
        """Ask for data and stat; ``watch`` is called when the node changes or goes."""
        return cls(lambda client: client.get_async(path, watch=watch))

    @classmethod
    def children(cls, path: str) -> Request:
        """Ask for the names of the nodes below."""
        return cls(lambda client: client.get_children_async(path))

    @classmethod
    def exists(cls, path: str) -> Request:
        """Ask for the stat, or None."""
        return cls(lambda client: client.exists_async(path))

    @classmethod
    def create(cls, path: str) -> Request:
        """Make a lasting node."""
        return cls(lambda client: client.create_async(path))

    @classmethod
    def contend(
        cls,
        path: str,
        data: bytes,
        vet: Callable[[Any], None],
        then: Callable[[Any, Exception | None], None],
    ) -> Request:
        """Make an ephemeral node, numbered by the server; the answer is path and stat.

        ``vet`` may raise instead.
        """

        def make(client: Any) -> Any:
            vet(client)
            return client.create_async(path, data, ephemeral=True, sequence=True, include_data=True)

        return cls(make, then)

    @classmethod
    def set(cls, path: str, data: bytes, version: int) -> Request:
        """Write data over that very version."""
        return cls(lambda client: client.set_async(path, data, version))

    @classmethod
    def delete(cls, path: str, then: Then | None = None) -> Request:
        """Delete a node."""
        return cls(
            lambda client: client.delete_async(path),
            None if then is None else lambda _, error: then(error),
        )

    @classmethod
    def together(cls, build: Callable[[Any], None], then: Then | None = None) -> Request:
        """Do what ``build`` puts into a transaction: all of it, or none."""

        def make(client: Any) -> Any:
            transaction = client.transaction()
            build(transaction)
            return transaction.commit_async()

        def judge(results: Any, error: Exception | None) -> None:
            failed = [it for it in results or () if isinstance(it, Exception)]
            assert then is not None
            then(error or (failed[0] if failed else None))

        return cls(make, judge if then else None)


class Batch:
    """Requests that are sent one right after the other, and answered together.

    ``errors`` holds kazoo's error of each, or None; ``failure`` is set when the engine could not be
    asked, whatever the answers to the others are.
    """

    def __init__(self, requests: Sequence[Request], done: Callable[[Batch], object]) -> None:
        self.requests = requests
        self.values: list[Any] = [None] * len(requests)
        self.errors: list[Exception | None] = [None] * len(requests)
        self.failure: Exception | None = None
        self.sent = False  # handed to the client
        self.sent_at = 0.0  # own clock, just before that
        self.dropped = False  # nobody waits any more: not to be sent, if that has not happened
        self._left = len(requests)
        self._done = done
        self._guard = threading.Lock()

    def arrived(
        self, at: int, value: Any, error: Exception | None, failure: Exception | None
    ) -> None:
        """Take one answer; the last one completes the batch."""
        self.values[at], self.errors[at] = value, error
        self.failure = self.failure or failure
        then = self.requests[at].then
        try:
            if then is not None:
                then(value, error)
        finally:
            with self._guard:
                self._left -= 1
                last = self._left == 0
            if last:
                self._done(self)

    def fail(self, failure: Exception) -> None:
        """Complete it without having been sent."""
        self.failure = failure
        self.errors = [failure] * len(self.requests)
        self._done(self)
