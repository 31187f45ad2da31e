"""The order of contenders on ZooKeeper: who holds, and whose going each waiter has to notice."""

from __future__ import annotations

import random
from itertools import chain, combinations

import pytest

from lockapp.engines.zookeeper import contenders as order
from lockapp.engines.zookeeper.names import Paths, lock_name, node_name

READER, WRITER = (1_000_000, 1), (1_000_000, 1_000_000)
MUTEX = (1, 1)


def queue(*kinds: tuple[int, int]) -> list[order.Contender]:
    """A queue of contenders of these limits and weights, in shuffled order of their names."""
    nodes = [f"{order.stem(f'{at:032}', *kind)}{at:010}" for at, kind in enumerate(kinds)]
    random.shuffle(nodes)
    return order.queue(nodes)


@pytest.mark.parametrize(
    ("kinds", "head"),
    [
        ([], 0),
        ([MUTEX], 1),
        ([MUTEX, MUTEX], 1),
        ([(2, 1), (2, 1), (2, 1)], 2),
        ([READER, READER, WRITER, READER], 2),
        ([WRITER, READER], 1),
        ([(2, 1), (1, 1), (2, 1)], 1),  # who knows a smaller limit is respected
        ([(3, 1), (2, 1), (3, 1)], 2),
    ],
)
def test_the_longest_head_that_fits_holds(kinds: list[tuple[int, int]], head: int) -> None:
    """Under the smallest limit among those who hold; nobody is passed."""
    assert order.holding(queue(*kinds)) == head


@pytest.mark.parametrize(
    ("kinds", "watched"),
    [
        ([MUTEX, MUTEX, MUTEX], [1]),
        ([WRITER, READER, READER], [0]),
        ([READER, READER, WRITER, READER, READER], [2]),
        ([READER, READER, WRITER], [1]),
        ([(2, 1), (2, 1), (2, 1)], [1, 0]),
        ([(2, 1), (2, 1), (2, 1), (2, 1)], [2, 1]),
    ],
)
def test_a_waiter_watches_as_few_as_it_must(
    kinds: list[tuple[int, int]], watched: list[int]
) -> None:
    """The last in the queue; of a mutex it is the predecessor alone."""
    contenders = queue(*kinds)
    found = order.to_watch(contenders, len(kinds) - 1)
    assert found == [contenders[at].node for at in watched]


def test_no_waiters_turn_comes_without_one_of_the_watched_going() -> None:
    """Every way in which others of a mixed queue may leave, for hundreds of queues."""
    kinds = [MUTEX, (2, 1), (3, 1), (3, 2), READER, WRITER]
    chance = random.Random(7)
    for _ in range(400):
        contenders = queue(*chance.choices(kinds, k=chance.randint(2, 6)))
        mine = len(contenders) - 1
        if order.holding(contenders) > mine:
            continue
        watched = set(order.to_watch(contenders, mine))
        others = [one for one in contenders[:mine] if one.node not in watched]
        ways = chain.from_iterable(combinations(others, many) for many in range(len(others) + 1))
        for gone in ways:
            left = [one for one in contenders if one not in gone]
            assert order.holding(left) < len(left), (contenders, watched, gone)


def test_who_holds_goes_on_holding_whoever_else_leaves() -> None:
    """A look at the queue is never too late to be true."""
    chance = random.Random(8)
    kinds = [MUTEX, (2, 1), (3, 1), (3, 2), READER, WRITER]
    for _ in range(400):
        contenders = queue(*chance.choices(kinds, k=chance.randint(1, 6)))
        for mine in range(order.holding(contenders)):
            for many in range(mine + 1):
                for gone in combinations(contenders[:mine], many):
                    left = [one for one in contenders if one not in gone]
                    assert left.index(contenders[mine]) < order.holding(left)


def test_a_node_that_takes_anothers_place_keeps_its_number_and_fence() -> None:
    """A writer that becomes a reader."""
    old = queue(READER, WRITER)[1]
    new = order.parse(order.reborn(old, 1, 77))
    assert new is not None
    assert (new.token, new.sequence, new.weight, new.fence) == (old.token, old.sequence, 1, 77)


def test_foreign_nodes_are_nobody() -> None:
    """Whatever somebody put below a lock by hand."""
    assert order.queue(["x", "a.b.c.d", "token.1", ".."]) == []


@pytest.mark.parametrize("name", ["order:1", "a/b", "..", ".", "%2E", "schlüssel:é", "a\x00b\x1f"])
def test_any_name_makes_one_node(name: str) -> None:
    """And can be read back."""
    node = node_name(name)
    assert "/" not in node
    assert node not in (".", "..")
    assert node.isprintable()
    assert lock_name(node) == name
    assert Paths("a/b").lock(name) == f"/a/b/locks/{node}"
