"""Redlock on real masters that are killed, frozen, emptied and named twice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockapp.core.options import EngineOptions
from lockapp.core.run import run_sync
from lockapp.engines.redis import RedisEngine, RedlockEngine
from lockapp.exceptions import (
    EngineMisconfigured,
    EngineUnavailable,
    LeaseLost,
    NotAcquired,
    QuorumNotReached,
)
from lockapp.lease import Lease
from lockapp.lock import Lock
from tests.contract.fronts import People
from tests.contract.journal import Journal
from tests.contract.redlock_place import Masters
from tests.timing import scaled, wait_until

pytestmark = pytest.mark.timeout(180)  # servers are killed, frozen and started again

Make = Callable[..., RedlockEngine]
LIMITS = {"connect_timeout": scaled(1), "command_timeout": scaled(1), "tombstone": 0.2}
NAME = "order:1"
KEY = f"lockapp:{{0}}:lock:{NAME}"


@pytest.fixture(scope="module")
def servers() -> Iterator[Masters]:
    """Five masters."""
    with Masters(5) as all_five:
        yield all_five


@pytest.fixture
def five(servers: Masters) -> Iterator[Masters]:
    """Five empty masters, to be harmed."""
    for server in servers.servers:
        server.client.flushall()
    yield servers
    for server in servers.servers:
        if server.running:
            server.resume()
        else:
            server.start()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes engines, as processes of their own would have them."""
    made: list[RedlockEngine] = []

    def of(urls: list[str], **options: Any) -> RedlockEngine:
        parsed = EngineOptions.parse({**LIMITS, **options})
        made.append(RedlockEngine(f"e{len(made)}", urls, parsed))
        return made[-1]

    yield of
    for engine in made:
        engine.close()


@pytest.fixture(params=["sync", "async"])
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    """Contenders of either front."""
    made = People(request.param)
    yield made
    made.close()


def holding(masters: Masters) -> int:
    """On how many running masters somebody holds the lock."""
    found = 0
    for server in masters.servers:
        fields = server.client.hkeys(KEY) if server.running else []
        found += any(field.startswith("h:") for field in fields)
    return found


def everywhere(owner: Any, lease: Lease, masters: Masters) -> None:
    """Renew a lease until every node has it: one to which a connection has yet to be made, too."""

    def done() -> bool:
        owner.renew(lease)
        return holding(masters) == len(masters.servers)

    wait_until(done, limit_s=10, every_s=0.1, what="the lease to be on every node")


def test_two_dead_of_five_make_no_difference(five: Masters, make: Make, people: People) -> None:
    """Acquired, refused to others, renewed and released; also by who never saw them alive."""
    early = make(five.urls)
    ann, bob = people("ann", "bob")
    ann.release(ann.acquire(Lock(early, NAME)))
    for server in five.servers[:2]:
        server.kill()
    lease = ann.acquire(Lock(early, NAME))
    with pytest.raises(NotAcquired):
        bob.acquire(Lock(make(five.urls), NAME, wait=0))
    ann.renew(lease)
    assert len(early.show(NAME).holders[0].description["nodes"].split(", ")) == 3  # type: ignore[union-attr]
    ann.release(lease)
    bob.release(bob.acquire(Lock(early, NAME, wait=0)))


def test_three_dead_of_five_is_unavailable_and_not_busy(
    five: Masters, make: Make, people: People
) -> None:
    """Within the node's timeout, and told by node; what two of them gave is undone."""
    engine = make(five.urls)
    ann = people("ann")
    ann.release(ann.acquire(Lock(engine, NAME)))
    for server in five.servers[:3]:
        server.kill()
    with pytest.raises(QuorumNotReached, match="2 of 5 nodes answered") as told:
        ann.acquire(Lock(engine, NAME, wait=0))
    assert list(told.value.nodes.values()).count("answered") == 2
    assert told.value.reason in ("reset", "timeout")
    five.servers[0].start()
    # Refused while its circuit breaker is open.
    wait_until(lambda: not holding(five), limit_s=10, what="the undo")


def test_a_majority_is_one_of_those_configured(five: Masters, make: Make) -> None:
    """Who has never seen two of them needs three as everybody else does: never two holders."""
    for server in five.servers[3:]:
        server.kill()
    engines = [make(five.urls)]
    Lock(engines[0], "warm up").acquire().release()
    for server in five.servers[3:]:
        server.start()
    engines.append(make(five.urls))
    journal = Journal()

    def visit(engine: RedlockEngine) -> None:
        for _ in range(40):
            with Lock(engine, NAME, ttl=30, wait=60) as lease, journal.inside(lease):
                pass

    threads = [threading.Thread(target=visit, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.visits) == 80


def test_a_frozen_node_is_waited_for_by_nobody(five: Masters, make: Make, people: People) -> None:
    """Nor by a new process, which has no connection to it yet; later nothing is left on it."""
    engine = make(five.urls, command_timeout=scaled(30), connect_timeout=scaled(30))
    ann = people("ann")
    ann.release(ann.acquire(Lock(engine, NAME)))
    five.servers[0].pause()
    for each in (engine, make(five.urls, command_timeout=scaled(30), connect_timeout=scaled(30))):
        for _ in range(20):
            lease = ann.acquire(Lock(each, NAME, ttl=5, wait=0))
            ann.renew(lease)
            ann.release(lease)
    five.servers[0].resume()

    def caught_up() -> bool:
        engine.sweep()  # what it was not told of any more ends there with its ttl
        return not holding(five)

    wait_until(caught_up, limit_s=15, every_s=0.1, what="the node to have caught up")
    assert engine.show(NAME) is None


def test_an_answer_that_comes_late_goes_to_who_asked(five: Masters, make: Make) -> None:
    """It is no answer to the next question, and its connection serves on."""
    engine = make(five.urls[:3], command_timeout=scaled(30))
    one, two = Lock(engine, NAME), Lock(engine, "order:2")
    one.acquire().release()
    late = five.servers[2]
    wait_until(lambda: late.client.hlen(KEY) == 0)
    connections = late.client.info("stats")["total_connections_received"]
    for _ in range(3):
        late.pause()
        first = one.acquire()
        second = two.acquire()
        first.release()
        assert engine.show("order:2") is not None
        assert engine.show(NAME) is None
        late.resume()
        second.renew()
        second.release()
    wait_until(lambda: not late.client.keys("*lock:*"), what="the node to have caught up")
    # The test's own client may be another one of them.
    assert late.client.info("stats")["total_connections_received"] <= connections + 1


def test_a_node_that_forgot_is_refilled_by_the_next_renewal(
    five: Masters, make: Make, people: People
) -> None:
    """And a lease that a majority has forgotten is lost, whatever the others say."""
    engine = make(five.urls)
    ann = people("ann")
    lease = ann.acquire(Lock(engine, NAME, ttl=60))
    everywhere(ann, lease, five)
    five.servers[0].restart()
    five.servers[1].client.flushall()
    assert holding(five) == 3
    everywhere(ann, lease, five)
    assert not lease.lost
    for server in five.servers[:3]:
        server.client.flushall()
    with pytest.raises(LeaseLost):
        ann.renew(lease)
    with contextlib.suppress(LeaseLost):
        ann.release(lease)


def test_an_operators_word_that_one_node_has_heard_ends_the_lease(
    five: Masters, make: Make, people: People
) -> None:
    """It is on its way to the others; who took its answer for a minority's would not hear of it."""
    ann = people("ann")
    lease = ann.acquire(Lock(make(five.urls), NAME, ttl=60))
    everywhere(ann, lease, five)
    with contextlib.closing(RedisEngine("one", five.urls[0], EngineOptions.parse(LIMITS))) as one:
        holder = one.show(NAME).holders[0]  # type: ignore[union-attr]
        one.force_release(NAME, holder.fence, actor="op", reason="stuck")
    # By the notice, or by asking: whichever comes first.
    with pytest.raises(LeaseLost):
        ann.renew(lease)
    assert lease.lost_reason == "forced"


def test_losing_the_quorum_is_a_loss_at_the_deadline_and_not_before(
    five: Masters, make: Make, people: People
) -> None:
    """A renewal that fails is tried again; the holder's own clock ends the lease."""
    engine = make(five.urls[:3])
    ann = people("ann")
    lease = ann.acquire(Lock(engine, NAME, ttl=scaled(3)))
    for server in five.servers[:2]:
        server.kill()
    with pytest.raises(EngineUnavailable):
        ann.renew(lease)
    assert not lease.lost
    wait_until(lambda: lease.lost, limit_s=6, what="the loss")
    with pytest.raises(LeaseLost):
        lease.check()


def test_the_same_server_twice_is_refused(five: Masters, make: Make, people: People) -> None:
    """By its run id, whatever its addresses are called."""
    twice = five.servers[0]
    engine = make([twice.url, twice.unix_url, five.servers[1].url])
    ann = people("ann")

    def refused() -> bool:
        try:
            ann.release(ann.acquire(Lock(engine, NAME, wait=0)))
        except EngineMisconfigured as error:
            return "are the same server" in str(error)
        return False  # by two that are different, before the third was found

    wait_until(refused, what="the refusal")


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_an_even_number_or_fewer_than_three_are_refused(count: int) -> None:
    """Where they are configured."""
    urls = [f"redis://localhost:{6379 + number}" for number in range(count)]
    with pytest.raises(ValueError, match="an odd number of servers"):
        RedlockEngine("e", urls, EngineOptions())


def test_a_server_that_is_there_twice_by_its_address_is_refused() -> None:
    """Another database of it is the same server."""
    urls = ["redis://localhost:6379/0", "redis://other:6379/0", "redis://127.0.0.1:6379/1"]
    with pytest.raises(ValueError, match="twice"):
        RedlockEngine("e", urls, EngineOptions())


def test_who_holds_what_is_told_by_node(five: Masters, make: Make, people: People) -> None:
    """One lease, not five; and by its fence it is taken away everywhere."""
    engine = make(five.urls)
    ann = people("ann")
    lease = ann.acquire(Lock(engine, NAME, ttl=60, why="import"))
    everywhere(ann, lease, five)
    state = engine.show(NAME)
    assert state is not None
    (holder,) = state.holders
    assert holder.description["why"] == "import"
    assert len(holder.description["nodes"].split(", ")) == 5
    assert engine.snapshot().total == 1
    assert make(five.urls).force_release(NAME, holder.fence, actor="op").value == "released"
    assert holding(five) == 0
    wait_until(lambda: lease.lost, what="the notice")


def test_fences_grow_with_two_phases(five: Masters, make: Make, people: People) -> None:
    """Whichever three of five answer, and although a counter is lost."""
    engine = make(five.urls, two_phase_fencing=True)
    ann = people("ann")
    fences = []
    for number in range(15):
        five.servers[number % 5].client.flushall()
        lease = ann.acquire(Lock(engine, NAME))
        fences.append(lease.fence)
        ann.release(lease)
    assert fences == sorted(set(fences))


def test_a_fence_is_accepted_only_while_its_token_holds_by_an_older_grant(
    five: Masters, make: Make
) -> None:
    """The conditions of the second phase, on a server."""
    engine = make(five.urls[:3], two_phase_fencing=True)
    lease = Lock(engine, NAME).acquire()
    wait_until(lambda: lease.renew() or holding(five) == 3, every_s=0.1)
    port: Any = engine.sync
    token = lease.renew_item.token

    def accept(token: str, fence: int) -> list[str]:
        outcomes = run_sync(
            port.nodes.ask(lambda node, _: node.accept(NAME, token, fence), lambda _: False)
        )
        return [getattr(it, "kind", "accepted") for it in outcomes]

    later = lease.fence + 1_000_000
    assert accept("another", later) == ["gone"] * 3
    assert accept(token, later) == ["accepted"] * 3
    assert accept(token, later) == ["overtaken"] * 3
    assert accept(token, later - 1) == ["overtaken"] * 3
    lease.release()
    again = Lock(engine, NAME).acquire()
    assert again.fence > later
    again.release()
