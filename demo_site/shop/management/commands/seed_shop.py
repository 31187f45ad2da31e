"""Fill the shop for a race: everyday products, a scarce one for each door, buyers, a superuser.

Can be repeated: it puts stocks back and removes the orders of the scarce products, and touches
nothing else.
"""

import os
from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from demo_site.shop.models import Buyer, Order, Product

EVERYDAY = [
    ("Oolong tea, 100 g", Decimal("12.50"), 200),
    ("Yixing clay teapot", Decimal("86.00"), 24),
    ("Bamboo whisk", Decimal("18.00"), 60),
]
# One product for each door, so that neither race disturbs the figures of the other.
SCARCE_UNLOCKED = "Signed print No. 1 (raced without a lock)"
SCARCE_LOCKED = "Signed print No. 2 (raced with the lock)"
SCARCE_PRICE = Decimal("240.00")

FIRST_NAMES = [
    *("Ada", "Bob", "Chen", "Dora", "Emil", "Fatima", "Goro", "Hana"),
    *("Ivan", "Jun", "Kofi", "Lena", "Mei", "Noor", "Otto"),
]


class Command(BaseCommand):
    """``manage.py seed_shop --buyers 20 --stock 5``."""

    help = "Fill the shop for a race. The superuser's password is read from DEMO_PASSWORD."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--buyers", type=int, default=20, help="how many buyers there are")
        parser.add_argument("--stock", type=int, default=5, help="how many scarce pieces there are")

    @transaction.atomic
    def handle(self, *args: Any, buyers: int, stock: int, **options: Any) -> None:
        if buyers < 1 or stock < 1:
            raise CommandError("--buyers and --stock must be at least 1.")
        for name, price, offered in EVERYDAY:
            Product.objects.get_or_create(
                name=name, defaults={"price": price, "offered": offered, "stock": offered}
            )
        scarce = [
            Product.objects.update_or_create(
                name=name, defaults={"price": SCARCE_PRICE, "offered": stock, "stock": stock}
            )[0]
            for name in (SCARCE_UNLOCKED, SCARCE_LOCKED)
        ]
        Order.objects.filter(product__in=scarce).delete()
        for number in range(1, buyers + 1):
            Buyer.objects.get_or_create(name=buyer_name(number))
        self._superuser()
        if options["verbosity"]:
            self.stdout.write(f"{Product.objects.count()} products, {buyers} buyers.")

    def _superuser(self) -> None:
        password = os.environ.get("DEMO_PASSWORD")
        if not password:
            return
        admin, _ = get_user_model().objects.get_or_create(
            username="admin", defaults={"is_staff": True, "is_superuser": True}
        )
        admin.set_password(password)
        admin.save()


def buyer_name(number: int) -> str:
    """Return "Ada", "Bob", … and, when the names are used up, "Ada 2", "Bob 2", …."""
    turn, place = divmod(number - 1, len(FIRST_NAMES))
    return FIRST_NAMES[place] if turn == 0 else f"{FIRST_NAMES[place]} {turn + 1}"
