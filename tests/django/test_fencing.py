"""`fenced_atomic` on each database: what it claims, refuses, rolls back and leaves as it was.

That no stale holder commits is shown by real processes in test_fencing_processes.py.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import TestCase

from lockapp import fenced_atomic, lock, multilock, rwlock, semaphore
from lockapp.core.options import EngineOptions
from lockapp.core.values import LockSpec
from lockapp.degraded import LocalLease, OpenLease
from lockapp.engines.memory import MemoryEngine
from lockapp.engines.memory.server import MemoryServer
from lockapp.engines.procedures import Grant
from lockapp.exceptions import FenceBusy, LeaseLost, NotHeld, StaleFence
from lockapp.fencing.claims import identity
from lockapp.lease import Lease
from lockapp.models import Fence
from lockapp.naming import name_digest
from tests.django.fence_places import ALIAS, Place
from tests.django.fencing_child import WORDS
from tests.timing import scaled

NAME = "order:1"


@pytest.fixture
def database(place: Place) -> Iterator[Any]:
    """It, empty, as ALIAS."""
    with place.opened() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM lockapp_fence")
        cursor.execute(f"DELETE FROM {WORDS}")
        yield connection


def engine(alias: str = "default", **options: Any) -> MemoryEngine:
    return MemoryEngine(alias, MemoryServer(), EngineOptions.parse(options))


def granted(
    fence: int,
    token: str = "t",
    on: MemoryEngine | None = None,
    name: str = NAME,
    kind: type[Lease] = Lease,
) -> Lease:
    """A lease as an engine grants it, with this fencing token."""
    on = on or engine()
    spec = LockSpec(name=name, ttl_ms=60_000, max_hold_ms=0, limit=1, weight=1)
    grant = Grant(fence, on.now() + 60, True, False, 0.0)
    return kind(on, spec, token, grant, object(), renew=False, scoped=True)


def store(word: str) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"INSERT INTO {WORDS} VALUES (%s, '')", [word])


def store_under(lease: Lease, then: Callable[[], object]) -> None:
    with fenced_atomic(lease, using=ALIAS):
        store("lost")
        then()


def stored() -> list[str]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(f"SELECT name FROM {WORDS} ORDER BY name")
        return [word for (word,) in cursor.fetchall()]


@contextmanager
def statements(connection: Any) -> Iterator[list[str]]:
    """Collect what is sent, without values."""
    sent: list[str] = []

    def note(run: Callable[..., Any], sql: str, *rest: Any) -> Any:
        sent.append(" ".join(sql.split()))
        return run(sql, *rest)

    with connection.execute_wrapper(note):
        yield sent


# ------------------------------------------------------------------ what is claimed


Pair = tuple[int, int, str]
PAIRS: list[tuple[Pair, Pair, bool]] = [
    ((1, 7, "t"), (1, 8, "u"), True),
    ((1, 7, "t"), (1, 7, "t"), True),
    ((1, 7, "t"), (1, 7, "u"), False),
    ((1, 7, "t"), (1, 6, "u"), False),
    ((1, 7, "t"), (1, 6, "t"), False),
    ((1, 7, "t"), (2, 6, "u"), True),
    ((2, 7, "t"), (1, 8, "u"), False),
    ((2, 7, "t"), (1, 7, "t"), False),
]
"""(epoch, fencing token, whose) before; the same after it; whether it may."""


def test_the_larger_pair_wins_and_of_equal_ones_the_first(database: Any) -> None:
    """A refusal says who was there, and changes nothing."""
    for number, (before, after, allowed) in enumerate(PAIRS):
        first, second = (
            granted(fence, token, engine(fence_epoch=epoch), name=f"order:{number}")
            for epoch, fence, token in (before, after)
        )
        with fenced_atomic(first, using=ALIAS):
            pass
        if allowed:
            with fenced_atomic(second, using=ALIAS):
                pass
        else:
            with pytest.raises(StaleFence) as caught, fenced_atomic(second, using=ALIAS):
                raise AssertionError("the block must not run")
            assert caught.value.fields == {
                "name": second.name, "using": ALIAS, "epoch": after[0], "fence": after[1],
                "later_epoch": before[0], "later_fence": before[1],
                "later_engine": "default MemoryEngine",
            }  # fmt: skip
        row = Fence.objects.using(ALIAS).for_lock(second.name).get()
        epoch, fence, token = after if allowed else before
        assert (row.epoch, row.fence, row.owner) == (epoch, fence, name_digest(token))
        assert row.readable_name == second.name


@pytest.mark.parametrize(
    "other", [engine("other"), type("OtherEngine", (MemoryEngine,), {})("default", MemoryServer(),
                                                                        EngineOptions())]
)  # fmt: skip
def test_tokens_of_another_engine_are_not_compared(database: Any, other: MemoryEngine) -> None:
    """Another alias, or another kind of engine: both need an epoch that says which is later."""
    with fenced_atomic(granted(7), using=ALIAS):
        pass
    for fence in (6, 7, 8):
        with (
            pytest.raises(ImproperlyConfigured, match=r"OPTIONS\['fence_epoch'\] = 2"),
            fenced_atomic(granted(fence, on=other), using=ALIAS),
        ):
            raise AssertionError("the block must not run")
    later = type(other)(other.alias, MemoryServer(), EngineOptions.parse({"fence_epoch": 2}))
    with fenced_atomic(granted(6, on=later), using=ALIAS):
        pass
    row = Fence.objects.using(ALIAS).get()
    assert (row.epoch, row.fence, row.engine) == (2, 6, identity(other.alias, type(other)))


def test_names_that_a_database_takes_for_equal_are_two_rows(database: Any) -> None:
    """MySQL compares without regard to case and trailing spaces."""
    for number, name in enumerate(("order:a", "order:A", "order:a ")):
        with fenced_atomic(granted(9 - number, name=name), using=ALIAS):
            pass
    assert Fence.objects.using(ALIAS).count() == 3
    assert Fence.objects.using(ALIAS).for_lock("order:A").get().fence == 8


def test_several_leases_are_claimed_in_the_order_of_their_names(database: Any) -> None:
    """Whatever order they are given in; each once."""
    order: list[str] = []

    def note(run: Callable[..., Any], sql: str, params: Any, *rest: Any) -> Any:
        if "INSERT" in sql:
            order.append(params["name"])
        return run(sql, params, *rest)

    leases = [granted(7, name=f"order:{letter}") for letter in "cab"]
    with database.execute_wrapper(note), fenced_atomic(*leases, leases[0], using=ALIAS):
        pass
    assert order == ["order:a", "order:b", "order:c"]


def test_one_stale_lease_of_several_claims_nothing(database: Any) -> None:
    """All rows or none."""
    with fenced_atomic(granted(8, name="b"), using=ALIAS):
        pass
    with (
        pytest.raises(StaleFence),
        fenced_atomic(granted(9, name="a"), granted(7, name="b"), using=ALIAS),
    ):
        raise AssertionError("the block must not run")
    assert [row.name for row in Fence.objects.using(ALIAS).all()] == ["b"]


# ------------------------------------------------------------------ the transaction


def test_what_fails_inside_rolls_back_with_the_claim(database: Any) -> None:
    """As with atomic()."""
    with pytest.raises(ZeroDivisionError):
        store_under(granted(7), lambda: 1 / 0)
    assert stored() == []
    assert not Fence.objects.using(ALIAS).exists()
    with fenced_atomic(granted(6), using=ALIAS):
        store("kept")
    assert stored() == ["kept"]
    assert not database.in_atomic_block


def test_a_lease_that_is_over_at_the_end_is_rolled_back(database: Any) -> None:
    """Lost, or given back too early."""
    lease = granted(7)
    with pytest.raises(LeaseLost):
        store_under(lease, lambda: lease.lose("forced"))
    early = granted(8)
    with pytest.raises(NotHeld):
        store_under(early, lambda: early.let_go(engine().sync))
    assert stored() == []
    assert not Fence.objects.using(ALIAS).exists()


def test_atomic_inside_is_a_savepoint(database: Any) -> None:
    """What is rolled back there is not all."""
    with fenced_atomic(granted(7), using=ALIAS):
        store("kept")
        with suppress(KeyError), transaction.atomic(using=ALIAS):
            store("lost")
            raise KeyError
        with transaction.atomic(using=ALIAS):
            store("kept too")
    assert stored() == ["kept", "kept too"]


def test_an_open_transaction_is_refused(database: Any) -> None:
    """It may have read what is older than the lease, and would end later than the block."""
    with (
        pytest.raises(RuntimeError, match="a transaction is open on 'fences'"),
        transaction.atomic(using=ALIAS),
        fenced_atomic(granted(7), using=ALIAS),
    ):
        raise AssertionError("the block must not run")
    with (
        pytest.raises(RuntimeError, match="a transaction is open"),
        fenced_atomic(granted(7), using=ALIAS),
        fenced_atomic(granted(7), using=ALIAS),
    ):
        raise AssertionError("the block must not run")
    database.set_autocommit(False)
    try:
        with (
            pytest.raises(RuntimeError, match="a transaction is open"),
            fenced_atomic(granted(7), using=ALIAS),
        ):
            raise AssertionError("the block must not run")
    finally:
        database.set_autocommit(True)


WAITS = {
    "sqlite": ("PRAGMA busy_timeout", "PRAGMA busy_timeout = 4321", 4321),
    "postgres": ("SHOW lock_timeout", "SET lock_timeout = '4321ms'", "4321ms"),
    "mariadb": (
        "SELECT @@innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = 43", 43,
    ),
}  # fmt: skip
"""How to see and to set how long statements wait."""
OVERHEAD = {
    "sqlite": ["PRAGMA", "PRAGMA", "BEGIN", "INSERT", "PRAGMA"],
    "postgres": ["SHOW", "SET", "INSERT", "SET"],
    "mariadb": ["SELECT", "SET", "INSERT", "SELECT", "SET"],
}
"""What a fenced transaction sends besides BEGIN and COMMIT, before the block runs. None of it, up
to the INSERT, takes a snapshot; docs/explanation/fencing.md gives the numbers."""


def test_the_claim_comes_before_anything_is_read(database: Any, place: Place) -> None:
    """What is sent, in its order; with each lease more, one claim more."""
    with statements(database) as sent, fenced_atomic(granted(7), using=ALIAS):
        assert [sql.split()[0] for sql in sent] == OVERHEAD[place.kind]
    with statements(database) as sent:
        with fenced_atomic(granted(8), granted(8, name="b"), using=ALIAS):
            pass
        more = len(sent) - len(OVERHEAD[place.kind])
    assert more == (2 if place.kind == "mariadb" else 1)


def test_statements_in_the_block_wait_as_they_always_do(database: Any, place: Place) -> None:
    """The limit was the claim's own; also after one that failed."""
    show, change, value = WAITS[place.kind]

    def wait() -> Any:
        with database.cursor() as cursor:
            cursor.execute(show)
            return cursor.fetchone()[0]

    with database.cursor() as cursor:
        cursor.execute(change)
    with fenced_atomic(granted(7), using=ALIAS):
        assert wait() == value
    assert wait() == value
    with pytest.raises(StaleFence), fenced_atomic(granted(6), using=ALIAS):
        pass
    assert wait() == value


def test_who_is_inside_makes_the_next_one_busy_within_its_validity(
    database: Any, place: Place
) -> None:
    """With the error's fields; afterwards the connection is as good as before."""
    earlier = place.connect()
    with fenced_atomic(granted(7), using=ALIAS):
        pass
    earlier.set_autocommit(False)
    with earlier.cursor() as cursor:
        cursor.execute("UPDATE lockapp_fence SET fence = fence")
    lease = granted(8)
    lease.valid_until = lease.engine.now() + (left := scaled(2.5))
    try:
        with pytest.raises(FenceBusy) as caught, fenced_atomic(lease, using=ALIAS):
            raise AssertionError("the block must not run")
        assert lease.live
    finally:
        earlier.rollback()
        earlier.close()
    error = pickle.loads(pickle.dumps(caught.value))
    assert left / 4 < error.waited < left
    assert (error.name, error.using, error.holder) == (NAME, ALIAS, None)
    lease.valid_until += 60
    with fenced_atomic(lease, using=ALIAS):
        store("at last")
    assert stored() == ["at last"]


def test_whatever_interrupts_it_leaves_nothing_open(database: Any, place: Place) -> None:
    """A time limit may strike at any statement: no claim and no changed limit stays."""
    show, change, value = WAITS[place.kind]
    with database.cursor() as cursor:
        cursor.execute(change)
    for number, statement in enumerate(OVERHEAD[place.kind]):
        if statement == "BEGIN":  # within atomic() itself, which is Django's
            continue

        def strike(run: Callable[..., Any], *args: Any, left: list[int] = [number]) -> Any:  # noqa: B006
            left[0] -= 1
            came = run(*args)
            if left[0] == -1:
                raise KeyboardInterrupt
            return came

        with pytest.raises(KeyboardInterrupt), database.execute_wrapper(strike):
            store_under(granted(7), lambda: None)
        assert not database.in_atomic_block
        with database.cursor() as cursor:
            cursor.execute(show)
            assert cursor.fetchone()[0] == value
    assert not Fence.objects.using(ALIAS).exists()
    assert stored() == []


@pytest.mark.parametrize("place", ["postgres"], indirect=True)  # where it is not rare
def test_a_serialization_failure_of_the_block_is_the_callers_to_repeat(place: Place) -> None:
    """It is raised as it is, everything is rolled back, and the same lease may try again."""
    lease, row = granted(7, name="repeated"), "repeated"
    update = f"UPDATE {WORDS} SET word = word || 'x' WHERE name = '{row}'"
    others = place.connect()

    def attempt(*, disturbed: bool) -> None:
        with fenced_atomic(lease, using=ALIAS), ours.cursor() as cursor:
            stored()  # by now there is a snapshot
            if disturbed:
                with others.cursor() as other:
                    other.execute(update)
            cursor.execute(update)

    with place.opened(isolation_level=3) as ours:  # REPEATABLE READ
        store(row)
        with pytest.raises(OperationalError) as caught:
            attempt(disturbed=True)
        assert getattr(caught.value.__cause__, "sqlstate", "") == "40001"
        attempt(disturbed=False)
        with others.cursor() as other:
            other.execute(f"SELECT word FROM {WORDS} WHERE name = '{row}'")
            assert other.fetchone() == ("xx",)
    others.close()


def test_other_errors_of_the_database_stay_what_they_are(database: Any) -> None:
    """A missing table is no contention."""
    with database.cursor() as cursor:
        cursor.execute("ALTER TABLE lockapp_fence RENAME TO elsewhere")
    try:
        with (
            pytest.raises(DatabaseError, match="lockapp_fence"),
            fenced_atomic(granted(7), using=ALIAS),
        ):
            raise AssertionError("the block must not run")
    finally:
        with database.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO lockapp_fence")


# ------------------------------------------------------------------ whom it refuses, anywhere


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_is_over_does_not_get_as_far_as_the_database() -> None:
    """Nor one that others share, nor something else."""
    with lock("order", 1) as released:
        pass
    with lock("order", 1) as lost:
        lost.lose("forced")
        with pytest.raises(LeaseLost), fenced_atomic(lost):
            pass
    with pytest.raises(NotHeld), fenced_atomic(released):
        pass
    for shared in (semaphore("gpu", limit=2), rwlock("kb", 1).read()):
        with shared as lease, pytest.raises(ValueError, match="shared"), fenced_atomic(lease):
            pass
    for nothing in ((), (lock("order", 1),), (None,)):
        with pytest.raises(TypeError):
            fenced_atomic(*nothing)  # type: ignore[arg-type]
    assert not Fence.objects.exists()


@pytest.mark.parametrize("kind", [OpenLease, LocalLease])
@pytest.mark.django_db(transaction=True)
def test_a_lock_without_its_engine_has_no_fence(kind: type[Lease]) -> None:
    """`on_unavailable="open"` and `"local"` protect nothing that other processes do."""
    lease = granted(0, kind=kind)
    refusal = pytest.raises(NotHeld, match=f"without its engine .'{kind.degraded}'")
    with refusal, fenced_atomic(lease):
        pass
    assert not Fence.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_writer_has_it_alone_until_it_reads() -> None:
    """A downgrade inside the block lets others in before the commit."""
    with rwlock("kb", 1).write() as writer:
        with fenced_atomic(writer):
            pass
        with pytest.raises(ValueError, match="shared"), fenced_atomic(writer):
            Group.objects.create(name=f"rolled back, {writer.downgrade()}")
    with semaphore("gpu", limit=1) as only, fenced_atomic(only):
        pass
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_leases_of_a_multilock_are_claimed_together() -> None:
    """And of a reentrant lock it is one lease, whoever took it again."""
    with multilock([lock("account", 2), lock("account", 1)]) as joint, fenced_atomic(joint):
        Group.objects.create(name="transfer")
    rows = Fence.objects.order_by("name")
    assert [(row.name, row.fence) for row in rows] == sorted(joint.fences.items())
    again = lock("order", 1, reentrant=True)
    with again as outer, again as inner:
        for lease in (outer, inner):
            with fenced_atomic(lease):
                pass
    assert Fence.objects.prune(before=rows[0].claimed_at) == 0


@pytest.mark.django_db(transaction=True)
def test_other_kinds_of_databases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sent to one."""
    monkeypatch.setattr(type(connections["default"]), "vendor", "oracle")
    refusal = pytest.raises(ImproperlyConfigured, match="oracle")
    with lock("order", 1) as lease, refusal, fenced_atomic(lease):
        pass


async def test_asynchronous_code_is_told_what_to_do(db: None) -> None:
    """Django's transactions are synchronous, whatever the lock is."""
    async with lock("order", 1) as lease:
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            async with fenced_atomic(lease):  # type: ignore[attr-defined]
                pass
        refusal = pytest.raises(SynchronousOnlyOperation, match="sync_to_async")
        with refusal, fenced_atomic(lease):
            pass


class InATestCase(TestCase):
    """Inside the transaction that Django's TestCase opens round each test."""

    def test_the_block_is_a_savepoint_and_refuses_all_the_same(self) -> None:
        """Users test with TestCase."""
        with lock("order", 1) as lease:
            with fenced_atomic(lease):
                Group.objects.create(name="kept")
            with pytest.raises(LeaseLost), fenced_atomic(lease):
                Group.objects.create(name=f"rolled back, {lease.lose('forced')}")
        assert [group.name for group in Group.objects.all()] == ["kept"]
        assert Fence.objects.get().fence == lease.fence
        with pytest.raises(RuntimeError), transaction.atomic(), fenced_atomic(lease):
            pass
