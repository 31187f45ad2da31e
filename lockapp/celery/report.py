"""Report: what a child of a worker tells of a lease, one line each. Pure.

A child writes ``held`` before its body starts and ``over`` after the release. What it has told and
not taken back when its lines end is what its death left behind.

Invariant: a line counts once it is whole. The last one of a killed child may be cut off.

A line begins with what it does, ``+`` or ``-``, and the token; ``+`` names the engine next. The
rest is read at the child's death only: a main process hears two lines for each of its tasks.
"""

from __future__ import annotations

import json
from typing import NamedTuple

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Report(NamedTuple):
    """One lease of a child."""

    engine: str
    """The engine's alias."""
    name: str
    token: str
    fence: int
    ttl_ms: int
    pid: int
    """Of the child."""
    task: str
    task_id: str | None

    def __str__(self) -> str:
        return f"{self.task}[{self.task_id}] in process {self.pid}"


def held(report: Report) -> bytes:
    """Return the line that says: this lease is mine."""
    return f"+{report.token}\t{_encode(report.engine)}\t{_encode(report[1:])}\n".encode()


def over(token: str) -> bytes:
    """Return the line that says: that lease has been given back."""
    return f"-{token}\n".encode()


class Told:
    """What one child has told so far."""

    __slots__ = ("_engines", "_held", "_rest")

    def __init__(self) -> None:
        self._engines: set[bytes] = set()
        self._held: dict[bytes, tuple[bytes, bytes]] = {}
        self._rest = b""

    @property
    def engines(self) -> set[str]:
        """The aliases of the engines of which it told so far."""
        return {json.loads(engine) for engine in self._engines}

    @property
    def left(self) -> list[Report]:
        """The leases that it holds, as far as it told; after its death: left behind."""
        return [
            Report(json.loads(engine), *json.loads(rest)) for engine, rest in self._held.values()
        ]

    def hear(self, data: bytes) -> None:
        """Take in what came next, cut anywhere.

        Raises:
            ValueError: a line is none of ours. What comes after it was not heard.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            token, *report = line[1:].split(b"\t")  # JSON has none
            if line[:1] == b"+":
                engine, rest = report
                self._engines.add(engine)
                self._held[token] = engine, rest
            elif line[:1] == b"-":
                self._held.pop(token, None)
            else:
                raise ValueError(f"not a report: {line!r}")
