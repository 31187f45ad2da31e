"""The steps on Redis: values → one script call → values. Async-coloured, written once.

What is sent is positional and complete, and every key of a step is in KEYS (one exception: the
next waiter's inbox is spelled in the script from the prefix passed as a key, since the caller
can't know it).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from lockapp.core.options import EngineOptions
from lockapp.core.values import (
    AllGranted,
    Busy,
    Degraded,
    ForceOutcome,
    GaveUp,
    Gone,
    Granted,
    GrantMessage,
    LockSpec,
    Queued,
    Refused,
    Released,
    RenewItem,
    RenewReply,
    Undo,
)
from lockapp.engines.redis import replies
from lockapp.engines.redis.flights import FlightSteps
from lockapp.engines.redis.keys import FORMAT, ShardKeys, shard_of
from lockapp.engines.redis.reading import ReadingSteps
from lockapp.engines.redis.request import NONE, Words
from lockapp.engines.redis.scripts import Script
from lockapp.engines.redis.sync_transport import twin_of
from lockapp.engines.redis.transport import Exchanges, Transport
from lockapp.exceptions import EngineMisconfigured
from lockapp.process import note_of, process_id


class RedisSteps(FlightSteps, ReadingSteps):
    """A :class:`~lockapp.core.ports.StepPort` on Redis: one server, or the shards of a Cluster."""

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
        self.parts = shards
        self.shards = [ShardKeys.of(options.prefix, shard) for shard in range(shards)]
        self._notice = self.shards[0].notice  # a process has one channel for all shards
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

    def part_of(self, name: str) -> int:
        """See StepPort. A shard."""
        return shard_of(name, self.parts)

    def shard(self, name: str) -> ShardKeys:
        """See FlightSteps."""
        return self.shards[shard_of(name, self.parts)]

    def at(self, name: str) -> Exchanges:
        """See FlightSteps."""
        return self.transport.at(self.shard(name).base)

    async def _run(
        self, script: str, shard: ShardKeys, keys: Sequence[str], *arguments: str, acks: int = 0
    ) -> Any:
        """Run a step whose keys are not those of one name."""
        return await self.transport.at(shard.base).script(
            self._scripts[script], (str(len(keys)), *keys, *arguments), NONE, acks
        )

    def _words_of(self, name: str) -> Words:
        """What every step of one name begins with: its keys, the policy, the name."""
        keys = self.shard(name)
        return Words("9", *keys.shared, *keys.of_name(name), *self._policy, name)

    async def _step(self, script: str, name: str, *arguments: str) -> Any:
        return await self.at(name).script(self._scripts[script], arguments, self._named(name))

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
            await self.at(spec.name).script(
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
        keys[:0] = shard.shared
        reply = await self._run("acquire_all", shard, keys, *arguments, acks=self._acks)
        return replies.all_acquired(reply)

    def together(self, names: Sequence[str]) -> bool:
        """See StepPort."""
        return len({self.part_of(name) for name in names}) == 1

    async def _verify(self) -> None:
        """Check that the server's data has the layout that these keys assume."""
        meta, count = self.shards[0].meta, str(self.parts)
        first = self.transport.at(self.shards[0].base)
        await first.command("HSETNX", meta, "format", FORMAT)
        await first.command("HSETNX", meta, "shards", count)
        stored = await first.command("HMGET", meta, "format", "shards")
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
        reply = await self.at(name).command(
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

    async def renew(self, leases: Sequence[RenewItem], part: int = 0) -> RenewReply:
        """See StepPort."""
        shard = self.shard(leases[0].name) if leases else self.shards[part]
        keys, arguments = [shard.held], [self._policy[0], str(self.options.sweep_limit)]
        for lease in leases:
            keys.append(shard.lock(lease.name))
            arguments += (lease.name, lease.token, str(lease.ttl_ms))
        acks = self._acks if leases else 0
        return replies.renewed(await self._run("renew", shard, keys, *arguments, acks=acks))

    async def downgrade(self, name: str, token: str, weight: int, ttl_ms: int) -> Granted | Gone:
        """See StepPort."""
        reply = await self._step("downgrade", name, token, str(weight), str(ttl_ms))
        if reply[0] == b"GRANTED":
            return Granted(reply[1], reply[2], reply[3])
        return Gone(reply[1], replies.text(reply[2]), replies.text(reply[3]))

    async def force_release(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        reply = await self._step("force_release", name, str(fence), note, self._notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def revoke(self, name: str, fence: int, actor: str, reason: str) -> ForceOutcome:
        """See StepPort."""
        seconds, micros = await self.at(name).command("TIME")
        asked_ms = str(int(seconds) * 1000 + int(micros) // 1000)
        note = note_of(actor=actor, reason=reason, asked_ms=asked_ms)
        reply = await self._step("revoke", name, str(fence), note, self._notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def abandon(
        self, name: str, token: str, grace_ms: int, actor: str, reason: str
    ) -> ForceOutcome:
        """See StepPort."""
        note = note_of(actor=actor, reason=reason)
        reply = await self._step("abandon", name, token, str(grace_ms), note, self._notice)
        return ForceOutcome(replies.text(reply[0]).lower())

    async def sweep(self, names: Sequence[str], part: int = 0) -> int:
        """See StepPort."""
        shard = self.shards[part]  # also of what does not belong there, or it would stay
        keys = [*shard.shared, *(key for name in names for key in shard.of_name(name))]
        reply = await self._run("sweep", shard, keys, *self._policy, *names)
        return int(reply[1])

    async def report(self, reports: Sequence[Degraded]) -> None:
        """See StepPort."""
        shard = self.shard(reports[0].name)
        arguments = [*self._policy]
        for name, *detail in reports:
            arguments += (name, " ".join(map(str, detail)))
        await self._run("report", shard, shard.shared[:5], *arguments)

    async def listen(self) -> Any:
        """See WatchPort. The transport's kind decides which."""
        return await self.transport.listen([f"{self._notice}{process_id()}"])

    def forget(self) -> object:
        """See EnginePort."""
        return self.transport.forget()

    async def ping(self) -> None:
        """Ask whether the server answers."""
        await self.transport.command("PING")
