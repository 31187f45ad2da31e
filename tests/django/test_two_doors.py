"""Two doors to one order: a shopper completes the checkout while the provider's webhooks arrive.

Both doors take the lock of the *cart*, whatever they were called with, and load it inside. A unique
constraint stays the last line, and who runs into it is answered with the order that is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path

from lockapp.decorators import view_lock
from lockapp.testing import override_engine
from tests.django.fence_places import ALIAS, Place
from tests.timing import pause, scaled

ROUNDS = 50
TABLES = (
    "CREATE TABLE carts (id integer PRIMARY KEY)",
    "CREATE TABLE payments (id varchar(20) PRIMARY KEY, cart integer)",
    "CREATE TABLE plain_orders (cart integer, paid_by varchar(20))",
    "CREATE TABLE unique_orders (cart integer PRIMARY KEY, paid_by varchar(20))",
)


def sql(statement: str, *values: object) -> Any:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else None


def order_of(cart: int, table: str) -> str | None:
    """Who has paid for the order that a cart has become, if it has."""
    found = sql(f"SELECT paid_by FROM {table} WHERE cart = %s", cart)
    return found[0][0] if found else None


def cart_of(request: HttpRequest, payment: str) -> int:
    """The cart that a payment is for: what the lock goes by, and never the payment itself."""
    (row,) = sql("SELECT cart FROM payments WHERE id = %s", payment)
    return int(row[0])


def answer(cart: int, paid_by: str | None, status: int = 200) -> JsonResponse:
    return JsonResponse({"cart": cart, "paid_by": paid_by}, status=status)


def fulfil(cart: int, paid_by: str) -> JsonResponse:
    """Make an order of a cart, or find the one that it has become."""
    with transaction.atomic(using=ALIAS):
        there = order_of(cart, "plain_orders")
        if there:
            return answer(cart, there)
        if not sql("SELECT id FROM carts WHERE id = %s", cart):
            return JsonResponse({"error": "object no longer exists"}, status=404)
        sql("INSERT INTO plain_orders VALUES (%s, %s)", cart, paid_by)
        sql("DELETE FROM carts WHERE id = %s", cart)
    return answer(cart, paid_by, 201)


@view_lock("order", "cart", "{cart}", wait=30)
def complete(request: HttpRequest, cart: int) -> JsonResponse:
    return fulfil(cart, "shopper")


@view_lock("order", "cart", cart_of, wait=30)
def webhook(request: HttpRequest, payment: str) -> JsonResponse:
    return fulfil(cart_of(request, payment), payment)


together = threading.Barrier(2)
"""Where two who have no lock in common meet between reading and writing."""


def hasty(request: HttpRequest, payment: str, table: str) -> JsonResponse:
    """Read, and then write."""
    cart = cart_of(request, payment)
    assert order_of(cart, table) is None
    together.wait(scaled(20))
    sql(f"INSERT INTO {table} VALUES (%s, %s)", cart, payment)
    return answer(cart, payment, 201)


@view_lock("order", "payment", "{payment}", wait=30)
def other_lock(request: HttpRequest, payment: str) -> JsonResponse:
    """A door that locks what it was called with."""
    return hasty(request, payment, "plain_orders")


def last_line(request: HttpRequest, payment: str) -> JsonResponse:
    """A door that knows what the constraint says."""
    try:
        return hasty(request, payment, "unique_orders")
    except IntegrityError:
        cart = cart_of(request, payment)
        return answer(cart, order_of(cart, "unique_orders"))


def slow_commit(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let time pass between the end of the view and the COMMIT of its transaction."""

    @wraps(view)
    def slowed(request: HttpRequest, **kwargs: Any) -> Any:
        response = view(request, **kwargs)
        pause(0.03)
        return response

    return slowed


@view_lock("order", "cart", "{cart}", wait=60)
@slow_commit
def create_if_none(request: HttpRequest, cart: int) -> JsonResponse:
    """Read, and then write, in the transaction of ATOMIC_REQUESTS."""
    assert connections[ALIAS].in_atomic_block
    there = order_of(cart, "plain_orders")
    if not there:
        sql("INSERT INTO plain_orders VALUES (%s, %s)", cart, "shopper")
    return answer(cart, "shopper", 200 if there else 201)


urlpatterns = [
    path("create/<int:cart>/", create_if_none),
    path("carts/<int:cart>/complete/", complete),
    path("webhooks/<str:payment>/", webhook),
    path("other-lock/<str:payment>/", other_lock),
    path("here/<str:payment>/", view_lock("order", "cart", cart_of)(last_line)),
    path("there/<str:payment>/", view_lock("order", "cart", cart_of, using="other")(last_line)),
]


@pytest.fixture(scope="module")
def shop(place: Place, django_db_blocker: Any) -> Place:
    """The shop's tables, in a database of each kind: carts with two attempts at paying each."""
    with django_db_blocker.unblock(), place.opened():
        for statement in TABLES:
            sql(statement)
        with transaction.atomic(using=ALIAS):
            for cart in range(ROUNDS):
                sql("INSERT INTO carts VALUES (%s)", cart)
                for attempt in "ab":
                    sql("INSERT INTO payments VALUES (%s, %s)", f"{attempt}{cart}", cart)
    return place


@pytest.fixture(autouse=True)
def open_doors(shop: Place, settings: Any, django_db_blocker: Any) -> Iterator[None]:
    """The shop without any order, and its database in this thread."""
    settings.ROOT_URLCONF = __name__
    with django_db_blocker.unblock(), shop.opened():
        sql("DELETE FROM plain_orders")
        yield


def visit(shop: Place, *doors: list[str]) -> list[tuple[int, Any]]:
    """Post to the first address of each list at once, then to the second ones; return the answers.

    Each list has a thread and a connection of its own.
    """
    start = threading.Barrier(len(doors))
    answers: list[tuple[int, Any]] = []

    def post(urls: list[str]) -> None:
        with shop.opened():
            for url in urls:
                start.wait(scaled(30))
                response = Client().post(url)
                answers.append((response.status_code, response.json()))

    threads = [threading.Thread(target=post, args=(urls,)) for urls in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_checkout_and_webhooks_make_one_order_of_a_cart(shop: Place, redis_locks: Any) -> None:
    """In every round; each is answered with it, whoever made it, and nobody misses the cart."""
    answers = visit(
        shop,
        [f"/carts/{cart}/complete/" for cart in range(ROUNDS)],
        [f"/webhooks/a{cart}/" for cart in range(ROUNDS)],
        [f"/webhooks/b{cart}/" for cart in range(ROUNDS)],
    )
    assert sorted(status for status, _ in answers) == [200] * 2 * ROUNDS + [201] * ROUNDS
    orders = sql("SELECT cart, paid_by FROM plain_orders")
    assert sorted(cart for cart, _ in orders) == list(range(ROUNDS))
    assert {(body["cart"], body["paid_by"]) for _, body in answers} == set(orders)


def test_under_atomic_requests_twenty_at_once_create_one(
    shop: Place, redis_locks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each COMMIT comes late, the next one to read has it behind it."""
    atomic = {**shop.settings(), "ATOMIC_REQUESTS": True}
    monkeypatch.setitem(connections.settings, ALIAS, atomic)
    answers = visit(shop, *[["/create/1/"]] * 20)
    assert sorted(status for status, _ in answers) == [200] * 19 + [201]
    assert sql("SELECT count(*) FROM plain_orders WHERE cart = 1")[0][0] == 1


def test_doors_that_lock_different_things_make_two_orders(shop: Place, redis_locks: Any) -> None:
    """What the common lock is for: the same shop, locked by payment."""
    answers = visit(shop, ["/other-lock/a1/"], ["/other-lock/b1/"])
    assert [status for status, _ in answers] == [201, 201]
    assert sql("SELECT count(*) FROM plain_orders WHERE cart = 1")[0][0] == 2


def test_the_constraint_is_the_last_line_and_has_the_same_answer(shop: Place) -> None:
    """Where two lock servers disagree about who holds the cart."""
    with override_engine(), override_engine(alias="other"):
        answers = visit(shop, ["/here/a1/"], ["/there/b1/"])
    assert sorted(status for status, _ in answers) == [200, 201]
    assert len({body["paid_by"] for _, body in answers}) == 1
