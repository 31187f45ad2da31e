"""P3: the token is chosen before the first byte is sent, so no answer can be lost for good."""

from __future__ import annotations

from typing import Any

import pytest

from lockapp.core.ports import EnginePort
from lockapp.core.values import Gone, Granted, LockSpec, Queued, Refused, Released
from lockapp.engines import procedures
from lockapp.exceptions import EngineUnavailable, LeaseLost, ScriptError
from lockapp.lock import Lock
from lockapp.primitives import MultiLock, Semaphore
from tests.contract.fronts import People
from tests.contract.places import Place, RedisPlace
from tests.proxy import Fault, TcpProxy
from tests.timing import pause, wait_until

SPEC = LockSpec("order:1", ttl_ms=10_000, max_hold_ms=0)
TOKEN = "a" * 32


async def here(port: EnginePort) -> EnginePort:
    """The port of a contender's front."""
    return port


@pytest.mark.offers("same_fence")
def test_asking_again_with_the_same_token_gives_the_same_grant(
    place: Place, people: People
) -> None:
    """An acquire whose reply was lost is recognised as ours."""
    ann = people("ann")

    def ask(port: object) -> object:
        return port.acquire(SPEC, TOKEN, "{}", queue=False)  # type: ignore[attr-defined]

    first = ann.step(place.engine, ask)
    second = ann.step(place.engine, ask)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fence == first.fence
    assert second.deadline_ms >= first.deadline_ms
    assert place.kinds() == ["acquired"]
    ann.step(place.engine, lambda port: port.release("order:1", TOKEN, tombstone=False, why=""))


@pytest.mark.offers("queue")
def test_asking_again_while_waiting_keeps_the_place_in_the_queue(
    place: Place, people: People
) -> None:
    """The second in the queue stays the second."""
    ann = people("ann")
    lease = ann.acquire(place.lock())

    def ask(token: str) -> object:
        return ann.step(place.engine, lambda port: port.acquire(SPEC, token, "{}", queue=True))

    assert [ask(token).position for token in "bcb"] == [0, 1, 0]  # type: ignore[attr-defined]
    again = ask("c")
    assert isinstance(again, Queued)
    assert again.position == 1
    for token in "bc":
        ann.step(place.engine, lambda port: port.cancel("order:1", token, tombstone=False))  # noqa: B023
    ann.release(lease)


@pytest.mark.keeps_keys  # the tombstone stands longer than the test takes
def test_a_request_that_arrives_after_its_undo_is_refused(place: Place, people: People) -> None:
    """The tombstone of the token stands until no such request can be under way."""
    ann = people("ann")
    engine = place.another_engine(tombstone=60)
    undone = ann.step(
        engine, lambda port: port.release("order:1", TOKEN, tombstone=True, why="undone")
    )
    late = ann.step(engine, lambda port: port.acquire(SPEC, TOKEN, "{}", queue=False))
    assert not isinstance(undone, Released)
    assert isinstance(late, Refused)
    assert place.engine.show("order:1") is None
    ann.release(ann.acquire(place.lock(), wait=0))


def test_each_acquisition_has_a_token_of_its_own_that_nobody_else_sees(
    place: Place, people: People
) -> None:
    """128 random bits; not in what people read, nor in errors or events."""
    ann, bob = people("ann", "bob")
    tokens = set()
    for _ in range(20):
        lease = ann.acquire(place.lock())
        token = lease.renew_item.token
        shown = repr((lease, lease.spec, place.engine.show("order:1"), place.events()))
        with pytest.raises(Exception, match="held by") as refusal:
            bob.acquire(place.lock(), wait=0)
        assert token not in shown + repr(refusal.value) + repr(refusal.value.fields)
        tokens.add(token)
        ann.release(lease)
    assert len(tokens) == 20
    assert {len(token) for token in tokens} == {32}


def test_a_repeated_release_is_a_quiet_no_op(place: Place, people: People) -> None:
    """Also when somebody else holds the lock by then."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(place.lock())
    ann.release(lease)
    ann.release(lease)
    present = bob.acquire(place.lock())
    before = place.raw("order:1")
    ann.release(lease)
    assert place.raw("order:1") == before
    bob.release(present)


def mend(proxy: TcpProxy, place: RedisPlace) -> None:
    """Bring the network back, and wait until the engine asks the server again."""
    proxy.heal()

    def answers() -> bool:
        try:
            place.engine.ping()
        except EngineUnavailable:
            return False
        return True

    wait_until(answers, limit_s=10, every_s=0.05)


def test_a_release_that_failed_on_the_network_can_be_repeated(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """The first call says that the engine did not answer; the second ends the lease."""
    ann = people("ann")
    lease = ann.acquire(far_place.lock())
    proxy.refuse()
    with pytest.raises(EngineUnavailable):
        ann.release(lease)
    mend(proxy, far_place)
    ann.release(lease)
    assert far_place.engine.show("order:1") is None


def test_a_release_that_failed_on_the_network_is_repeated_by_the_watchdog(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """Nobody has to come back to it."""
    ann = people("ann")
    lease = ann.acquire(far_place.lock())
    proxy.refuse()
    with pytest.raises(EngineUnavailable):
        ann.release(lease)
    assert far_place.client.exists(far_place.key("lock:order:1"))
    mend(proxy, far_place)
    wait_until(lambda: far_place.engine.show("order:1") is None)
    ann.release(lease)


def test_a_release_whose_reply_was_lost_is_quiet_when_repeated(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """The server released it; "gone" in the second answer means that."""
    ann = people("ann")
    lease = ann.acquire(far_place.lock())
    proxy.inject(Fault.DROP_REPLIES)
    with pytest.raises(EngineUnavailable):
        ann.release(lease)
    proxy.heal()
    ann.release(lease)


@pytest.mark.parametrize("tombstone", [False, True])
def test_a_release_that_was_cut_off_after_it_was_carried_out_counts_as_released(
    far_place: RedisPlace, proxy: TcpProxy, people: People, tombstone: bool
) -> None:
    """The second request finds nothing, or the tombstone that the first one left."""

    async def release(port: EnginePort) -> Released | Gone:
        await port.acquire(SPEC, TOKEN, "{}", queue=False)
        proxy.inject(Fault.CUT_ON_REPLY, once=True)
        return await procedures.release(port, "order:1", TOKEN, tombstone=tombstone)

    assert type(people("ann").step(far_place.engine, release)) is Released
    assert far_place.kinds().count("released") == 1


def test_a_lease_taken_away_while_its_release_failed_is_lost(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """The first request never arrived, so asking again must not pass for its success."""
    ann = people("ann")
    lease = ann.acquire(far_place.lock(ttl=60))
    told: list[object] = []
    lease.on_lost(told.append)
    proxy.refuse()
    with pytest.raises(EngineUnavailable):
        ann.release(lease)
    near = RedisPlace(far_place.server, far_place.prefix)
    # Long remembered: the proof that it never was released.
    near.another_engine(tombstone=60).force_release(lease.name, lease.fence, actor="op")
    mend(proxy, far_place)
    with pytest.raises(LeaseLost) as loss:
        ann.release(lease)
    assert loss.value.reason == "forced"
    assert told == [lease]
    near.client.delete(near.key("lock:order:1"))
    near.close()


def test_an_acquire_whose_reply_was_lost_leaves_no_orphan(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """The caller learns that the engine did not answer; the next one gets the lock at once."""
    ann, bob = people("ann", "bob")
    ann.release(ann.acquire(far_place.lock("warm:up")))
    proxy.inject(Fault.DROP_REPLIES)
    with pytest.raises(EngineUnavailable):
        ann.acquire(far_place.lock(ttl=60), wait=0)
    proxy.heal()
    lease = bob.acquire(far_place.lock(), wait=2)
    bob.release(lease)


@pytest.mark.parametrize("kind", ["lock", "semaphore", "multilock"])
def test_a_script_that_failed_has_answered_and_leaves_no_tombstone(
    redis_place: RedisPlace, people: People, kind: str
) -> None:
    """Nothing of that token can be under way; undone it is, since it may have failed half-way."""
    engine = redis_place.another_engine(tombstone=60)
    wanted: Any = {
        "lock": Lock(engine, "order:1"),
        "semaphore": Semaphore(engine, "order:1", 2),
        "multilock": MultiLock([Lock(engine, "order:1"), Lock(engine, "order:2")]),
    }[kind]
    ann, fence = people("ann"), redis_place.key("fence")
    ann.release(ann.acquire(wanted))
    redis_place.client.rename(fence, "elsewhere")
    redis_place.client.lpush(fence, "not a number")
    with pytest.raises(ScriptError):
        ann.acquire(wanted)
    redis_place.client.rename("elsewhere", fence)
    port = ann.step(engine, here)
    wait_until(lambda: not port.watchdog._undo, what="the undoing")
    assert redis_place.client.keys(redis_place.key("lock:*")) == []
    ann.release(ann.acquire(wanted))


def test_an_acquire_delayed_until_after_its_undo_is_never_granted(
    far_place: RedisPlace, proxy: TcpProxy, people: People
) -> None:
    """The network holds the request back, the caller leaves, then everything arrives."""
    ann, bob = people("ann", "bob")
    ann.release(ann.acquire(far_place.lock("warm:up")))
    proxy.inject(Fault.HOLD_REQUESTS)
    with pytest.raises(EngineUnavailable):
        ann.acquire(far_place.lock(ttl=60), wait=0)
    proxy.heal()
    wait_until(lambda: far_place.engine.show("order:1") is None)
    lease = bob.acquire(far_place.lock(), wait=2)
    bob.release(lease)
    pause(0.05)
    assert far_place.engine.show("order:1") is None
