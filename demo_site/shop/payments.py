"""The payment provider as the shop sees it: a call over the network that takes its time.

It stands in for somebody else's service and is the only part of the demo that is played. What
matters is its place: money is taken between reading the stock and writing it, and no database
transaction may be open meanwhile.
"""

import time
import uuid
from decimal import Decimal

PAYMENT_S = 0.08  # what a quick provider takes


def charge(account: str, amount: Decimal) -> str:
    """Take ``amount`` from ``account``, in PAYMENT_S seconds, and return the reference."""
    time.sleep(PAYMENT_S)
    return f"pay-{uuid.uuid4().hex[:12]}"
