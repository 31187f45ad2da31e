"""All nodes asked at once by a thread: send to all, then read. No thread per node."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Collection, Sequence
from typing import Any

from redis import exceptions as redis_errors

from lockapp.engines.clock import boot_clock
from lockapp.engines.redis.errors import demoted, transport_error
from lockapp.engines.redis.redlock.line import Line, Part
from lockapp.engines.redis.redlock.node_transport import Dial, NodeTransport
from lockapp.engines.redis.redlock.votes import (
    UNANSWERED,
    Attempt,
    Enough,
    Outcomes,
    Step,
    majority,
)
from lockapp.engines.redis.steps import RedisSteps
from lockapp.exceptions import EngineError

DIAL_GRACE_S = 0.004
"""So long is a connection waited for that is being made when a majority has answered: a new process
should not begin with leases on a bare majority."""


class Fan:
    """See :class:`~lockapp.engines.redis.redlock.votes.Nodes`. Blocks its thread."""

    def __init__(self, steps: Sequence[RedisSteps], alias: str) -> None:
        """Put them together; the steps' transports must be NodeTransports."""
        self.alias = alias
        self.count = len(steps)
        self._steps = steps
        self._nodes = nodes = [_transport(node) for node in steps]
        self.names = [str(node.address) for node in nodes]
        limits = nodes[0].options
        self._limit_s = limits.command_timeout_ms / 1000
        self._connect_s = limits.connect_timeout_ms / 1000

    now = staticmethod(boot_clock)

    def of(self, steps: Sequence[RedisSteps]) -> Fan:
        """See Nodes."""
        return Fan(steps, self.alias)

    async def ask(
        self,
        step: Step,
        enough: Enough,
        *,
        among: Collection[int] | None = None,
        attempt: Attempt | None = None,
        begins: bool = False,
        lasting: bool = False,
        grace_s: float = 0.0,
    ) -> Outcomes:
        """See Nodes."""
        asking = _Asking(self._nodes, self._steps, boot_clock())
        try:
            asking.begin(step, among, attempt, begins, lasting)
            asking.read(enough, self._limit_s, self._connect_s, grace_s)
        except BaseException:
            asking.abort()
            raise
        asking.end()
        return asking.outcomes


def _transport(node: RedisSteps) -> NodeTransport:
    transport = node.transport
    assert isinstance(transport, NodeTransport)
    return transport


class _Asking:
    """One question to all nodes."""

    __slots__ = ("_dials", "_lines", "_nodes", "_now", "_poller", "_steps", "outcomes")

    def __init__(
        self, nodes: Sequence[NodeTransport], steps: Sequence[RedisSteps], now: float
    ) -> None:
        self._nodes = nodes
        self._steps = steps
        self._now = now
        self._poller = select.poll()
        self._lines: dict[int, tuple[Line, Part]] = {}  # by file number
        self._dials: dict[int, tuple[Dial, Part, bytes]] = {}
        self.outcomes: list[Any] = [UNANSWERED] * len(nodes)

    def begin(
        self,
        step: Step,
        among: Collection[int] | None,
        attempt: Attempt | None,
        begins: bool,
        lasting: bool,
    ) -> None:
        """Send to all that have a connection, and begin to connect to the others."""
        without = []
        for at in range(len(self._nodes)) if among is None else among:
            line = self._nodes[at].take(at, attempt, self._now)
            ordered = attempt is None or not (
                at in attempt.lost or attempt.pending.get(at) not in (None, line)
            )
            its: Any = step(self._steps[at], ordered)
            part = Part(at, its, attempt if begins else None, lasting)
            packed = part.go_on()
            if packed is None:
                self.outcomes[at] = part.outcome
                if line is not None:
                    self._nodes[at].give(line)
            elif line is None:
                without.append((part, packed))
            else:
                self._send(line, part, packed)
        missing = majority(len(self._nodes)) - len(self._lines)
        for part, packed in without:
            # Only if no majority is left without it is one waited for that others gave up.
            self._dial(part, packed, needed=missing > len(self._dials))

    def _send(self, line: Line, part: Part, packed: bytes) -> None:
        self._lines[line.number] = line, part
        try:
            line.send(part, packed, self._now)
        except OSError as error:
            self._broke(line, error)
            return
        self._poller.register(line.number, select.POLLIN)

    def _dial(self, part: Part, packed: bytes, *, needed: bool) -> None:
        try:
            dial = self._nodes[part.at].begin_dial(part, packed, needed=needed)
        except EngineError as error:
            self.outcomes[part.at] = error
            return
        number = dial.bell.fileno()
        self._dials[number] = dial, part, packed
        self._poller.register(number, select.POLLIN)

    def read(self, enough: Enough, limit_s: float, connect_s: float, grace_s: float) -> None:
        """Read until it is enough, or the time is over."""
        end = self._now + limit_s + (connect_s if self._dials else 0.0)
        satisfied = enough(self.outcomes)
        if self._dials:
            grace_s = max(grace_s, DIAL_GRACE_S)
        if satisfied:
            end = min(end, self._now + grace_s)
        while (self._lines or self._dials) and not (satisfied and not grace_s):
            if satisfied and not self._dials and grace_s == DIAL_GRACE_S:
                return
            left_s = end - boot_clock()
            ready = self._poller.poll(max(left_s, 0.0) * 1000)
            for number, _ in ready:
                if number in self._lines:
                    self._answer(number)
                elif number in self._dials:
                    self._connected(number)
                if not satisfied and enough(self.outcomes):
                    satisfied = True
                    end = boot_clock() + grace_s
                    if not grace_s:
                        break
            if not ready and left_s <= 0:
                if not satisfied:
                    self._time_out()
                return

    def _answer(self, number: int) -> None:
        line, mine = self._lines[number]
        try:
            while said := line.read():
                part, reply = said
                if line.go_on(part, reply, boot_clock()) and part is mine:
                    self.outcomes[mine.at] = mine.outcome
                    self._done(line, part, reply)
                    return
        except (redis_errors.RedisError, OSError) as error:
            self._broke(line, error)

    def _done(self, line: Line, part: Part, reply: Any) -> None:
        del self._lines[line.number]
        self._poller.unregister(line.number)
        node = self._nodes[part.at]
        if demoted(reply):
            node._drop(line)
            node._drop_idle()
        else:
            node.give(line)

    def _broke(self, line: Line, error: Exception) -> None:
        _, part = self._lines.pop(line.number)
        with contextlib.suppress(KeyError):  # it broke before it was registered
            self._poller.unregister(line.number)
        self.outcomes[part.at] = self._nodes[part.at].broke(line, error)

    def _connected(self, number: int) -> None:
        dial, part, packed = self._dials.pop(number)
        self._poller.unregister(number)
        line, dial.line = dial.line, None
        dial.bell.close()
        if line is None:
            assert dial.error is not None
            part.step.close()
            self.outcomes[part.at] = dial.error
        else:
            self._now = boot_clock()
            self._send(line, part, packed)

    def _time_out(self) -> None:
        late = TimeoutError("timed out")
        for line, _ in list(self._lines.values()):
            self._broke(line, late)
        for dial, part, packed in self._dials.values():
            self.outcomes[part.at] = transport_error(late, self._nodes[part.at].alias, sent=False)
            self._nodes[part.at].leave(dial, part, packed)
        self._dials.clear()

    def end(self) -> None:
        """Leave what is outstanding to whoever uses the connections next."""
        for line, part in self._lines.values():
            self._nodes[part.at].give(line)
        self._lines.clear()
        for dial, part, packed in self._dials.values():
            self._nodes[part.at].leave(dial, part, packed)
        self._dials.clear()

    def abort(self) -> None:
        """Close every connection that is in use: an exception may have struck anywhere."""
        for line, part in list(self._lines.values()):
            self._nodes[part.at]._drop(line)
        for dial, part, packed in list(self._dials.values()):
            self._nodes[part.at].leave(dial, part, packed)
