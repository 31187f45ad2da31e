"""Who holds, who waits, and for whom: decided from the names of a lock's nodes alone.

Theory of operation
-------------------
Each attempt makes one node below the lock's own: ``<token>.<limit>.<weight>.<sequence>``. The
server numbers them in order of arrival, so everybody who lists them sees the same queue. Those who
hold are the longest head of the queue whose weights fit under the smallest limit among them.

A node that goes away only makes room, so who holds once holds until its own node is gone; and a
node that comes later stands behind. So a look at the queue is never too late to be true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Contender(NamedTuple):
    """One node in the queue. ``fence`` is 0 unless the node took over from an earlier one."""

    node: str
    token: str
    limit: int
    weight: int
    fence: int
    sequence: int


def stem(token: str, limit: int, weight: int) -> str:
    """Return a node's name without the number that the server appends."""
    return f"{token}.{limit}.{weight}."


def reborn(old: Contender, weight: int, fence: int) -> str:
    """Return the name of a node that takes the place of ``old`` with another weight."""
    number = old.node.rpartition(".")[2]
    return f"{old.token}.{old.limit}.{weight}.{fence}.{number}"


def parse(node: str) -> Contender | None:
    """Read a node's name; None for a node that is not of this package's making."""
    token, *numbers = node.split(".")
    try:
        limit, weight, *fence, sequence = map(int, numbers)
    except ValueError:
        return None
    return Contender(node, token, limit, weight, sum(fence), sequence)


def queue(nodes: Iterable[str]) -> list[Contender]:
    """Return the contenders in order of arrival."""
    found = [contender for node in nodes if (contender := parse(node))]
    return sorted(found, key=lambda contender: contender.sequence)


def holding(contenders: Sequence[Contender]) -> int:
    """Return how many at the head of the queue hold."""
    used, limit = 0, 0
    for at, contender in enumerate(contenders):
        limit = min(limit or contender.limit, contender.limit)
        used += contender.weight
        if used > limit:
            return at
    return len(contenders)


def place_of(contenders: Sequence[Contender], token: str) -> int | None:
    """Return where in the queue a token stands; None if it does not."""
    return next((at for at, one in enumerate(contenders) if one.token == token), None)


def to_watch(contenders: Sequence[Contender], mine: int) -> list[str]:
    """Return nodes of which one must go before the one at ``mine``, which waits, can hold.

    As few as possible, and the nearest: of a mutex the predecessor, for a reader the last writer
    before it, for a semaphore as many as it has permits. So nobody is woken in vain by somebody
    far ahead, and nobody misses its turn.
    """
    first = holding(contenders)  # the first that waits; all behind it wait for it as well
    wanted = mine if _blocked(contenders, mine) else first
    # The own limit: a smaller one binds only as long as its node is there.
    limit, weight = contenders[wanted].limit, contenders[wanted].weight
    ahead = sorted(contenders[:wanted], key=lambda one: (one.weight, one.sequence), reverse=True)
    found = [] if wanted == mine else [contenders[wanted].node]
    for one in ahead:
        found.append(one.node)
        weight += one.weight
        if weight > limit:
            break
    return found


def _blocked(contenders: Sequence[Contender], mine: int) -> bool:
    """Whether those ahead leave no room under the own limit."""
    return sum(one.weight for one in contenders[: mine + 1]) > contenders[mine].limit
