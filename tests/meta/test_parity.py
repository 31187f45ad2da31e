"""Both fronts say the same: each method that asks the engine has a twin with an ``a``.

Same parameters, same defaults; the twin is a coroutine function and nothing else is. What asks
nobody, and so needs no twin, is listed here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from lockapp.engines.base import Engine
from lockapp.engines.memory.engine import MemoryEngine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.engines.zookeeper.engine import ZooKeeperEngine
from lockapp.handler import EngineHandler
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.primitives import MultiLease, MultiLock, RWLock, Semaphore

PORTED = {"attempt", "give_back"}
"""Written once for both fronts, and given a port: no twin to keep in step."""
BLOCKS = {"examine", "problems"}
"""For commands and system checks, which block: no loop ever asks so."""
ASKS_NOBODY: dict[type, set[str]] = {
    Lock: {"already", "contended", "lease"},
    MultiLock: set(),
    RWLock: {"read", "write"},
    Lease: {"check", "let_go", "lose", "on_lost", "on_revoke", "renewed", "take_up"},
    MultiLease: {"check", "let_go"},
    Engine: {
        "after_fork", "aio", "forget", "held_by", "hold", "holds", "make_async_port",
        "make_sync_port", "observe", "remember", "vet",
    },
    EngineHandler: {"all", "reset"},
}  # fmt: skip
KINDS: dict[type, type] = {
    Semaphore: Lock,
    RedisEngine: Engine,
    MemoryEngine: Engine,
    ZooKeeperEngine: Engine,
}
"""Kinds of a class that must keep to it."""

CLASSES = [*ASKS_NOBODY, *KINDS]


def methods(cls: type) -> dict[str, Callable[..., Any]]:
    """What may be called on an instance."""
    return {
        name: found
        for name, found in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


def differences(cls: type, asks_nobody: set[str]) -> list[str]:
    """Methods without a twin, twins without a method, and pairs that are called differently."""
    found = methods(cls)
    wrong = [f"{name} is gone" for name in sorted(asks_nobody - set(found))]
    for name, method in sorted(found.items()):
        if name in asks_nobody | PORTED | BLOCKS:
            continue
        if inspect.iscoroutinefunction(method):
            if name[:1] != "a" or name[1:] not in found:
                wrong.append(f"{name} has no blocking twin")
        elif (twin := found.get(f"a{name}")) is None:
            wrong.append(f"{name} has no twin")
        elif not inspect.iscoroutinefunction(twin):
            wrong.append(f"a{name} is no coroutine function")
        elif inspect.signature(twin) != inspect.signature(method):
            wrong.append(f"{name}{inspect.signature(method)} and {inspect.signature(twin)}")
    return wrong


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_method_has_a_twin_that_is_called_alike(cls: type) -> None:
    """Parameters, their kinds, defaults, annotations and what is returned."""
    assert differences(cls, ASKS_NOBODY[KINDS.get(cls, cls)]) == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_both_ways_into_a_block_or_none(cls: type) -> None:
    """`with` and `async with`."""
    for blocking, twin in (("__enter__", "__aenter__"), ("__exit__", "__aexit__")):
        assert hasattr(cls, blocking) == hasattr(cls, twin)


class Drifted:
    """What must be noticed."""

    def alone(self) -> None: ...
    async def alonely(self) -> None: ...
    def ask(self, wait: float = 0) -> None: ...
    async def aask(self, wait: float = 1) -> None: ...
    def tell(self) -> None: ...
    def atell(self) -> None: ...


def test_a_difference_is_noticed() -> None:
    """A comparison that never fails compares nothing."""
    said = differences(Drifted, {"missing"})
    for text in ("missing is gone", "alone has no twin", "alonely has no", "ask(", "atell is no"):
        assert any(text in each for each in said), text
