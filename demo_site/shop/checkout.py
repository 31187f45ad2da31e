"""The checkout: read the stock, take the money, write the order. Both doors call this function.

It is right as long as nobody else does the same for the same product in between. Without a lock:

    t=0    Ada  reads stock 1
    t=1    Bob  reads stock 1
    t=80   Ada  has paid; writes her order and stock 0
    t=81   Bob  has paid; writes his order and stock 0      one product, two orders, two payments

A database transaction round all of it is no cure: it would stay open while the provider answers,
and under the usual isolation level both would still read 1. A lock on the product makes Bob's
reading wait for Ada's writing.
"""

import os

from django.db import transaction

from demo_site.shop import payments
from demo_site.shop.models import Buyer, Order, Product


class SoldOut(Exception):
    """Nothing is left of the product. Nobody was charged."""


def place_order(*, product_id: int, buyer_id: int, door: Order.Door) -> Order:
    """Sell one piece of a product.

    Takes numbers instead of objects, so that the stock is read here, inside the caller's lock, and
    not before it.

    Raises:
        Product.DoesNotExist: No such product.
        Buyer.DoesNotExist: No such buyer.
        SoldOut: The stock is 0.
    """
    buyer = Buyer.objects.get(pk=buyer_id)
    product = Product.objects.get(pk=product_id)
    if product.stock < 1:
        raise SoldOut(product.name)

    reference = payments.charge(buyer.name, product.price)

    # Committed before the function returns, so before the lock is released: the next one reads
    # what was written.
    with transaction.atomic():
        order = Order.objects.create(
            product=product,
            buyer=buyer,
            door=door,
            price=product.price,
            payment_reference=reference,
            web_process=os.getpid(),
        )
        product.stock -= 1
        product.save(update_fields=["stock"])
    return order
