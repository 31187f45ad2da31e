"""What tests do to a memory server: turn its clock, let one lease run out."""

from __future__ import annotations

from dataclasses import replace

from lockapp.engines.memory.server import MemoryServer


def spare_waiters(server: MemoryServer, ahead_ms: int) -> None:
    """Before its clock is set ahead: who waits has not been silent for so long."""
    with server._guard:
        for record in server.records.values():
            for token, waiter in record.queue.items():
                seen_until_ms = waiter.seen_until_ms + ahead_ms
                record.queue[token] = replace(waiter, seen_until_ms=seen_until_ms)


def ring_waiters(server: MemoryServer) -> None:
    """After its clock was set ahead: have everybody who waits ask again."""
    with server._guard:
        for record in server.records.values():
            for waiter in record.queue.values():
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
