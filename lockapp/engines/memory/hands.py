"""What tests do to a memory server: turn its clock, let one lease run out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lockapp.engines.memory.server import MemoryServer


def jump(server: MemoryServer, ahead_ms: int, turn: Callable[[], None]) -> None:
    """Have ``turn`` set the clock ahead, and everybody who waits look at it.

    Who waits has not been silent for so long, and keeps its place in the queue.
    """
    with server._guard:
        turn()
        for record in server.records.values():
            for token, waiter in record.queue.items():
                seen_until_ms = waiter.seen_until_ms + ahead_ms
                record.queue[token] = replace(waiter, seen_until_ms=seen_until_ms)
                waiter.inbox.ring()


def run_out(server: MemoryServer, name: str, token: str) -> None:
    """Let a token's time be up now; the next step of its name finds it expired."""
    with server._guard:
        record = server.records.get(name)
        if record and token in record.holders:
            record.holders[token] = replace(record.holders[token], deadline_ms=0)


def waiting(server: MemoryServer) -> list[str]:
    """Return the names that somebody waits for."""
    with server._guard:
        return sorted(name for name, record in server.records.items() if record.queue)
