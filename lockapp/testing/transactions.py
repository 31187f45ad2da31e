"""A transaction of the test's own, for those who don't use Django's TestCase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, transaction


@contextmanager
def rolled_back(using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Roll back at the end what is written in the block, and be nobody's transaction to lockapp.

    As the transactions that Django's ``TestCase`` (and the fixture ``db`` of pytest-django) opens
    round each test, where nothing of this is needed: a lock given back inside is released when the
    outermost ``atomic()`` *of the code under test* has ended, or at once without any; locked views
    are let in; and ``fenced_atomic()`` opens there, as if it were outermost.

    Raises:
        RuntimeError: it is opened inside another transaction, which the lock would wait for.
    """
    block = transaction.atomic(using=using, durable=True)
    block._from_testcase = True  # type: ignore[attr-defined]
    with block:
        try:
            yield
        finally:
            transaction.set_rollback(True, using=using)
