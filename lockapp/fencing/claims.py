"""Claim the row of a lock in the table ``Fence``, on each kind of database.

Invariant: a claim is one statement that compares and writes. It takes the row if there is none,
if the stored pair (epoch, fence) is smaller, or if the lease itself has claimed it before. The row
stays locked until the transaction ends.

Pairs are compared between grants of one engine, and between epochs; the fencing tokens of two
engines mean nothing to each other. So the row says which engine claimed it, and another one with
the same epoch is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from lockapp.exceptions import StaleFence
from lockapp.lease import Lease
from lockapp.models import Fence
from lockapp.naming import name_digest, readable

Limit = Callable[[Any, float], AbstractContextManager[None]]
"""(connection, seconds) → a block in which statements wait for no longer than that; after it they
wait as before."""

INSERT = """
INSERT INTO {table} (digest, name, engine, epoch, fence, owner, claimed_at)
VALUES (%(digest)s, %(name)s, %(engine)s, %(epoch)s, %(fence)s, %(owner)s, %(claimed_at)s)
"""
# In the order of the assignments below, each of which leaves it true where it was true.
SMALLER = """(
    {table}.epoch < %(epoch)s
    OR ({table}.epoch = %(epoch)s AND {table}.engine = %(engine)s
        AND ({table}.fence < %(fence)s
            OR ({table}.fence = %(fence)s AND {table}.owner = %(owner)s)))
)"""
COLUMNS = ("owner", "engine", "claimed_at", "fence", "epoch")

ON_CONFLICT = (
    INSERT
    + "ON CONFLICT (digest) DO UPDATE SET "
    + ", ".join(f"{column} = %({column})s" for column in COLUMNS)
    + " WHERE "
    + SMALLER
)
# MySQL assigns from left to right, and a condition sees what has been assigned before it.
ON_DUPLICATE_KEY = (
    INSERT
    + "ON DUPLICATE KEY UPDATE "
    + ", ".join(f"{column} = IF({SMALLER}, %({column})s, {{table}}.{column})" for column in COLUMNS)
)


class Clash(Enum):
    """Why a claim was not answered."""

    BUSY = "the time to wait for the row was over"
    AGAIN = "the database wants the transaction to be begun anew"


class Dialect(NamedTuple):
    """How one kind of database is asked."""

    upsert: str
    """The claim."""
    outside: Limit
    """Entered before the transaction begins …"""
    inside: Limit
    """… and as the first thing in it. Neither takes a snapshot, which would be older than the
    claim."""
    took: Callable[[Any, dict[str, Any]], bool]
    """(cursor, values) → whether the claim that was just made took the row."""
    clash: Callable[[BaseException], Clash | None]
    """What an error of the database means; None if it is another one."""


def engine_text(lease: Lease) -> str:
    """Return which engine's tokens a lease's fence can be compared with."""
    return identity(lease.engine.alias, type(lease.engine))


def identity(alias: str, engine: type) -> str:
    """Return how a row names an engine: another alias or another kind is another engine."""
    return f"{alias} {engine.__name__}"


def dialect_of(connection: Any) -> Dialect:
    """Return how to ask a database.

    Raises:
        ImproperlyConfigured: it is of a kind that we don't know.
    """
    try:
        return DIALECTS[connection.vendor]
    except KeyError:
        raise ImproperlyConfigured(
            f"fenced_atomic works on {', '.join(DIALECTS)}; the database {connection.alias!r} is "
            f"{connection.vendor}"
        ) from None


def claim(connection: Any, dialect: Dialect, lease: Lease) -> None:
    """Claim the row of a lease's lock, in the transaction that is open.

    Raises:
        StaleFence: a later holder has claimed it.
        ImproperlyConfigured: another engine has, with the same epoch.
        DatabaseError: see Dialect.clash.
    """
    values = {
        "digest": name_digest(lease.name),
        "name": lease.name,
        "engine": engine_text(lease),
        "epoch": lease.engine.options.fence_epoch,
        "fence": lease.fence,
        "owner": lease.mark,
        "claimed_at": connection.ops.adapt_datetimefield_value(timezone.now()),
    }
    table = connection.ops.quote_name(Fence._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(dialect.upsert.format(table=table), values)
        took = dialect.took(cursor, {**values, "table": table})
    if not took:
        row = Fence.objects.using(connection.alias).get(digest=values["digest"])
        raise _refused(lease, row, connection.alias)


def _refused(lease: Lease, row: Fence, using: str) -> StaleFence | ImproperlyConfigured:
    epoch, engine, name = lease.engine.options.fence_epoch, engine_text(lease), readable(lease.name)
    if row.epoch != epoch or row.engine == engine:
        return StaleFence(
            f"{name!r} was claimed on {using!r} by a later holder (epoch {row.epoch}, fence "
            f"{row.fence}); this lease came before (epoch {epoch}, fence {lease.fence})",
            name=lease.name, fence=lease.fence, epoch=epoch, using=using,
            later_fence=row.fence, later_epoch=row.epoch, later_engine=row.engine,
        )  # fmt: skip
    return ImproperlyConfigured(
        f"{name!r} was claimed on {using!r} through the engine {row.engine!r}, and its fencing "
        f"tokens can't be compared with those of {engine!r}: both have the epoch {epoch}. Give the "
        f"one that is to be right from now on a higher one: OPTIONS['fence_epoch'] = {epoch + 1}"
    )


def _as_ever(connection: Any, seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


def _of_session(show: str, change: str, per_second: int) -> Limit:
    """Return how to limit what is set for the whole session, and not undone by a rollback."""

    @contextmanager
    def limit(connection: Any, seconds: float) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute(show)
            (before,) = cursor.fetchone()
            try:
                cursor.execute(f"{change} = {int(seconds * per_second)}")
                yield
            finally:
                cursor.execute(f"{change} = {before}")

    return limit


# ------------------------------------------------------------------ PostgreSQL


@contextmanager
def _lock_timeout(connection: Any, seconds: float) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        (before,) = cursor.fetchone()
        # 0 would be without end. Undone by the rollback where it is not set back.
        cursor.execute(f"SET LOCAL lock_timeout = {max(int(seconds * 1000), 1)}")
        yield
        cursor.execute(f"SET LOCAL lock_timeout = '{before}'")


def _took_by_count(cursor: Any, values: dict[str, Any]) -> bool:
    return bool(cursor.rowcount == 1)


def _clash_postgresql(error: BaseException) -> Clash | None:
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return {"55P03": Clash.BUSY, "40001": Clash.AGAIN, "40P01": Clash.AGAIN}.get(state or "")


# ------------------------------------------------------------------ MySQL and MariaDB

_lock_wait_timeout = _of_session(
    "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout", 1
)


def _took_mysql(cursor: Any, values: dict[str, Any]) -> bool:
    # The count of rows says nothing: Django's connections count those found, not those changed.
    # A locking read sees what is there, not a snapshot, and takes none.
    cursor.execute(
        "SELECT engine, epoch, fence, owner FROM {table} WHERE digest = %(digest)s FOR UPDATE"
        .format(**values), values,
    )  # fmt: skip
    ours = tuple(values[column] for column in ("engine", "epoch", "fence", "owner"))
    return bool(cursor.fetchone() == ours)


def _clash_mysql(error: BaseException) -> Clash | None:
    # 1205 waited for too long, 1213 deadlock, 1020 the row is newer than the snapshot.
    codes = {1205: Clash.BUSY, 1213: Clash.AGAIN, 1020: Clash.AGAIN}
    return codes.get(error.args[0]) if error.args else None


# ------------------------------------------------------------------ SQLite

# Before BEGIN, which is what waits where OPTIONS has transaction_mode IMMEDIATE. Elsewhere the
# claim waits: as the first statement it may, since there is no snapshot yet to be kept.
_busy_timeout = _of_session("PRAGMA busy_timeout", "PRAGMA busy_timeout", 1000)


def _clash_sqlite(error: BaseException) -> Clash | None:
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF  # without what it adds in detail
    return Clash.BUSY if code in (5, 6) else None  # SQLITE_BUSY, SQLITE_LOCKED


DIALECTS = {
    "postgresql": Dialect(ON_CONFLICT, _as_ever, _lock_timeout, _took_by_count, _clash_postgresql),
    "mysql": Dialect(ON_DUPLICATE_KEY, _lock_wait_timeout, _as_ever, _took_mysql, _clash_mysql),
    "sqlite": Dialect(ON_CONFLICT, _busy_timeout, _as_ever, _took_by_count, _clash_sqlite),
}
"""By ``connection.vendor``; MariaDB's is "mysql"."""
