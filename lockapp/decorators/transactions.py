"""The request's transactions, taken inside the lock.

Under ATOMIC_REQUESTS Django opens a transaction round the decorated view::

    t=0   A  BEGIN, takes the lock, sees no order, inserts one
    t=1   A  releases the lock                  B  takes it, sees no order, inserts one
    t=2   A  COMMIT                             B  COMMIT       two orders

So the decorated view is marked as exempt for every database, and the transactions are opened here,
inside the lock, for those databases that the original view was not exempt from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from lockapp.decorators.key import view_name
from lockapp.fencing import fenced_atomic, in_transaction
from lockapp.lease import Lease


class ExemptEverywhere(set[str]):
    """Django's mark of non-atomic views, for every database.

    Its items are those that the view itself is exempt from: the same mark, set from outside by
    ``transaction.non_atomic_requests``, is added here.
    """

    def __contains__(self, alias: object) -> bool:
        return True


def atomic_aliases(exempt: Collection[str]) -> list[str]:
    """Return the databases whose transaction the view runs in."""
    marked = list(exempt)  # its items, since everything is ``in`` an ExemptEverywhere
    return [
        alias
        for alias, database in connections.settings.items()
        if database["ATOMIC_REQUESTS"] and alias not in marked
    ]


@contextmanager
def atomic_on(aliases: list[str], fence: Lease | None = None) -> Iterator[None]:
    """Open a transaction on each of these databases; with a fence at least on the default one.

    Raises:
        what fenced_atomic() does, if there is a fence.
    """
    with ExitStack() as stack:
        if fence is None:
            for alias in aliases:
                stack.enter_context(transaction.atomic(using=alias))
        else:
            for alias in aliases or [DEFAULT_DB_ALIAS]:
                stack.enter_context(fenced_atomic(fence, using=alias))
        yield


def refuse_open_transaction(view: Callable[..., Any], by: str = "@view_lock") -> None:
    """Refuse to lock inside a transaction that ends later than the lock; ``by`` the decorator.

    Raises:
        ImproperlyConfigured: one is open; the message names the cures.
    """
    for connection in connections.all(initialized_only=True):
        if in_transaction(connection):
            raise ImproperlyConfigured(
                f"{view_name(view)}: {by} was reached inside a transaction on "
                f"{connection.alias!r}, and would release the lock before the commit. With "
                "ATOMIC_REQUESTS put it outermost: on the view function, on as_view(), or by "
                f"method_decorator({by[1:]}(…), name='dispatch'); above api_view and the like, and "
                "above decorators without functools.wraps. Or exempt the view with "
                "@transaction.non_atomic_requests. Or take the transaction out from round it."
            )
