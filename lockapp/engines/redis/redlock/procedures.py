"""What a majority of independent nodes says, made one answer. No client, no clock of its own.

Theory of operation
-------------------
Every step goes to all nodes at once, and its answer is decided by counting. The majority is of the
nodes that are *configured*: one that can't be reached counts as one that has not said yes.

================  ==================================================  ==========================
step              decided when                                        otherwise
================  ==================================================  ==========================
acquire           a majority granted                                  contended, if a majority
                                                                      answered
release           a majority released it, or has no such lease        released, as above
renew             a majority has it and none was told to end it       lost, as above
                  (those that have forgotten it are refilled)
accept (fenced)   a majority of those that granted accepts the fence  contended, as above
any               fewer than a majority answered                      ``QuorumNotReached``
================  ==================================================  ==========================

A lease is worth what the least of its best majority of nodes is worth, from before the first
request was sent. Two leases of one name at one time would need two majorities, and those share a
node, which grants a mutex once. So a mutex is all that this can promise: shares of a limit can't be
counted that way.

Fencing takes two phases. (1) All nodes grant; each says the fence of its grant, larger than all
that it knows; T is one more than the largest. (2) The nodes that were counted in T are asked to
accept it: one does if the token still holds there, by a grant with a smaller fence than T, and
gives out larger ones from then on. When a majority has, (lease, T) is handed out. Any later lease
was granted, with a fence larger than T, by a node that has accepted T. What goes wrong without any
one of these conditions is shown by a model (tests/unit/test_redlock_model.py).

Source: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/ (one phase), and
https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html for why it is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lockapp.core.values import (
    Busy,
    Gone,
    Granted,
    Refused,
    Released,
    Renewal,
    RenewItem,
    RenewReply,
)
from lockapp.engines.redis.redlock.votes import (
    UNANSWERED,
    Attempt,
    Nodes,
    Outcomes,
    answers,
    at_once,
    majority,
    of_kind,
    quorum_lost,
    raise_misfit,
)
from lockapp.exceptions import EngineError

MISSING = ("gone", "expired")
"""How a node says that it does not know a token (any more). Of one that was ended there on purpose
it says otherwise, and that must not come back."""
ON_PURPOSE = ("forced", "abandoned")
"""An operator's word, or a parent's, which goes to all nodes. Whoever hears it from one of them
takes it for said: waiting for a majority, it would sleep until its next renewal."""
RENEWAL_GRACE_S = 0.02
"""So long a renewal that a majority has answered waits for the others, to see who has to be
refilled."""


async def acquire(
    nodes: Nodes, attempt: Attempt, *, fence: int, last: bool
) -> Granted | Busy | Refused:
    """Ask all nodes for a lock. Whatever it got is given back unless it is a majority.

    Args:
        nodes: all of them.
        attempt: who asks for what.
        fence: what to call it by; 0: by a fence that grows with each grant (a second round trip).
        last: whether this token will not ask again, if it gets nothing.

    Raises:
        QuorumNotReached: fewer than a majority answered; some may have granted.
    """
    least, token, spec = majority(nodes.count), attempt.token, attempt.spec

    def decided(outcomes: Outcomes) -> bool:
        granted = failed = 0
        for it in outcomes:
            if type(it) is Granted:
                granted += 1
            elif isinstance(it, EngineError) or it is not UNANSWERED:
                failed += 1
        if granted >= least:
            return True
        hopeless = nodes.count - failed < least
        return hopeless and len(answers(outcomes)) >= least

    outcomes = await nodes.ask(
        lambda node, _: node.acquire(spec, token, attempt.description, queue=False),
        decided, attempt=attempt, begins=True,
    )  # fmt: skip
    granted = of_kind(outcomes, Granted)
    if len(granted) < least:
        raise_misfit(outcomes)
        if len(answers(outcomes)) < least:
            quorum_lost(nodes, outcomes)
        await give_back(nodes, attempt, outcomes, last=last)
        return _refusal(outcomes, least)
    if not fence:
        fence = max(outcomes[at].fence for at in granted) + 1
        accepted = await _accept(nodes, attempt, granted, fence)
        if len(of_kind(accepted, Granted)) < least:
            if not of_kind(accepted, Gone):
                quorum_lost(nodes, accepted, taken=True)
            await give_back(nodes, attempt, outcomes, last=last)
            return Busy(outcomes[granted[0]].now_ms, None)
        counted = of_kind(accepted, Granted)  # each by what it said first: that is how old it is
        outcomes = [it if at in counted else UNANSWERED for at, it in enumerate(outcomes)]
    now_ms, life_ms = worth(outcomes, least)
    return Granted(now_ms, now_ms + life_ms, fence)


async def _accept(nodes: Nodes, attempt: Attempt, granted: list[int], fence: int) -> Outcomes:
    """Phase 2. Only of nodes whose grant was counted in the fence."""
    least, name, token = majority(nodes.count), attempt.spec.name, attempt.token

    def decided(outcomes: Outcomes) -> bool:
        refused = len(of_kind(outcomes, Gone))
        return len(of_kind(outcomes, Granted)) >= least or refused > len(granted) - least

    return await nodes.ask(lambda node, _: node.accept(name, token, fence), decided, among=granted)


def worth(outcomes: Outcomes, least: int) -> tuple[int, int]:
    """Return a node's time and how long the lease lives on ``least`` nodes from then (ms)."""
    grants = [outcomes[at] for at in of_kind(outcomes, Granted)]
    lives = sorted((it.deadline_ms - it.now_ms for it in grants), reverse=True)
    return grants[0].now_ms, lives[least - 1]


def _refusal(outcomes: Outcomes, least: int) -> Busy | Refused:
    refused = [outcomes[at] for at in of_kind(outcomes, Refused)]
    if len(refused) >= least:
        return refused[0]  # type: ignore[no-any-return]
    busy = [outcomes[at] for at in of_kind(outcomes, Busy)]
    known = [it for it in busy if it.holder is not None]
    for it in known or busy:
        return it  # type: ignore[no-any-return]
    return Busy(outcomes[answers(outcomes)[0]].now_ms, None)


async def give_back(nodes: Nodes, attempt: Attempt, outcomes: Outcomes, *, last: bool) -> None:
    """Release what a failed attempt may have taken. Nobody's answer is waited for.

    Not where a node has said that it gave nothing. A token that asks again must not be buried.
    """
    name, token = attempt.spec.name, attempt.token
    attempt.over = last
    among = [at for at, it in enumerate(outcomes) if type(it) not in (Busy, Refused)]
    if among:
        await nodes.ask(
            lambda node, ordered: node.release(
                name, token, tombstone=last and not ordered, why="undone"
            ),
            at_once, among=among, attempt=attempt, lasting=True,
        )  # fmt: skip


async def release(
    nodes: Nodes, name: str, token: str, attempt: Attempt | None, *, tombstone: bool, why: str
) -> Released | Gone:
    """Release a lease on every node, also where it is not known to be.

    Args:
        nodes: all of them.
        name: the lock's.
        token: the lease's.
        attempt: what this process knows of the token.
        tombstone: whether a request of the token may arrive late, if nothing is known of it.
        why: what the event says.

    Raises:
        QuorumNotReached: fewer than a majority answered; it may be repeated.
    """
    least = majority(nodes.count)

    def decided(outcomes: Outcomes) -> bool:
        return max(len(of_kind(outcomes, Released)), len(of_kind(outcomes, Gone))) >= least

    outcomes = await nodes.ask(
        lambda node, ordered: node.release(
            name, token, tombstone=tombstone if attempt is None else not ordered, why=why
        ),
        decided, attempt=attempt, lasting=True,
    )  # fmt: skip
    raise_misfit(outcomes)
    if len(answers(outcomes)) < least:
        quorum_lost(nodes, outcomes)
    gone = [outcomes[at] for at in of_kind(outcomes, Gone)]
    if len(gone) < least:
        return Released(next(it.now_ms for it in outcomes if type(it) in (Released, Gone)))
    return max(gone, key=lambda it: _weight(it.kind))  # type: ignore[no-any-return]


def _weight(kind: str) -> int:
    """How much the word of a node says about the end of a lease."""
    order = ("", "gone", "undone", "expired", "abandoned", "forced")
    return order.index(kind) if kind in order else 0


async def renew(
    nodes: Nodes, leases: Sequence[RenewItem], attempts: Callable[[str], Attempt | None]
) -> RenewReply:
    """Prolong leases; put those that nodes have forgotten there again.

    A lease is kept if a majority has it, and no node was told to end it. If a majority answers and
    it is not there on so many nodes, it is lost.

    Raises:
        QuorumNotReached: fewer than a majority answered. Nothing counts as prolonged, or lost.
    """
    least = majority(nodes.count)

    def decided(outcomes: Outcomes) -> bool:
        replies = [outcomes[at] for at in answers(outcomes)]
        return len(replies) >= least and all(
            sum(bool(reply.renewals[at].deadline_ms) for reply in replies) >= least
            for at in range(len(leases))
        )

    sent_at = nodes.now()
    outcomes = await nodes.ask(lambda node, _: node.renew(leases), decided, grace_s=RENEWAL_GRACE_S)
    raise_misfit(outcomes)
    answered = answers(outcomes)
    if len(answered) < least:
        quorum_lost(nodes, outcomes)
    now_ms = outcomes[answered[0]].now_ms
    renewals = []
    for at, item in enumerate(leases):
        said = {node: (outcomes[node].now_ms, outcomes[node].renewals[at]) for node in answered}
        renewals.append(_renewed(said, now_ms, least))
        attempt = attempts(item.token)
        if renewals[-1].deadline_ms and attempt is not None:
            await refill(nodes, attempt, item, said, sent_at)
    expired = {name for node in answered for name in outcomes[node].expired}
    return RenewReply(now_ms, renewals, sorted(expired))


def _renewed(said: dict[int, tuple[int, Renewal]], now_ms: int, least: int) -> Renewal:
    lives = sorted(
        (it.deadline_ms - then for then, it in said.values() if it.deadline_ms), reverse=True
    )
    ends = [it for _, it in said.values() if not it.deadline_ms]
    if len(lives) < least or any(it.kind in ON_PURPOSE for it in ends):
        return max(ends, key=lambda it: _weight(it.kind))
    asked = [it for _, it in said.values() if it.deadline_ms and it.kind]
    kind, note = (asked[0].kind, asked[0].note) if asked else ("", "")
    return Renewal(now_ms + lives[least - 1], kind, note)


async def refill(
    nodes: Nodes,
    attempt: Attempt,
    item: RenewItem,
    said: dict[int, tuple[int, Renewal]],
    now: float,
) -> None:
    """Ask the nodes that have forgotten a lease for it again. Nobody's answer is waited for."""
    among = [node for node, (_, it) in said.items() if not it.deadline_ms and it.kind in MISSING]
    if not among or not item.ttl_ms:
        return
    spec = attempt.spec
    if spec.max_hold_ms:
        left_ms = spec.max_hold_ms - round((now - attempt.granted_at) * 1000)
        if left_ms <= 0:
            return
        spec = replace(spec, max_hold_ms=left_ms)
    await nodes.ask(
        lambda node, _: node.acquire(spec, attempt.token, attempt.description, queue=False),
        at_once, among=among, attempt=attempt, begins=True,
    )  # fmt: skip
