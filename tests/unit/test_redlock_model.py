"""The two phases of Redlock's fencing, in every order of what can happen on three nodes.

Two clients run the production procedure; what they ask for arrives late, twice or never, answers
get lost, keys vanish (expired, evicted, released) and nodes restart empty, at any moment, within
bounds. What is checked after each step, of leases that were handed out:

* on each node, those that it has accepted have tokens in the order of the grants by which it did;
* who began to ask when another one's lease had been handed out has the larger token.

That an answer takes long needs no step of its own: the client is slow, and so is all it asks next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest

from lockapp.core.values import Busy, Gone, Granted, LockSpec
from lockapp.engines.redis.redlock import procedures
from lockapp.engines.redis.redlock.votes import UNANSWERED, Attempt

NODES = range(3)
CLIENTS = range(2)
COUNTERS = (3, 0, 0)  # one node has granted more than the others before
TTL_MS = 30_000
FREE = -1


@dataclass(frozen=True)
class Protocol:
    """What is modelled: the shipped protocol, unless something is taken out."""

    phases: int = 2
    owner: bool = True  # accepted only of who holds
    order: bool = True  # accepted only by a grant with a smaller fence
    vanished: int = 2  # so many keys vanish,
    restarted: int = 0  # nodes restart empty,
    repeated: int = 0  # and requests arrive twice
    counter: bool = True  # a node that restarts empty goes on from a clock that has passed all


class Node(NamedTuple):
    """A node: its holder, the fence and the place in the order of grants that it holds by."""

    counter: int
    grants: int = 0
    holder: int = FREE
    fence: int = 0
    nth: int = 0


History = tuple[frozenset[tuple[int, Any]], ...]
"""A client's questions so far: of each the answers that it has got."""


KNOWN: dict[History, int] = {}
HISTORIES: list[History] = []
"""Histories by number: a world is looked up by its hash, and they are long."""


def number_of(history: History) -> int:
    """Return the number of a history, the same each time."""
    if history not in KNOWN:
        KNOWN[history] = len(HISTORIES)
        HISTORIES.append(history)
    return KNOWN[history]


class Asked(NamedTuple):
    """What a client asks now, and of whom; or what it has been handed (``fence``)."""

    nodes: tuple[int, ...]
    accept: int = 0  # 0: the first phase
    fence: int = 0


class World(NamedTuple):
    """All there is at one moment."""

    nodes: tuple[Node, ...]
    histories: tuple[int, ...]  # of each client
    sent: frozenset[tuple[int, int, int]]  # (client, node, accept or 0) that may still arrive
    arrived: frozenset[tuple[int, int]]  # acquires that may arrive once more
    accepted: frozenset[tuple[int, int, int]]  # (client, node, nth grant)
    after: frozenset[tuple[int, int]]  # (client, client handed out before that one began)
    vanished: int = 0
    restarted: int = 0
    repeated: int = 0


class Question:
    """What the procedure awaits."""

    def __init__(self, step: Any, enough: Any, among: Any) -> None:
        self.step, self.enough = step, enough
        self.among = tuple(NODES if among is None else among)

    def __await__(self) -> Any:
        return (yield self)


class Nodes:
    """The port on which the procedure runs here: each question stops it."""

    count, alias, names = len(NODES), "model", [f"n{at}" for at in NODES]

    async def ask(self, step: Any, enough: Any, *, among: Any = None, **_: Any) -> Any:
        return await Question(step, enough, among)


class Wanted:
    """Stands for a node, to learn what a step would ask it."""

    accept_with = 0

    def acquire(self, *_: Any, **__: Any) -> None:
        """Note nothing: the first phase."""

    def accept(self, name: str, token: str, fence: int) -> None:
        self.accept_with = fence

    def release(self, *_: Any, **__: Any) -> None:
        """Note nothing: a vanished key says the same."""


@cache
def asked(number: int, phases: int) -> Asked | None:
    """Run the procedure over what a client has heard; return what it asks, None if it gave up."""
    attempt = Attempt("token", LockSpec("order:1", TTL_MS, 0), 0.0)
    fence = 0 if phases == 2 else 1  # with a fence of its own there is one phase
    steps: Any = procedures.acquire(Nodes(), attempt, fence=fence, last=True)  # type: ignore[arg-type]
    question = steps.send(None)
    outcomes: list[Any] = []
    for answers in (*HISTORIES[number], frozenset()):
        outcomes = [UNANSWERED for _ in NODES]
        for at, answer in answers:
            outcomes[at] = answer
        if not question.enough(outcomes):
            wanted = Wanted()
            question.step(wanted, True)
            steps.close()
            left = tuple(at for at in question.among if outcomes[at] is UNANSWERED)
            return Asked(left, wanted.accept_with)
        try:
            question = steps.send(outcomes)
        except StopIteration as end:
            if type(end.value) is not Granted:
                return None
            # In one phase the token would be the largest that was seen.
            seen = max(it.fence for it in outcomes if type(it) is Granted)
            return Asked((), 0, end.value.fence if phases == 2 else seen)
        if question.enough([UNANSWERED for _ in NODES]):  # gives back, and waits for nobody
            steps.close()
            return None
    raise AssertionError("unreachable")


def heard(world: World, client: int, at: int, accept: int, answer: Any, p: Protocol) -> World:
    """Tell a client an answer, if it still waits for it; send what it asks next."""
    now = asked(world.histories[client], p.phases)
    if now is None or now.fence or now.accept != accept or at not in now.nodes:
        return world
    history = HISTORIES[world.histories[client]]
    history = (*history[:-1], history[-1] | {(at, answer)})
    then = asked(number_of(history), p.phases)
    if then is not None and not then.fence and then.accept != accept:
        history = (*history, frozenset())
    histories = tuple(
        number_of(history) if one == client else world.histories[one] for one in CLIENTS
    )
    sent = world.sent
    if then is not None and not then.fence and then.accept != accept:
        sent = sent | {(client, node, then.accept) for node in then.nodes}
    return world._replace(histories=histories, sent=sent)


def handed(world: World, p: Protocol) -> dict[int, int]:
    """Return the tokens that have been handed out, by client."""
    said = {one: asked(world.histories[one], p.phases) for one in CLIENTS}
    return {one: it.fence for one, it in said.items() if it is not None and it.fence}


def with_node(world: World, at: int, node: Node) -> World:
    return world._replace(nodes=(*world.nodes[:at], node, *world.nodes[at + 1 :]))


def acquired(world: World, client: int, at: int, p: Protocol) -> tuple[World, Any]:
    """Let an acquire arrive; as acquire.lua without its clock."""
    node = world.nodes[at]
    if node.holder not in (FREE, client):
        return world, Busy(0, None)
    if node.holder == FREE:
        count = node.counter + 1
        node = Node(count, node.grants + 1, client, count, node.grants + 1)
        world = with_node(world, at, node)
    if p.phases == 1:
        world = world._replace(accepted=world.accepted | {(client, at, node.nth)})
    return world, Granted(0, TTL_MS, node.fence)


def accepted(world: World, client: int, at: int, fence: int, p: Protocol) -> tuple[World, Any]:
    """Let an accept arrive; as accept.lua."""
    node = world.nodes[at]
    if p.owner and node.holder != client:
        return world, Gone(0, "gone", "")
    if p.order and (node.fence if p.owner else node.counter) >= fence:
        return world, Gone(0, "overtaken", "")
    grants = [nth for one, where, nth in world.accepted if (one, where) == (client, at)]
    nth = node.nth if node.holder == client else max(grants, default=0)
    node = node._replace(counter=max(node.counter, fence))
    if node.holder == client:
        node = node._replace(fence=fence)
    world = world._replace(accepted=world.accepted | {(client, at, nth)})
    return with_node(world, at, node), Granted(0, TTL_MS, fence)


def arrivals(world: World, p: Protocol) -> Iterator[World]:
    """Yield what comes of each request that arrives, its answer heard or lost."""
    for sent in world.sent:
        client, at, accept = sent
        left = world._replace(sent=world.sent - {sent})
        if accept:
            left, answer = accepted(left, client, at, accept, p)
        else:
            before = frozenset((client, other) for other in handed(world, p) if other != client)
            began = any(one == client for one, _ in world.arrived)
            left = left._replace(arrived=left.arrived | {(client, at)})
            if not began:
                left = left._replace(after=left.after | before)
            left, answer = acquired(left, client, at, p)
        yield left
        told = heard(left, client, at, accept, answer, p)
        if told is not left:
            yield told
    if world.repeated < p.repeated:
        for client, at in world.arrived:
            again, _ = acquired(world, client, at, p)
            if again is not world:
                yield again._replace(repeated=world.repeated + 1)


def accidents(world: World, p: Protocol) -> Iterator[World]:
    """Yield what else can happen."""
    for at in NODES:
        node = world.nodes[at]
        gone = node._replace(holder=FREE, fence=0, nth=0)
        if node.holder != FREE and world.vanished < p.vanished:
            yield with_node(world, at, gone)._replace(vanished=world.vanished + 1)
        if world.restarted < p.restarted:
            clock = max(it.counter for it in world.nodes) if p.counter else 0
            restarted = with_node(world, at, gone._replace(counter=clock))
            yield restarted._replace(restarted=world.restarted + 1)


def fault(world: World, p: Protocol) -> str:
    """Say what must never be, if it is."""
    tokens = handed(world, p)
    if len(tokens) < 2:
        return ""
    for client, before in world.after:
        if tokens[client] <= tokens[before]:
            return f"{client} began after {before}, and has {tokens[client]} <= {tokens[before]}"
    for at in NODES:
        mine = sorted((nth, tokens[one]) for one, where, nth in world.accepted if where == at)
        both = {one for one, where, _ in world.accepted if where == at}
        if len(both) == 2 and [token for _, token in mine] != sorted(it for _, it in mine):
            return f"node {at} has accepted {mine}, in the order of its grants"
    return ""


def may_end(world: World, p: Protocol) -> bool:
    """Whether both clients can still be handed a lease: else nothing more can go wrong."""
    for one in CLIENTS:
        now = asked(world.histories[one], p.phases)
        if now is None:
            return False
        if not now.fence:
            granted = sum(type(it) is Granted for _, it in HISTORIES[world.histories[one]][-1])
            open_yet = sum((one, at, now.accept) in world.sent for at in now.nodes)
            if granted + open_yet < 2:
                return False
    return True


def explore(p: Protocol, most: int = 10_000_000) -> tuple[int, str]:
    """Go every way; return how many worlds there are, and the first fault."""
    begin = World(
        tuple(Node(count) for count in COUNTERS),
        (number_of((frozenset(),)),) * len(CLIENTS),
        frozenset((client, at, 0) for client in CLIENTS for at in NODES),
        frozenset(), frozenset(), frozenset(),
    )  # fmt: skip
    seen, todo = {begin}, [begin]
    while todo and len(seen) < most:
        world = todo.pop()
        found = fault(world, p)
        if found:
            return len(seen), found
        if len(handed(world, p)) == len(CLIENTS):
            continue
        ways: Callable[..., Iterator[World]]
        for ways in (arrivals, accidents):
            for following in ways(world, p):
                if following not in seen and may_end(following, p):
                    seen.add(following)
                    todo.append(following)
    return len(seen), ""


@pytest.mark.parametrize(
    "broken",
    [
        Protocol(phases=1),
        Protocol(owner=False),
        Protocol(order=False, repeated=1),
        Protocol(counter=False, vanished=0, restarted=1),
    ],
    ids=["one phase", "no look at the owner", "no look at the order", "the counter is lost"],
)
def test_whatever_is_taken_out_is_missed(broken: Protocol) -> None:
    """Each condition has its reason."""
    assert explore(broken)[1]


@pytest.mark.parametrize(
    "shipped",
    [Protocol(repeated=1), Protocol(vanished=0, restarted=1)],
    ids=["two vanish, one request comes twice", "one node restarts"],
)
def test_two_phases_hand_out_tokens_in_the_order_of_the_leases(shipped: Protocol) -> None:
    """Whatever gets lost, comes late or twice, vanishes or restarts, and whenever."""
    count, found = explore(shipped)
    assert found == ""
    assert count > 1000
