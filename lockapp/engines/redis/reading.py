"""The steps that only look, for people and for whoever collects events; over all shards.

Shards are asked one after the other: their servers are several, and no step can look at two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lockapp.core.values import EventRecord, LockState, StreamIdentity
from lockapp.engines.redis import replies
from lockapp.engines.redis.keys import ShardKeys
from lockapp.engines.redis.transport import Exchanges, Transport

SHOWN_WAITERS = 100
"""Waiters described when one lock is shown; the rest are counted."""


class ReadingSteps(ABC):
    """What :class:`~lockapp.engines.redis.steps.RedisSteps` does for those who look."""

    transport: Transport
    shards: list[ShardKeys]

    @abstractmethod
    def part_of(self, name: str) -> int:
        """Return the shard that ``name`` lives in."""

    @abstractmethod
    async def _run(
        self, script: str, shard: ShardKeys, keys: Sequence[str], *arguments: str, acks: int = 0
    ) -> Any:
        """Run a step whose keys are not those of one name."""

    def _of(self, shard: int) -> Exchanges:
        return self.transport.at(self.shards[shard].base)

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """See StepPort. Of several shards, each is read as far as the page could go in it."""
        totals = [
            int(await self._of(number).command("ZCARD", shard.held))
            for number, shard in enumerate(self.shards)
        ]
        total, last = sum(totals), offset + count - 1
        found: list[tuple[float, str]] = []
        skipped = 0
        for number, (shard, held) in enumerate(zip(self.shards, totals, strict=True)):
            # If all that the other shards have comes before it, the page begins here.
            first = max(offset - (total - held), 0)
            if first > min(last, held - 1):
                skipped += min(first, held)
                continue
            flat = await self._of(number).command("ZRANGE", shard.held, first, last, "WITHSCORES")
            skipped += first
            pairs = zip(flat[::2], flat[1::2], strict=True)
            found += [(float(score), replies.text(name)) for name, score in pairs]
        begin = offset - skipped
        return total, [name for _, name in sorted(found)[begin : begin + count]]

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """See StepPort. Of several shards, the time is the latest of their servers'."""
        shown = str(SHOWN_WAITERS if waiters else 0)
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self.part_of(name), []).append(name)
        latest_ms = 0
        locks: dict[str, LockState] = {}
        for part, those in parts.items():
            shard = self.shards[part]
            keys = [key for name in those for key in shard.of_name(name)]
            reply = await self._run("inspect", shard, keys, shown)
            now_ms, states = replies.inspected(those, reply)
            latest_ms = max(latest_ms, now_ms)
            locks.update((state.name, state) for state in states)
        return latest_ms, [locks[name] for name in names if name in locks]

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """Return up to ``count`` events after the stream id ``after``, oldest first."""
        start = f"({after}" if after != "0-0" else "-"
        entries = await self._of(shard).command(
            "XRANGE", self.shards[shard].events, start, "+", "COUNT", count
        )
        return [replies.event(shard, entry) for entry in entries]

    async def trim_events(self, shard: int, through: str) -> None:
        """Drop the events up to and including ``through`` (about: whole stream nodes)."""
        await self._of(shard).command("XTRIM", self.shards[shard].events, "MINID", "~", through)

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """Say which server's stream this is and how far it goes."""
        info = replies.text(await self._of(shard).command("INFO", "server"))
        server = next(
            (line.partition(":")[2] for line in info.splitlines() if line.startswith("run_id:")), ""
        )
        newest = await self._of(shard).command(
            "XREVRANGE", self.shards[shard].events, "+", "-", "COUNT", 1
        )
        number = await self._of(shard).command("GET", self.shards[shard].number)
        last = replies.text(newest[0][0]) if newest else "0-0"
        return StreamIdentity(server.strip(), last, int(number or 0))
