"""What the steps need of a transport: exchanges with the server that has the keys.

There is a blocking one and an asynchronous one, to one server each, and one that leads to the
nodes of a Cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import Script


class Exchanges(Protocol):
    """How a request reaches a server; blocking or not."""

    async def script(
        self, script: Script, arguments: tuple[str, ...], first: Words = NONE, acks: int = 0
    ) -> Any:
        """Run a step; ``first`` goes before the other arguments.

        What it grants or prolongs must be acknowledged by ``acks`` replicas, or it is an error.
        """
        ...

    async def command(self, *arguments: Any, block_s: float = 0.0) -> Any:
        """Run a command that may take ``block_s`` seconds by design."""
        ...


class Transport(Exchanges, Protocol):
    """How requests reach the servers that keep the locks; blocking or not.

    A command that is given to it, and not to what :meth:`at` returns, goes to each of them.
    """

    def at(self, base: str) -> Exchanges:
        """Return what reaches the server with the keys that begin with ``base``."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        ...

    async def rest(self) -> bool:
        """Close idle connections; return whether none is left open."""
        ...

    async def listen(self, channels: Sequence[str]) -> Any:
        """Subscribe to channels on a connection of its own."""
        ...

    def forget(self) -> object:
        """Give up connections without touching the wire; return them."""
        ...

    def unrefused(self) -> Transport:
        """Return a twin with the same connections that no circuit breaker refuses."""
        ...

    def now(self) -> float:
        """Return this process's boot clock in seconds."""
        ...
