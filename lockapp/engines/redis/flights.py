"""The steps of a single flight on Redis: one stream per flight, on which its followers block.

The id of an entry is the flight's number, so that a follower which learned from acquire's answer
*whom* it waits for can name the landing that it has not seen yet. Whether the landing comes before
or after it begins to block makes no difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from lockapp.core.flight import Landing
from lockapp.engines.redis import replies
from lockapp.engines.redis.keys import ShardKeys

if TYPE_CHECKING:
    from lockapp.engines.redis.scripts import Script


class FlightSteps(ABC):
    """What :class:`~lockapp.engines.redis.steps.RedisSteps` does for single flights."""

    _scripts: dict[str, Script]

    @abstractmethod
    def shard(self, name: str) -> ShardKeys:
        """Return the keys of the shard that ``name`` lives in."""

    @abstractmethod
    def at(self, name: str) -> Any:
        """Return what reaches the server of that shard."""

    async def land(self, name: str, token: str, fence: int, outcome: str, keep_ms: int) -> bool:
        """See EnginePort."""
        keys = self.shard(name)
        arguments = (token, str(fence), outcome, str(keep_ms))
        reply = await self.at(name).script(
            self._scripts["land"], ("2", keys.lock(name), keys.flight(name), *arguments)
        )
        return bool(reply)

    async def wait_landing(self, name: str, since: int, timeout_s: float) -> Landing | None:
        """See EnginePort."""
        key, timeout_ms = self.shard(name).flight(name), max(round(timeout_s * 1000), 1)
        reply = await self.at(name).command(
            "XREAD", "COUNT", 1, "BLOCK", timeout_ms, "STREAMS", key, f"{since}-0",
            block_s=timeout_ms / 1000,
        )  # fmt: skip
        if not reply:
            return None
        entry_id, fields = reply[0][1][0]
        return Landing(int(entry_id.partition(b"-")[0]), replies.text(fields[1]))
