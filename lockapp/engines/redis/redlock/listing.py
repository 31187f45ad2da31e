"""Who holds what on which node, as people read it: the nodes' own words put together.

A lease has a fence of its own on each node. What is the same everywhere travels in the holder's
description: a mark made from its token, which does not give that away, and what its holder calls
it by.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lockapp.core.values import HolderState, LockState, WaiterState
from lockapp.engines.redis.redlock.attempts import MARK
from lockapp.engines.redis.redlock.votes import Attempt, Outcomes, answers, majority
from lockapp.engines.redis.replies import description


class Grant(NamedTuple):
    """One lease: what each node that has it says. Nodes by index."""

    mark: str
    on: dict[int, HolderState]

    @property
    def fence(self) -> int:
        """What its holder calls it by: its own word; or what most nodes have accepted."""
        said = [int(it.description.get(MARK, "").partition(" ")[2] or 0) for it in self.on.values()]
        agreed = Counter(it.fence for it in self.on.values()).most_common(1)
        return max(said) or agreed[0][0]


def grants(outcomes: Outcomes) -> dict[str, list[Grant]]:
    """Put the nodes' answers to ``inspect`` together, by name."""
    found: dict[str, dict[str, dict[int, HolderState]]] = defaultdict(lambda: defaultdict(dict))
    for at in answers(outcomes):
        for lock in outcomes[at][1]:
            for holder in lock.holders:
                mark = holder.description.get(MARK, f"{at}.{holder.fence}").partition(" ")[0]
                found[lock.name][mark][at] = holder
    return {name: [Grant(*it) for it in marks.items()] for name, marks in found.items()}


def whole(grant: Grant, count: int, answered: int) -> bool:
    """Whether a lease may be one: with those who did not answer it can be on a majority."""
    return len(grant.on) + count - answered >= majority(count)


def states(
    sought: Sequence[str], outcomes: Outcomes, names: Sequence[str]
) -> tuple[int, list[LockState]]:
    """Return a node's time and the locks that are held.

    What a minority of nodes has is nobody's: it was given back, or is on its way.
    """
    answered = answers(outcomes)
    now_ms = outcomes[answered[0]][0]
    found, locks = grants(outcomes), []
    for name in sought:
        holders = [
            _merged(grant, names)
            for grant in found.get(name, ())
            if whole(grant, len(names), len(answered))
        ]
        if holders:
            locks.append(LockState(name, name.partition(":")[0], 1, tuple(holders), 0))
    return now_ms, locks


def with_waiters(
    lock: LockState, attempts: Sequence[Attempt], shown: bool, now: float, seen_ms: int
) -> LockState:
    """Return a lock's state together with who is known to wait for it."""
    waiters = [
        WaiterState(
            position, round((now - it.asked_at) * 1000), seen_ms, _described(it.description)
        )
        for position, it in enumerate(attempts if shown else ())
    ]
    return replace(lock, waiter_count=len(attempts), waiters=tuple(waiters))


def _described(text: str) -> dict[str, str]:
    return unmarked(description(text))


def unmarked(described: dict[str, str]) -> dict[str, str]:
    """Return a description without the mark."""
    return {key: value for key, value in described.items() if key != MARK}


def _merged(grant: Grant, names: Sequence[str]) -> HolderState:
    """Describe a lease by what counts: it lasts as long as on its best majority of nodes."""
    holders = sorted(grant.on.values(), key=lambda it: it.remaining_ms, reverse=True)
    counted = holders[min(majority(len(names)), len(holders)) - 1]
    described = unmarked(counted.description)
    return replace(
        counted,
        fence=grant.fence,
        held_ms=max(it.held_ms for it in holders),
        granted_ms=min(it.granted_ms for it in holders),
        description={**described, "nodes": ", ".join(names[at] for at in sorted(grant.on))},
        revoked=next((it.revoked for it in holders if it.revoked), ""),
    )
