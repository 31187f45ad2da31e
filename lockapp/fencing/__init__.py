"""``fenced_atomic``: a transaction that is committed in the order of the grants, or not at all.

Invariant: of all transactions that claim a lock's row in the table ``Fence``, each begins to read
after the one before it has ended, and none commits after one with a later lease has. Whatever the
lock engine did, and however long a process was paused, where and when::

    t=0   A  has the lease 7, is paused before its transaction
    t=5   its lease is over; B gets the lease 8, claims the row, reads, writes, commits
    t=9   A  goes on: claims the row, which says 8 by now: StaleFence, nothing was read or written

    t=0   A  has the lease 7, claims the row, reads, writes, is paused
    t=5   its lease is over; B gets the lease 8 and waits for the row, until FenceBusy
    t=9   A  goes on: its lease is over: LeaseLost, rolled back. Had it been paused even later,
             between that look and its COMMIT: committed, and B, who has read nothing yet, builds
             on it

The claim is the transaction's first statement, so that no snapshot is older than it. The rows
themselves, and how each database takes one: :mod:`lockapp.fencing.claims`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, NoReturn

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction

from lockapp.exceptions import FenceBusy, NotHeld
from lockapp.fencing.claims import Clash, claim, dialect_of
from lockapp.lease import Lease
from lockapp.naming import readable
from lockapp.primitives import MultiLease

SHARE = 0.5  # of what the lease has left, that may be spent on waiting for the row

ASYNC = (
    "Django's transactions are synchronous: put the block into a function that gets the lease, and "
    "await sync_to_async(function)(lease)"
)


def fenced_atomic(*leases: Lease | MultiLease, using: str | None = None) -> FencedAtomic:
    """Open a transaction that no late holder can commit.

    ::

        with lock("order", 42) as lease, fenced_atomic(lease):
            order = Order.objects.get(pk=42)     # read inside, never before
            ...

    Its first statement claims the lock's row in the table of fences, and at the end each lease is
    looked at once more before the COMMIT. One lease may open any number of them, one after another.
    ``atomic()`` inside is a savepoint.

    Args:
        *leases: of locks that one holder has alone; those of a multilock together. Their rows are
            claimed in one order that is the same for everybody.
        using: the database, which must have the table of fences; None for the default one.

    Raises:
        StaleFence: somebody with a later lease was here first. Nothing was read or written.
        FenceBusy: an earlier holder is still inside its transaction, and half of what the lease
            had left has been spent on waiting for it. Nothing was read or written; try again.
        LeaseLost, NotHeld: a lease is over: at the beginning, or at the end, and then everything
            was rolled back. NotHeld also for one that was granted by no engine (``degraded``).
        RuntimeError: inside another transaction on this database, as of ``atomic(durable=True)``.
            Those of Django's ``TestCase`` don't count.
        TypeError, ValueError: no lease, or one that others share (a permit, a reader's).
        ImproperlyConfigured: another engine with the same epoch has claimed the row; or a database
            of another kind than PostgreSQL, MySQL, MariaDB and SQLite.

    An exception in the block, of whatever kind, rolls back, as with ``atomic()``.
    """
    return FencedAtomic(_each(leases), DEFAULT_DB_ALIAS if using is None else using)


class FencedAtomic(AbstractContextManager[None]):
    """One block of :func:`fenced_atomic`; to be entered once."""

    def __init__(self, leases: list[Lease], using: str) -> None:
        self._block = _block(leases, using)

    def __enter__(self) -> None:
        """See fenced_atomic()."""
        self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """See fenced_atomic()."""
        return self._block.__exit__(kind, error, traceback)

    async def __aenter__(self) -> NoReturn:
        """Refuse.

        Raises:
            SynchronousOnlyOperation: always; the message says what to do.
        """
        raise SynchronousOnlyOperation(ASYNC)

    async def __aexit__(self, *_: object) -> None:
        """Never reached; without it Python would not get as far as the message."""


@contextmanager
def _block(leases: list[Lease], using: str) -> Iterator[None]:
    connection = connections[using]
    try:
        connection.ensure_connection()
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(ASYNC) from None
    alone = connection.in_atomic_block or connection.get_autocommit()
    if in_transaction(connection) or not alone:  # with autocommit off, one is always open
        raise RuntimeError(
            f"a transaction is open on {using!r}, and what it has read may be older than the "
            "lease: fenced_atomic opens the outermost one itself. Take the outer atomic() away, "
            "exempt the view from ATOMIC_REQUESTS, or use @view_lock(…, fenced=True)"
        )
    dialect, claimed = dialect_of(connection), False
    started, waited_s = time.monotonic(), 0.0
    patience_s = min(lease.remaining for lease in leases) * SHARE
    # Nothing but `with` holds the transaction: whatever interrupts this, and wherever, ends it.
    while not claimed:
        for lease in leases:
            vet(lease)
        left_s = max(patience_s - waited_s, 0.0)
        try:
            with ExitStack() as limits:
                limits.enter_context(dialect.outside(connection, left_s))
                with transaction.atomic(using, durable=True):
                    limits.enter_context(dialect.inside(connection, left_s))
                    for lease in leases:
                        claim(connection, dialect, lease)
                    limits.close()
                    claimed = True
                    yield
                    for lease in leases:
                        vet(lease)
        except DatabaseError as error:
            clash = None if claimed else dialect.clash(error)
            if clash is None:
                raise
            # A serialization failure or a deadlock is no answer. Nothing was read yet, so the
            # transaction is begun anew, with a new snapshot.
            waited_s = time.monotonic() - started
            if clash is Clash.BUSY or waited_s >= patience_s:
                raise _busy(lease, using, waited_s) from error


def in_transaction(connection: Any) -> bool:
    """Whether a block is open; those that Django's TestCase opens round a test are nobody's."""
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _busy(lease: Lease, using: str, waited_s: float) -> FenceBusy:
    return FenceBusy(
        f"{readable(lease.name)!r}: an earlier holder is still inside its transaction on "
        f"{using!r}, after waiting {waited_s:.1f} s for it",
        name=lease.name, holder=None, waited=waited_s, retry_after=0.0, using=using,
    )  # fmt: skip


def vet(lease: Lease) -> None:
    """Do nothing if a lease is live and its holder has the lock alone.

    Raises:
        LeaseLost, NotHeld, ValueError: see fenced_atomic().
    """
    lease.check()
    name = readable(lease.name)
    if lease.degraded:
        raise NotHeld(
            f"{name!r} runs without its engine ({lease.degraded!r}), so there is no fencing token "
            'to compare; say on_unavailable="raise" where the database is to be fenced',
            name=lease.name,
        )
    if lease.spec.weight < lease.spec.limit:
        raise ValueError(
            f"the lease of {name!r} is shared (a permit or a reader's): of several holders at once "
            "none is the latest; use lock() or rwlock().write()"
        )
    if not lease.engine.supports_fencing:
        raise ValueError(f"the engine {lease.engine.alias!r} gives out no fencing tokens")


def _each(given: tuple[Lease | MultiLease, ...]) -> list[Lease]:
    """Return every lease once, in the order in which everybody claims."""
    leases: set[Lease] = set()
    for one in given:
        if isinstance(one, MultiLease):
            leases.update(one.leases)
        elif isinstance(one, Lease):
            leases.add(one)
        else:
            raise TypeError(
                f"fenced_atomic takes what `with lock(…) as lease` or acquire() gives, not {one!r}"
            )
    if not leases:
        raise TypeError("fenced_atomic needs a lease: fenced_atomic(lease)")
    return sorted(leases, key=lambda lease: (lease.name, lease.engine.options.fence_epoch))
