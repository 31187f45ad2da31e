"""A lease that is given back inside a transaction is released when that has ended, and not before.

With real commits on the database of the run. Whether two ever read the same is asked of processes:
test_transactions_processes.py.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction
from django.db.utils import ConnectionHandler
from django.test import TestCase

from lockapp import (
    AlreadyHeld,
    Lease,
    NotAcquired,
    assert_locked,
    lock,
    locks,
    multilock,
    rwlock,
    semaphore,
    transactions,
)
from lockapp.core.options import EngineOptions
from lockapp.engines.memory import MemoryEngine
from lockapp.lock import Lock
from tests.timing import scaled, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_locks")]


def held(name: str = "stock:1") -> bool:
    """Whether the server knows a holder."""
    return locks["default"].show(name) is not None


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A second database of this thread; in a file, since Django does not close one in memory."""
    databases = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.sqlite3")}
    connections["other"] = found = ConnectionHandler({"default": {}, "other": databases})["other"]
    yield found
    found.close()
    del connections["other"]


class Refused(Exception):
    """Rolls back."""


@contextmanager
def rolled_back() -> Iterator[None]:
    """A block that ends so."""
    with pytest.raises(Refused), transaction.atomic():  # noqa: PT012 - it is the caller's block
        yield
        raise Refused


def by_commit() -> None:
    """End the block as it should."""


def by_exception() -> None:
    raise Refused


def by_error() -> None:
    with suppress(IntegrityError):
        Group.objects.create(name="one")  # again
    assert connection.needs_rollback, "no query is possible any more, and none is needed"


def by_request() -> None:
    transaction.set_rollback(True)


def by_close() -> None:
    connection.close()
    assert not held(), "at once, though the block goes on"


# ------------------------------------------------------------------ the end of the transaction


@pytest.mark.parametrize("end", [by_commit, by_exception, by_error, by_request, by_close])
def test_it_is_held_until_the_block_has_ended_however_it_does(end: Callable[[], None]) -> None:
    """And is free right after it."""
    try:
        with transaction.atomic():
            with lock("stock", 1) as lease:
                Group.objects.create(name="one")
            assert held()
            assert lease.put_off
            assert lease.live
            assert_locked("stock", 1)
            end()
    except Refused:
        pass
    assert not held()
    assert not lease.put_off
    assert Group.objects.exists() is (end is by_commit)


def test_inner_blocks_and_savepoints_end_nothing() -> None:
    """Also not by a rollback."""
    with transaction.atomic(durable=True):
        with transaction.atomic(), lock("stock", 1):
            pass
        assert held()
        with rolled_back(), lock("stock", 2):
            pass
        assert held("stock:2")
    assert not held()
    assert not held("stock:2")


def test_what_is_called_on_commit_runs_after_the_release() -> None:
    """One that raises keeps nothing locked, and one may take the lock itself."""
    seen: list[bool] = []

    def called() -> None:
        seen.append(held())
        with lock("stock", 1, wait=0):
            seen.append(held())
        raise Refused

    @transaction.atomic
    def sell() -> None:
        transaction.on_commit(called)
        with lock("stock", 1):
            pass

    with pytest.raises(Refused):
        sell()
    assert seen == [False, True]
    assert not held()


@pytest.mark.skipif(connection.vendor == "mysql", reason="refuses at once, not at the COMMIT")
def test_a_commit_that_fails_is_followed_by_the_release() -> None:
    """After the rollback."""

    @transaction.atomic
    def sell() -> None:
        with lock("stock", 1):
            LogEntry.objects.create(user_id=999_999, action_flag=ADDITION)
        assert held()

    with pytest.raises(IntegrityError):
        sell()
    assert not held()


def test_of_two_databases_the_last_end_counts(other: Any) -> None:
    """Whichever of them that is."""
    with transaction.atomic(using="other"):
        with transaction.atomic(), lock("stock", 1):
            pass
        assert held()
        with transaction.atomic():
            with lock("stock", 2):
                pass
            assert held("stock:2")
        assert held("stock:2"), "by the first"
    assert not held()
    assert not held("stock:2")


def test_a_transaction_that_is_opened_later_keeps_it_as_well(other: Any) -> None:
    """If it is taken again inside that."""
    transaction.set_autocommit(False)
    with lock("stock", 1):
        Group.objects.create(name="one")
    with transaction.atomic(using="other"):
        for _ in range(2):
            with lock("stock", 1):
                pass
        transaction.commit()
        transaction.set_autocommit(True)
        assert held()
    assert not held()


@pytest.mark.parametrize("end", [transaction.commit, transaction.rollback])
def test_without_autocommit_the_next_commit_or_rollback_counts(end: Callable[[], None]) -> None:
    """With and without a block. Before the first statement nothing is open."""
    transaction.set_autocommit(False)
    try:
        with lock("stock", 1):
            pass
        assert not held()
        with lock("stock", 1):
            Group.objects.create(name="one")
        with transaction.atomic(), lock("stock", 2):
            pass
        assert held()
        assert held("stock:2")
        end()
        assert not held()
        assert not held("stock:2")
        with lock("stock", 1):
            Group.objects.create(name="two")
            end()
        assert not held()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.skipif(connection.vendor == "postgresql", reason="refuses, while something is open")
def test_autocommit_commits_what_is_open() -> None:
    """So that is an end as well."""
    transaction.set_autocommit(False)
    with lock("stock", 1):
        Group.objects.create(name="one")
    assert held()
    transaction.set_autocommit(True)
    assert not held()
    assert Group.objects.exists()


# ------------------------------------------------------------------ what is put off


def test_no_transaction_no_delay() -> None:
    """Also where one was open inside the lock, or is in another thread."""
    begun, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with transaction.atomic():
            begun.set()
            over.wait(20)
        connections.close_all()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert begun.wait(20)
        with lock("stock", 1) as lease:
            pass
        assert not held()
    finally:
        over.set()
        thread.join()
    with lock("stock", 1) as lease, transaction.atomic():
        pass
    assert not held()
    assert not lease.put_off


@pytest.mark.parametrize("taken_inside", [True, False])
def test_a_release_that_is_called_is_put_off_as_well(taken_inside: bool) -> None:
    """Where the lease was taken does not matter; a second call does nothing."""
    lease = None if taken_inside else lock("stock", 1).acquire()
    with transaction.atomic():
        lease = lease or lock("stock", 1).acquire()
        lease.release()
        lease.release()
        assert held()
    assert not held()
    lease.release()


def test_who_wants_it_now_gets_it_now() -> None:
    """`release="now"`; and a semaphore counts workers only, unless it is told otherwise."""
    with transaction.atomic():
        with lock("stock", 1, release="now"):
            pass
        with semaphore("stock", 2, limit=2):
            pass
        with semaphore("stock", 3, limit=2, release="after_transaction"):
            pass
        assert [held(f"stock:{number}") for number in (1, 2, 3)] == [False, False, True]
    assert not held("stock:3")
    with pytest.raises(ValueError, match="release must be one of 'after_transaction', 'now'"):
        lock("stock", 1, release="later")  # type: ignore[arg-type]


def test_a_transaction_takes_it_again_and_has_the_same_lease() -> None:
    """Within, taking it twice at once is AlreadyHeld as ever."""
    with transaction.atomic():
        with lock("stock", 1) as first:
            pass
        with lock("stock", 1, wait=0) as second:
            with pytest.raises(AlreadyHeld):
                lock("stock", 1).acquire()
            assert not second.put_off
        assert second is first
        assert held()
        with multilock([lock("stock", 2, wait=0), lock("stock", 1, wait=0)]) as both:
            assert both.leases[0] is first
        assert held("stock:2")
    assert not held()
    assert not held("stock:2")


def test_who_goes_on_with_it_past_the_end_releases_it_then() -> None:
    """The end of the transaction takes nothing away from somebody at work."""
    transaction.set_autocommit(False)
    with lock("stock", 1):
        Group.objects.create(name="one")
    with lock("stock", 1) as lease:
        assert lease.pins
        transaction.commit()
        transaction.set_autocommit(True)
        assert held()
        lease.check()
    assert not held()


def test_a_reader_can_not_write_in_the_same_transaction() -> None:
    """It is still a reader, and would wait for itself. A writer may read."""
    shelf = rwlock("stock", 1)
    with transaction.atomic():
        with shelf.read():
            pass
        with pytest.raises(AlreadyHeld):
            shelf.write().acquire()
    with transaction.atomic():
        with shelf.write():
            pass
        with shelf.read():
            pass
        assert held()
    assert not held()


def test_locks_that_were_not_all_granted_are_none_of_them_kept() -> None:
    """But what the transaction had before, it keeps."""
    taken, over = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with lock("stock", 3):
            taken.set()
            over.wait(20)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert taken.wait(20)
        with transaction.atomic():
            with lock("stock", 1):
                pass
            with pytest.raises(NotAcquired):
                multilock([lock("stock", number, wait=0) for number in (1, 2, 3)]).acquire()
            assert held()
            assert not held("stock:2")
    finally:
        over.set()
        thread.join()
    assert not held()


def test_an_interruption_takes_from_a_transaction_nothing_that_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It strikes when the second of two is granted, of which the first was there already."""

    def interrupted(self: Lock, *args: Any) -> Lease:
        raise KeyboardInterrupt

    with transaction.atomic():
        with lock("stock", 1) as lease:
            pass
        with monkeypatch.context() as patched:
            patched.setattr(Lock, "lease", interrupted)
            with pytest.raises(KeyboardInterrupt):
                multilock([lock("stock", 1), lock("stock", 2)]).acquire()
        wait_until(lambda: not held("stock:2"), limit_s=scaled(10))
        assert held()
        assert lease.put_off
    assert not held()


# ------------------------------------------------------------------ while it is put off


def test_it_is_renewed_until_the_end() -> None:
    """Much longer than its ttl."""
    with transaction.atomic():
        with lock("stock", 1, ttl=scaled(1)) as lease:
            pass
        until = time.monotonic() + scaled(1.5)
        wait_until(lambda: time.monotonic() > until, limit_s=scaled(10))
        assert held()
        assert not lease.lost
    assert not held()


@pytest.mark.keeps_keys  # a forced release leaves word for its holder, for a minute
def test_a_loss_meanwhile_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The transaction commits; who wants more uses fenced_atomic."""
    with transaction.atomic():
        Group.objects.create(name="one")
        # Its next renewal, after two seconds, tells it as well: the notice may come too early.
        with lock("stock", 1, ttl=scaled(6)) as lease:
            pass
        locks["default"].force_release("stock:1", lease.fence, actor="an operator")
        wait_until(lambda: lease.lost, limit_s=scaled(10))
    assert Group.objects.exists()
    assert "was lost: forced" in caplog.text
    assert "may have been done by two" in caplog.text


def test_an_interruption_at_the_end_releases_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It strikes while the last one is being released."""
    give_back = Lease.give_back
    struck: list[Lease] = []

    async def interrupted(self: Lease, port: Any, *, at_once: bool = False) -> None:
        if at_once and not struck:
            struck.append(self)
            raise KeyboardInterrupt
        await give_back(self, port, at_once=at_once)

    monkeypatch.setattr(Lease, "give_back", interrupted)
    leases = [lock("stock", number).acquire() for number in (1, 2)]  # kept: no finaliser helps

    @transaction.atomic
    def sell() -> None:
        for lease in leases:
            lease.release()

    with pytest.raises(KeyboardInterrupt):
        sell()
    assert struck
    wait_until(lambda: not held() and not held("stock:2"), limit_s=scaled(10))


# ------------------------------------------------------------------ Django's TestCase


class InsideTestCase(TestCase):
    """The transaction that is open round a test is nobody's."""

    @classmethod
    def setUpTestData(cls) -> None:
        """See the name."""
        with lock("stock", 0):
            pass
        assert not held("stock:0")

    def test_without_a_block_of_its_own(self) -> None:
        """At once."""
        with lock("stock", 1):
            pass
        assert not held()

    def test_with_blocks_of_its_own(self) -> None:
        """When the outermost of them has ended, of whatever kind, and each time anew."""
        for block in (
            transaction.atomic(),
            transaction.atomic(savepoint=False),
            transaction.atomic(durable=True),
        ):
            with block:
                with transaction.atomic(), lock("stock", 1):
                    pass
                assert held()
            assert not held()
        with rolled_back():
            with lock("stock", 1):
                pass
            assert held()
        assert not held()


# ------------------------------------------------------------------ async


async def test_a_transaction_of_a_coroutine_is_in_a_thread_and_so_is_its_lock() -> None:
    """Both in one function."""

    def sell() -> None:
        with transaction.atomic():
            with lock("stock", 1):
                pass
            assert held()
        assert not held()
        connections.close_all()

    await sync_to_async(sell)()


def test_a_coroutine_has_no_transaction_and_releases_at_once() -> None:
    """Although one is open in the thread that waits for it."""

    async def inside() -> None:
        async with lock("stock", 1):
            assert await locks["default"].ashow("stock:1")
        assert await locks["default"].ashow("stock:1") is None

    with transaction.atomic():
        async_to_sync(inside)()


# ------------------------------------------------------------------ the ordinary way


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_open_is_found_also_by_asking_django(
    monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """Which costs more; the quick look must be in force."""
    assert transactions.STORAGE is not None
    if not quick:
        monkeypatch.setattr(transactions, "STORAGE", None)
    with transaction.atomic():
        assert transactions._open_connections() == [connections["default"]]
        with lock("stock", 1):
            pass
        assert held()
    assert transactions._open_connections() == []
    assert not held()


def test_an_engine_of_ones_own_knows_no_transactions() -> None:
    """It is Django's settings that bring them together."""
    engine = MemoryEngine("own", None, EngineOptions())
    with transaction.atomic(), Lock(engine, "stock:1"):
        pass
    with transaction.atomic():
        with Lock(engine, "stock:1"):
            pass
        assert engine.show("stock:1") is None
    engine.close()


def test_no_query_is_made_and_nobody_is_warned(django_assert_num_queries: Any) -> None:
    """With the isolation level that Django asks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with transaction.atomic():
            Group.objects.exists()
            with django_assert_num_queries(0), lock("stock", 1):
                pass
