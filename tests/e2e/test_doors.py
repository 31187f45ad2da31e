"""What the shop's doors answer, asked through Django's test client on a real lock engine."""

from __future__ import annotations

from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pytest
from django.test import Client

from demo_site.shop import payments
from demo_site.shop.models import Buyer, Order, Product
from lockapp import lock
from lockapp.signals import lock_acquired

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_locks", "shop"),
]

DOORS = ["/orders/", "/orders/unlocked/"]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """One piece of one product, one buyer, and a provider that takes no time."""
    settings.ROOT_URLCONF = "demo_site.urls"
    settings.MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
    monkeypatch.setattr(payments, "PAYMENT_S", 0)
    Product.objects.create(pk=1, name="print", price=Decimal(240), offered=1, stock=1)
    Buyer.objects.create(pk=1, name="Ada")


def order(client: Client, door: str, **body: object) -> Any:
    return client.post(door, {"product": 1, "buyer": 1, **body}, content_type="application/json")


@pytest.mark.parametrize("door", DOORS)
def test_the_last_piece_is_sold_once_and_then_sold_out(client: Client, door: str) -> None:
    """The second buyer's 409 says why, so that nobody retries it."""
    first, second = order(client, door), order(client, door)
    assert (first.status_code, second.status_code) == (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
    assert first.json()["order"] == Order.objects.get().pk
    assert second.json()["type"] == "urn:lockapp-demo:sold-out"
    assert second["Content-Type"] == "application/problem+json"
    assert Product.objects.get().stock == 0


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"product": 99}, HTTPStatus.NOT_FOUND),
        ({"buyer": 99}, HTTPStatus.NOT_FOUND),
        ({"product": "x"}, HTTPStatus.BAD_REQUEST),
        ({"product": None}, HTTPStatus.BAD_REQUEST),
    ],
)
def test_an_order_for_nothing_is_refused(
    client: Client, door: str, body: dict[str, object], status: HTTPStatus
) -> None:
    """Nobody is charged for an order that makes no sense."""
    answer = order(client, door, **body)
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert not Order.objects.exists()


@pytest.mark.parametrize("body", ["", "[]", "{", "3"])
def test_a_body_that_is_no_object_is_refused(client: Client, body: str) -> None:
    """Broken JSON is the client's mistake, not an error of the server."""
    answer = client.post("/orders/", body, content_type="application/json")
    assert answer.status_code == HTTPStatus.BAD_REQUEST


def test_the_doors_take_orders_only(client: Client) -> None:
    """A link or a crawler must not buy."""
    for door in DOORS:
        assert client.get(door).status_code == HTTPStatus.METHOD_NOT_ALLOWED


def test_a_browser_is_led_back_to_the_page_with_a_sentence(client: Client) -> None:
    """The page's forms work without JavaScript, and without a token: the doors know no session."""
    browser = Client(enforce_csrf_checks=True, headers={"accept": "text/html,*/*;q=0.8"})
    form = {"product": 1, "buyer": 1}
    for sentence in ("paid", "Sold out"):
        answer = browser.post("/orders/", form)
        assert answer.status_code == HTTPStatus.SEE_OTHER
        assert sentence in browser.get(answer["Location"]).text


def test_the_locked_door_waits_for_the_lock_of_its_product(
    client: Client, redis_locks: Any
) -> None:
    """It takes what `lock("product", 1)` names elsewhere; the other door takes none."""
    names = []

    def note(**event: Any) -> None:
        names.append(event["name"])

    lock_acquired.connect(note)
    try:
        order(client, "/orders/unlocked/")
        assert names == []
        order(client, "/orders/")
    finally:
        lock_acquired.disconnect(note)
    assert names == [lock("product", 1).name]
