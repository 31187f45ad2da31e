"""Sheet: memory where a worker's child writes what it holds, for its parent to read at its death.

The two share it. A child that is killed at any instruction leaves it as it was, and the kernel
keeps it for whoever has the descriptor. So to tell costs a child no system call, and its parent
nothing.

It has a fixed number of slots. A slot begins with one byte, which is written last and cleared
first, and says whether the line behind it counts.

Invariant: a slot counts only while its line is whole.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from typing import NamedTuple

SLOTS = 32
SLOT_BYTES = 2048
SIZE = SLOTS * SLOT_BYTES
"""Leases that a child can tell of at once, and bytes for each: names have up to 512, task names and
ids some more. One that finds no room is free within its ttl only."""

FREE, TAKEN = 0, 1
END = b"\n"  # JSON has none

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


def shared_memory() -> int:
    """Return the descriptor of SIZE zeroed bytes without a name; not inherited by programs.

    Memory where the system has it, else a temporary file. All of it is there from the beginning:
    to write into a hole of a full disk would kill the process.

    Raises:
        OSError: there is no room.
    """
    if hasattr(os, "memfd_create"):
        made = os.memfd_create("lockapp-sheet", os.MFD_CLOEXEC)
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            made = os.dup(file.fileno())
    try:
        os.write(made, bytes(SIZE))
    except OSError:
        os.close(made)
        raise
    return made


class Sheet:
    """The child's side. Any thread may write: each has a slot of its own."""

    def __init__(self, descriptor: int) -> None:
        """Map shared_memory(); the descriptor may be closed then."""
        self._map = mmap.mmap(descriptor, SIZE)
        self._free = [number * SLOT_BYTES for number in range(SLOTS)]

    def put(self, report: Report) -> int | None:
        """Write that a lease is held; return where, or None if there is no room."""
        line = _encode(report).encode() + END
        if len(line) >= SLOT_BYTES:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        self._map[slot + 1 : slot + 1 + len(line)] = line
        self._map[slot] = TAKEN
        return slot

    def clear(self, slot: int) -> None:
        """Write that it has been given back."""
        self._map[slot] = FREE
        self._free.append(slot)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


def read(descriptor: int) -> list[Report]:
    """Return what a child holds; after its death: what it left behind.

    Raises:
        TypeError, ValueError: what stands there is none of ours.
    """
    whole = os.pread(descriptor, SIZE, 0)
    taken = (slot for slot in range(0, len(whole), SLOT_BYTES) if whole[slot] != FREE)
    return [Report(*json.loads(whole[slot + 1 : whole.index(END, slot)])) for slot in taken]
