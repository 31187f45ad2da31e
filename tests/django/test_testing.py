"""`lockapp.testing`: what it does to engines, holders and time, and that it undoes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, SimpleTestCase, TestCase

from lockapp.decorators import view_lock
from lockapp.engines.memory.engine import _SERVERS, MemoryEngine
from lockapp.engines.redis import RedisEngine
from lockapp.exceptions import AlreadyHeld, LeaseLost, NotAcquired, NotHeld, WaitTimeout
from lockapp.fencing import fenced_atomic
from lockapp.handler import lock, locks, rwlock, semaphore
from lockapp.testing import (
    SteppableClock,
    aexpire,
    aforce_release,
    arevoke,
    assert_locked,
    assert_no_litter,
    assert_not_locked,
    expire,
    force_release,
    held_by_other,
    override_engine,
    revoke,
    rolled_back,
)
from tests.timing import await_until, scaled, stopwatch, wait_until

factory = RequestFactory()


# ------------------------------------------------------------------ engines


def test_an_engine_starts_empty_and_ends_with_its_block() -> None:
    """What is held outside is not held inside, and the other way round."""
    servers = dict(_SERVERS)
    with lock("order", 1):
        outside = locks["default"]
        with override_engine() as engine:
            assert locks["default"] is engine is not outside
            with lock("order", 1):
                assert_locked("order", 1)
        assert_locked("order", 1)
    assert_no_litter()
    assert servers.keys() >= _SERVERS.keys() - {("", "lockapp")}


def test_another_alias_leaves_the_default_alone() -> None:
    """And may get any configuration."""
    before = locks["default"]
    config = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {"prefix": "mine"}}
    with override_engine(config, alias="payments") as engine:
        assert isinstance(engine, RedisEngine)
        assert (engine.alias, engine.options.prefix) == ("payments", "mine")
        assert locks["default"].location == before.location
    assert "payments" not in locks


def test_without_settings_there_is_this_engine_only(delete_lockapp: Callable[[], None]) -> None:
    """A project that takes locks in a library's tests needs none."""
    delete_lockapp()
    with override_engine(alias="payments"):
        assert set(locks) == {"default", "payments"}


def test_a_configuration_that_makes_no_sense_changes_nothing(settings: Any) -> None:
    """The error is the one of the settings."""
    before = settings.LOCKAPP
    with pytest.raises(Exception, match="no address"), override_engine({"LOCATION": "shop"}):
        raise AssertionError("unreachable")
    assert before == settings.LOCKAPP
    with pytest.raises(ValueError, match="clock"):
        override_engine({"LOCATION": "redis://127.0.0.1:1/0"}, clock=SteppableClock())


async def test_it_decorates_functions_and_coroutine_functions() -> None:
    """For as long as they run, with an engine of its own each time."""

    @override_engine(kwarg_name="engine")
    def plain(engine: Any) -> str:
        assert locks["default"] is engine
        return str(engine.location)

    @override_engine(kwarg_name="engine")
    async def awaited(engine: Any) -> str:
        async with lock("order", 1):
            assert await engine.ashow("order:1") is not None
        assert locks["default"] is engine
        return str(engine.location)

    assert len({plain(), plain(), await awaited(), await awaited()}) == 4


@override_engine(attr_name="engine")
class InASimpleTestCase(SimpleTestCase):
    """A class of Django's."""

    engine: MemoryEngine

    def test_a_class_has_it_for_each_test(self) -> None:
        """Under the name that was asked for."""
        assert locks["default"].location == self.engine.location != ""


# ------------------------------------------------------------------ somebody else


def test_somebody_else_holds_a_lock() -> None:
    """Neither this thread, nor another test's: contention, not AlreadyHeld."""
    with held_by_other("order", 7) as theirs:
        assert_locked("order", 7)
        with pytest.raises(NotAcquired, match="says the test"):
            lock("order", 7).acquire(wait=0)
        with pytest.raises(NotAcquired), held_by_other("order", 7):
            raise AssertionError("unreachable")
        assert theirs.live
    assert_not_locked("order", 7)
    with lock("order", 7), pytest.raises(AlreadyHeld):
        lock("order", 7).acquire(wait=0)


@pytest.mark.django_db(transaction=True)
def test_somebody_else_has_other_transactions() -> None:
    """Their lease is released at the end of their block, whatever is open here."""
    with transaction.atomic():
        with held_by_other("order", 7):
            assert_locked("order", 7)
        assert_not_locked("order", 7)


def test_somebody_else_holds_on_a_real_server(redis_locks: Any) -> None:
    """Where the test's own engine is one."""
    with held_by_other("order", 7, ttl=30):
        with pytest.raises(NotAcquired):
            lock("order", 7).acquire(wait=0)
        with pytest.raises(AssertionError, match="says the test"):
            assert_no_litter()
    assert_no_litter()


def test_somebody_else_may_hold_any_kind_of_lock() -> None:
    """A permit, or a reader's side."""
    with held_by_other(semaphore("gpu", limit=1, wait=0)), pytest.raises(NotAcquired):
        semaphore("gpu", limit=1).acquire(wait=0)
    with held_by_other(rwlock("kb", 1, wait=0).read()):
        with rwlock("kb", 1, wait=0).read():
            pass
        with pytest.raises(NotAcquired):
            rwlock("kb", 1).write().acquire(wait=0)


def test_somebody_else_ends_with_an_exception_too() -> None:
    """And what was released by hand is not released again."""
    with pytest.raises(KeyError), held_by_other("order", 7):
        raise KeyError
    with held_by_other("order", 7) as theirs:
        theirs.release()
        assert_not_locked("order", 7)


# ------------------------------------------------------------------ operators and time


@pytest.mark.parametrize("engine", ["memory", "redis"])
@pytest.mark.keeps_keys  # the tombstone of the lease that was taken away
def test_an_operator_takes_a_lease_away(engine: str, request: pytest.FixtureRequest) -> None:
    """Its holder has heard of it when the call returns."""
    if engine == "redis":
        request.getfixturevalue("redis_locks")
    lost: list[str] = []
    lease = lock("order", 1, on_lost=lambda it: lost.append(it.lost_reason)).acquire()
    force_release(lease, reason="stuck")
    assert lost == ["forced"]
    assert "stuck" in lease.lost_note
    with pytest.raises(NotHeld):
        force_release(lease)
    with pytest.raises(LeaseLost):
        lease.release()
    assert_no_litter()


@pytest.mark.parametrize("engine", ["memory", "redis"])
def test_an_operator_asks_a_holder_to_let_go(engine: str, request: pytest.FixtureRequest) -> None:
    """It has been asked when the call returns, and still holds."""
    if engine == "redis":
        request.getfixturevalue("redis_locks")
    asked: list[str] = []
    with lock("order", 1, on_revoke=lambda it: asked.append(it.revoke_note)) as lease:
        revoke(lease, reason="deploy")
        assert lease.live
        assert len(asked) == 1
        assert "deploy" in asked[0]
    with pytest.raises(NotHeld):
        revoke(lease)


def test_one_lease_expires_and_the_next_in_the_queue_gets_the_lock() -> None:
    """Others live on."""
    got: list[bool] = []
    lost: list[str] = []

    def wait() -> None:
        with lock("order", 1, wait=scaled(20)):
            got.append(True)

    with lock("order", 2), held_by_other("order", 1, on_lost=lambda it: lost.append("x")) as theirs:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: locks["default"].show("order:1").waiter_count == 1)  # type: ignore[union-attr]
        expire(theirs)
        thread.join()
        assert (got, lost, theirs.lost_reason) == ([True], ["x"], "expired")
        assert_locked("order", 2)
        with pytest.raises(NotHeld):
            expire(theirs)


def test_only_a_memory_engines_lease_can_be_expired(redis_locks: Any) -> None:
    """The message says what can be done instead."""
    with lock("order", 1) as lease, pytest.raises(TypeError, match="force_release"):
        expire(lease)


def test_a_ttl_passes_without_sleeping(lockapp_engine: Any, lockapp_clock: SteppableClock) -> None:
    """Renewed or not, as if the process had been frozen; what lives longer lives on."""
    lost: list[str] = []
    with stopwatch() as watch:
        renewed = lock("order", 1, ttl=30, on_lost=lambda it: lost.append("renewed")).acquire()
        plain = lock("order", 2, ttl=30, renew=False).acquire()
        long = lock("order", 3, ttl=90).acquire()
        lockapp_clock.advance(20)
        assert renewed.live
        assert plain.remaining < 11
        lockapp_clock.advance(31)
        assert (renewed.lost_reason, plain.lost_reason, long.lost) == ("expired", "expired", False)
        assert lost == ["renewed"]
        assert_not_locked("order", 1)
        with lock("order", 1, wait=0) as next_one:
            assert next_one.fence > renewed.fence
        long.release()
    assert watch.seconds < scaled(10)


def test_max_hold_passes_without_sleeping(
    lockapp_engine: Any, lockapp_clock: SteppableClock
) -> None:
    """In steps that a renewal survives."""
    lease = lock("order", 1, ttl=30, max_hold=60).acquire()
    for _ in range(3):
        lockapp_clock.advance(15)
        lease.renew()
    assert lease.final
    lockapp_clock.advance(16)
    assert lease.lost_reason == "max_hold"


def test_who_waits_gives_up_when_its_time_is_over(
    lockapp_engine: Any, lockapp_clock: SteppableClock
) -> None:
    """And is first when the holder's time is over; they keep their order."""
    ends: list[str] = []

    def wait(name: str, seconds: float) -> None:
        try:
            with lock("order", 1, wait=seconds):
                ends.append(name)
        except WaitTimeout:
            ends.append(f"{name} gave up")

    def queued(count: int) -> None:
        wait_until(lambda: locks["default"].show("order:1").waiter_count == count)  # type: ignore[union-attr]

    with held_by_other("order", 1, ttl=300):
        threads = []
        for name, seconds in (("short", 60.0), ("first", 6000.0), ("second", 6000.0)):
            threads.append(threading.Thread(target=wait, args=(name, seconds)))
            threads[-1].start()
            queued(len(threads))
        lockapp_clock.advance(61)
        threads[0].join()
        assert ends == ["short gave up"]
        queued(2)
        lockapp_clock.advance(300)
        for thread in threads:
            thread.join()
    assert ends == ["short gave up", "first", "second"]


def test_a_clock_may_be_shared_and_goes_forward_only() -> None:
    """By several engines; also by none."""
    clock = SteppableClock()
    clock.advance(5)
    with override_engine(clock=clock), override_engine(alias="other", clock=clock):
        one, two = lock("a", 1, ttl=30).acquire(), lock("a", 1, ttl=30, using="other").acquire()
        clock.advance(31)
        assert (one.lost, two.lost) == (True, True)
    with pytest.raises(ValueError, match="seconds"):
        clock.advance(-1)


async def test_time_passes_in_an_event_loop(
    lockapp_engine: Any, lockapp_clock: SteppableClock
) -> None:
    """By the twins; the plain ones would keep the loop's renewer from running, and say so."""
    heard: list[str] = []

    async def hold(number: int) -> Any:
        return await lock(
            "order", number,
            on_lost=lambda it: heard.append(it.lost_reason),
            on_revoke=lambda it: heard.append("asked"),
        ).aacquire()  # fmt: skip

    one, two, three = [await hold(number) for number in range(3)]
    await arevoke(one)
    await aforce_release(one)
    await aexpire(two)
    assert heard == ["asked", "forced", "expired"]

    async def wait() -> None:
        async with lock("order", 2, wait=600):
            heard.append("got it")

    waiter = asyncio.create_task(wait())
    await await_until(lambda: locks["default"].show("order:2").waiter_count == 1)  # type: ignore[union-attr]
    await lockapp_clock.aadvance(31)
    await waiter
    assert (set(heard[3:]), three.lost) == ({"expired", "got it"}, True)
    async with lock("order", 3) as lease:
        with pytest.raises(RuntimeError, match="twin"):
            lockapp_clock.advance(60)
        for blocking in (revoke, force_release, expire):
            with pytest.raises(RuntimeError, match="twin"):
                blocking(lease)
        assert (lease.live, lease.revoke_requested) == (True, False)
    await locks.aclose_all()


# ------------------------------------------------------------------ assertions


def test_assertions_say_what_is_held_and_by_whom() -> None:
    """So that a failure needs no debugger."""
    with override_engine():
        with pytest.raises(AssertionError, match=r"'order:1' is not held .* nothing is"):
            assert_locked("order", 1)
        with lock("order", 2, why="import"):
            with pytest.raises(AssertionError, match="held: order:2"):
                assert_locked("order", 1)
            with pytest.raises(AssertionError, match="why import"):
                assert_not_locked("order", 2)
            with pytest.raises(AssertionError, match="left behind: 'order:2' is held by host"):
                assert_no_litter("default")


def test_litter_is_also_who_waits_and_what_does_not_fit_on_a_page() -> None:
    """More than one page of locks, and a queue that outlived its holder."""
    with override_engine(), override_engine(alias="other"):
        leases = [lock("many", number, using="other").acquire() for number in range(120)]
        with pytest.raises(AssertionError) as caught:
            assert_no_litter()
        assert str(caught.value).count("is held by") == 120
        assert_no_litter("default")
        for lease in leases:
            lease.release()
        engine: Any = locks["default"]
        with held_by_other("order", 1) as theirs:
            thread = threading.Thread(target=lambda: lock("order", 1, wait=20).acquire().release())
            thread.start()
            wait_until(lambda: engine.show("order:1").waiter_count == 1)
            with pytest.raises(AssertionError, match=r"1 wait for it.*'order:1' is waited for"):
                assert_no_litter("default")
            theirs.release()
            thread.join()
        assert_no_litter()


# ------------------------------------------------------------------ transactions


@view_lock("group", 1)
def rename(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        Group.objects.create(name="one")
    return HttpResponse()


def give_back_inside() -> None:
    """A lock that is given back inside a transaction is released when that has ended."""
    with transaction.atomic():
        with lock("group", 1):
            Group.objects.create(name="two")
        assert_locked("group", 1)
    assert_not_locked("group", 1)


def open_fence() -> None:
    with lock("group", 1) as lease, fenced_atomic(lease):
        Group.objects.create(name="three")


class InATestCase(TestCase):
    """Django's own transactions round a test count for nothing, without any help."""

    def test_locks_views_and_fences_work(self) -> None:
        """What the code under test opens does count."""
        assert rename(factory.post("/")).status_code == 200
        give_back_inside()
        open_fence()
        assert_no_litter()

    def test_callbacks_come_after_the_release(self) -> None:
        """As in production, where the lock is free before the first of them runs."""
        seen: list[bool] = []
        with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
            with lock("group", 1):
                transaction.on_commit(
                    lambda: seen.append(locks["default"].show("group:1") is not None)
                )
            assert_locked("group", 1)
        assert (len(callbacks), seen) == (1, [False])


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_the_tests_own_counts_for_nothing_either() -> None:
    """And leaves nothing in the database."""
    with rolled_back():
        assert connection.in_atomic_block
        assert rename(factory.post("/")).status_code == 200
        give_back_inside()
        open_fence()
        with lock("group", 1):
            pass
        assert_not_locked("group", 1)
        assert Group.objects.count() == 3
    assert Group.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_the_tests_own_is_outermost() -> None:
    """Inside another one the locks would wait for that."""
    with transaction.atomic(), pytest.raises(RuntimeError), rolled_back():
        raise AssertionError("unreachable")
