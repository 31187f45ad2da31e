"""What nodes are asked and what they say: the vocabulary of a vote, and how it is counted. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NoReturn, Protocol

from lockapp.core.values import Gone, Granted, LockSpec, RenewItem, RenewReply
from lockapp.exceptions import EngineError, EngineUnavailable, QuorumNotReached


class Unanswered:
    """The type of "no answer yet"."""

    def __repr__(self) -> str:
        return "UNANSWERED"


UNANSWERED = Unanswered()
Outcomes = Sequence[Any]
"""Per node: what it answered, an EngineError, or UNANSWERED."""


class Attempt:
    """One token: who asks for what, and which nodes may still be sent a request of it.

    ``pending`` and ``lost`` belong to who asks the nodes: through what a request that may take the
    lock is under way to a node; and the nodes to which one got lost, so that it may arrive late.
    """

    __slots__ = (
        "asked_at", "description", "fence", "granted_at", "granted_ms", "lost", "over", "pending",
        "spec", "token", "until", "waits",
    )  # fmt: skip

    def __init__(self, token: str, spec: LockSpec, asked_at: float) -> None:
        self.token = token
        self.spec = spec
        self.description = ""
        self.asked_at = asked_at
        self.granted_at = 0.0
        self.granted_ms = 0  # 0: not granted
        self.until = float("inf")  # own clock: when no node holds it any more
        self.fence = 0
        self.waits = False  # and will ask again
        self.over = False  # and nothing more may be taken for it
        self.pending: dict[int, Any] = {}
        self.lost: set[int] = set()


class Node(Protocol):
    """The steps of one node; see :class:`~lockapp.core.ports.StepPort`."""

    async def acquire(self, spec: LockSpec, token: str, description: str, *, queue: bool) -> Any:
        """See StepPort."""
        ...

    async def release(self, name: str, token: str, *, tombstone: bool, why: str) -> Any:
        """See StepPort."""
        ...

    async def renew(self, leases: Sequence[RenewItem]) -> RenewReply:
        """See StepPort."""
        ...

    async def accept(self, name: str, token: str, fence: int) -> Granted | Gone:
        """Take ``fence`` for that of the token's grant, if that is what it holds by (phase 2)."""
        ...


Step = Callable[[Any, bool], Awaitable[Any]]
"""(node, in order) → its part. *In order*: no earlier request of the token can arrive after it."""
Enough = Callable[[Outcomes], bool]


class Nodes(Protocol):
    """All nodes, asked together."""

    count: int
    alias: str

    @property
    def names(self) -> Sequence[str]:
        """Their addresses, without secrets."""
        ...

    def now(self) -> float:
        """Return this process's boot clock in seconds."""
        ...

    def of(self, steps: Sequence[Any]) -> Nodes:
        """Return the same nodes, asked by other steps (of a watchdog)."""
        ...

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
        """Send a step to all nodes, or those ``among`` them; return when ``enough`` has come.

        Args:
            step: what a node is asked.
            enough: says of the outcomes so far whether to go on waiting.
            among: indices; the outcomes of the others stay UNANSWERED.
            attempt: whose requests are to be kept in order.
            begins: whether the step may take the lock for ``attempt``.
            lasting: whether to send it even when it is enough already, where that takes a while.
            grace_s: how long to wait on when it is enough already.

        What is still under way then goes on by itself. A node that says nothing within the command
        timeout has failed.
        """
        ...


def majority(count: int) -> int:
    """Return how many of so many nodes are more than half."""
    return count // 2 + 1


def at_once(outcomes: Outcomes) -> bool:
    """Wait for nobody."""
    return True


def all_in(outcomes: Outcomes) -> bool:
    """Wait for every node."""
    return False


def answers(outcomes: Outcomes) -> list[int]:
    """Return the nodes that have answered."""
    return [
        at
        for at, it in enumerate(outcomes)
        if it is not UNANSWERED and not isinstance(it, EngineError)
    ]


def of_kind(outcomes: Outcomes, kind: type) -> list[int]:
    """Return the nodes whose answer is of one kind."""
    return [at for at, it in enumerate(outcomes) if type(it) is kind]


def raise_misfit(outcomes: Outcomes) -> None:
    """Raise what is no outage: a bug, or servers that contradict the settings."""
    for it in outcomes:
        if isinstance(it, EngineError) and not isinstance(it, EngineUnavailable):
            raise it


def quorum_lost(nodes: Nodes, outcomes: Outcomes, *, taken: bool = False) -> NoReturn:
    """Raise what to say when fewer than a majority answered.

    Its reason is the worst of the nodes': one that leaves open whether something was ``taken``,
    before one that says no.
    """
    raise_misfit(outcomes)
    said = {
        name: "no answer" if it is UNANSWERED else it.reason if _failed(it) else "answered"
        for name, it in zip(nodes.names, outcomes, strict=True)
    }
    reasons = [it.reason for it in outcomes if _failed(it)]
    taken = taken or bool(of_kind(outcomes, Granted))
    order = ("timeout", "reset", "transient", "connect", "open", "refused")
    reason = next((one for one in order if one in reasons), "timeout")
    if taken and reason not in ("timeout", "reset"):
        reason = "timeout"  # one node has it: it must be undone
    least = majority(nodes.count)
    raise QuorumNotReached(
        f"lock engine {nodes.alias!r}: {len(answers(outcomes))} of {nodes.count} nodes answered, "
        f"and {least} must: " + ", ".join(f"{name} {what}" for name, what in said.items()),
        alias=nodes.alias,
        reason=reason,
        nodes=said,
    )


def _failed(outcome: Any) -> bool:
    return isinstance(outcome, EngineUnavailable)


def ask_until_majority(nodes: Nodes) -> Enough:
    """Wait for answers of a majority."""
    least = majority(nodes.count)
    return lambda outcomes: len(answers(outcomes)) >= least
