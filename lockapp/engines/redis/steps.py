"""The steps on Redis: values → one script call → values. Async-coloured, written once.

What is sent is positional and complete, and every key of a step is in KEYS (one exception: the
next waiter's inbox is spelled in the script from the prefix passed as a key, since the caller
can't know it).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, Self

from lockapp.core.options import EngineOptions
from lockapp.core.values import (
    AllGranted,
    Busy,
    Degraded,
    EventRecord,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    GrantMessage,
    LockSpec,
    LockState,
    Queued,
    Refused,
    Released,
    RenewItem,
    RenewReply,
    StreamIdentity,
    Undo,
)
from lockapp.engines.redis import replies
from lockapp.engines.redis.flights import FlightSteps
from lockapp.engines.redis.keys import FORMAT, ShardKeys, shard_of
from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import twin_of
from lockapp.exceptions import EngineMisconfigured
from lockapp.process import note_of, process_id

SHOWN_WAITERS = 100
"""Waiters described when one lock is shown; the rest are counted."""


class Transport(Protocol):
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


class RedisSteps(FlightSteps):
    """A :class:`~lockapp.core.ports.StepPort` on one Redis server."""

    watchdog: Any

    def __init__(
        self,
        transport: Transport,
        options: EngineOptions,
        scripts: dict[str, Script],
        alias: str,
        shards: int = 1,
    ) -> None:
        self.transport = transport
        self.options = options
        self.alias = alias
        self.now = transport.now
        self.sleep = transport.sleep
        self.rest = transport.rest
        self.shards = [ShardKeys.of(options.prefix, shard) for shard in range(shards)]
        self._scripts = scripts
        self._named = lru_cache(maxsize=1024)(self._words_of)
        self._numbers = lru_cache(maxsize=256)(lambda *those: Words(*map(str, those)))
        self._policy = (
            str(options.safety_ms),
            str(options.claim_window_ms),
            str(options.event_cap),
            str(options.tombstone_ms),
        )
        self._acks = options.min_replicas_acked
        self._verified = False

    def for_watchdog(self) -> Self:
        """See EnginePort."""
        twin = twin_of(self)
        twin.transport = self.transport.unrefused()
        return twin

    def defer(self, undo: Undo) -> None:
        """See StepPort."""
        self.watchdog.defer(undo)

    def shard(self, name: str) -> ShardKeys:
        """See FlightSteps."""
        return self.shards[shard_of(name, len(self.shards))]

    def _words_of(self, name: str) -> Words:
        """What every step of one name begins with: its keys, the policy, the name."""
        keys = self.shard(name)
        return Words("9", *keys.shared, *keys.of_name(name), *self._policy, name)

    async def _step(self, script: str, name: str, *arguments: str) -> Any:
        return await self.transport.script(self._scripts[script], arguments, self._named(name))

    async def acquire(
        self, spec: LockSpec, token: str, description: str, *, queue: bool
    ) -> Granted | Queued | Busy | Refused:
        """See StepPort."""
        if not self._verified:
            await self._verify()
        seen_ms = self.options.seen_ms if queue else 0
        # Apart, since names may be many and numbers are few.
        asked = self._named(spec.name) + self._numbers(
            spec.ttl_ms, spec.limit, spec.weight, seen_ms, spec.max_hold_ms, process_id()
        )
        return replies.acquired(
            await self.transport.script(
                self._scripts["acquire"], (token, description), asked, self._acks
            )
        )

    async def acquire_all(
        self, specs: Sequence[LockSpec], tokens: Sequence[str], description: str
    ) -> AllGranted | Busy:
        """See StepPort."""
        if not self._verified:
            await self._verify()
        shard = self.shard(specs[0].name)
        keys = [key for spec in specs for key in shard.of_name(spec.name)]
        arguments = [*self._policy, process_id(), description]
        for spec, token in zip(specs, tokens, strict=True):
            arguments += (spec.name, token, str(spec.ttl_ms))
            arguments += (str(spec.limit), str(spec.weight), str(spec.max_hold_ms))
        reply = await self.transport.script(
            self._scripts["acquire_all"],
            (str(6 + len(keys)), *shard.shared, *keys, *arguments),
            NONE,
            self._acks,
        )
        return replies.all_acquired(reply)

    def together(self, names: Sequence[str]) -> bool:
        """See StepPort."""
        return len({shard_of(name, len(self.shards)) for name in names}) == 1

    async def _verify(self) -> None:
        """Check that the server's data has the layout that these keys assume."""
        meta, count = self.shards[0].meta, str(len(self.shards))
        await self.transport.command("HSETNX", meta, "format", FORMAT)
        await self.transport.command("HSETNX", meta, "shards", count)
        stored = await self.transport.command("HMGET", meta, "format", "shards")
        found = [replies.text(value or b"?") for value in stored]
        if found != [FORMAT, count]:
            raise EngineMisconfigured(
                f"lock engine {self.alias!r}: the server holds locks of format {found[0]} in "
                f"{found[1]} shard(s) under prefix {self.options.prefix!r}; this version uses "
                f"format {FORMAT} in {count}. Use another prefix, or drain the old one first.",
                alias=self.alias,
            )
        self._verified = True

    async def wait_grant(self, name: str, token: str, timeout_s: float) -> GrantMessage | None:
        """See StepPort."""
        reply = await self.transport.command(
            "BLPOP", self.shard(name).inbox(token), f"{timeout_s:.3f}", block_s=timeout_s
        )
        if reply is None or self._acks:
            return None  # whether replicas have it, only the answer to another request tells
        return replies.grant_message(reply[1])

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Released | Gone:
        """See StepPort."""
        bury = "1" if tombstone else "0"
        return replies.released(await self._step("release", name, token, bury, why))

    async def cancel(self, name: str, token: str, *, tombstone: bool) -> Granted | GaveUp | Gone:
        """See StepPort."""
        bury = "1" if tombstone else "0"
        reply = replies.cancelled(await self._step("cancel", name, token, bury))
        if self._acks and type(reply) is Granted:
            await self.renew([RenewItem(name, token, reply.deadline_ms - reply.now_ms)])
        return reply

    async def renew(self, leases: Sequence[RenewItem]) -> RenewReply:
        """See StepPort."""
        shard = self.shard(leases[0].name) if leases else self.shards[0]
        keys, arguments = [shard.held], [self._policy[0], str(self.options.sweep_limit)]
        for lease in leases:
            keys.append(shard.lock(lease.name))
            arguments += (lease.name, lease.token, str(lease.ttl_ms))
        reply = await self.transport.script(
            self._scripts["renew"],
            (str(len(keys)), *keys, *arguments),
            NONE,
            self._acks if leases else 0,
        )
        return replies.renewed(reply)

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """See StepPort."""
        reply = await self._step("downgrade", name, token, str(weight), str(ttl_ms))
        if reply[0] == b"GRANTED":
            return Granted(reply[1], reply[2], reply[3])
        return Gone(reply[1], replies.text(reply[2]), replies.text(reply[3]))

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        notice = self.shard(name).notice
        reply = await self._step("force_release", name, str(fence), note, notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        seconds, micros = await self.transport.command("TIME")
        asked_ms = str(int(seconds) * 1000 + int(micros) // 1000)
        note = note_of(actor=actor, reason=reason, asked_ms=asked_ms)
        notice = self.shard(name).notice
        reply = await self._step("revoke", name, str(fence), note, notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        notice = self.shard(name).notice
        reply = await self._step("abandon", name, token, str(grace_ms), note, notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def sweep(self, names: Sequence[str]) -> int:
        """See StepPort."""
        shard = self.shard(names[0])
        keys = [key for name in names for key in shard.of_name(name)]
        reply = await self.transport.script(
            self._scripts["sweep"],
            (str(6 + len(keys)), *shard.shared, *keys, *self._policy, *names),
        )
        return int(reply[1])

    async def report(self, reports: Sequence[Degraded]) -> None:
        """See StepPort."""
        shard = self.shard(reports[0].name).shared[:5]
        arguments = [*self._policy]
        for name, *detail in reports:
            arguments += (name, " ".join(map(str, detail)))
        await self.transport.script(self._scripts["report"], (str(len(shard)), *shard, *arguments))

    async def page(self, offset: int, count: int) -> tuple[int, list[str]]:
        """See StepPort."""
        held = self.shards[0].held
        total = await self.transport.command("ZCARD", held)
        names = await self.transport.command("ZRANGE", held, offset, offset + count - 1)
        return total, [replies.text(name) for name in names]

    async def inspect(self, names: Sequence[str], *, waiters: bool) -> tuple[int, list[LockState]]:
        """See StepPort."""
        keys = [key for name in names for key in self.shard(name).of_name(name)]
        shown = str(SHOWN_WAITERS if waiters else 0)
        reply = await self.transport.script(
            self._scripts["inspect"], (str(len(keys)), *keys, shown)
        )
        return replies.inspected(names, reply)

    async def listen(self) -> Any:
        """See WatchPort. The transport's kind decides which."""
        return await self.transport.listen(
            [f"{shard.notice}{process_id()}" for shard in self.shards]
        )

    def forget(self) -> object:
        """See EnginePort."""
        return self.transport.forget()

    async def ping(self) -> None:
        """Ask whether the server answers."""
        await self.transport.command("PING")

    async def read_events(self, shard: int, after: str, count: int) -> list[EventRecord]:
        """Return up to ``count`` events after the stream id ``after``, oldest first."""
        start = f"({after}" if after != "0-0" else "-"
        entries = await self.transport.command(
            "XRANGE", self.shards[shard].events, start, "+", "COUNT", count
        )
        return [replies.event(shard, entry) for entry in entries]

    async def trim_events(self, shard: int, through: str) -> None:
        """Drop the events up to and including ``through`` (about: whole stream nodes)."""
        await self.transport.command("XTRIM", self.shards[shard].events, "MINID", "~", through)

    async def stream_identity(self, shard: int) -> StreamIdentity:
        """Say which server's stream this is and how far it goes."""
        info = replies.text(await self.transport.command("INFO", "server"))
        server = next(
            (line.partition(":")[2] for line in info.splitlines() if line.startswith("run_id:")), ""
        )
        newest = await self.transport.command(
            "XREVRANGE", self.shards[shard].events, "+", "-", "COUNT", 1
        )
        number = await self.transport.command("GET", self.shards[shard].number)
        last = replies.text(newest[0][0]) if newest else "0-0"
        return StreamIdentity(server.strip(), last, int(number or 0))
