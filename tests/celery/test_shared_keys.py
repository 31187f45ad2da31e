"""Tasks that share a key exclude each other, and share nothing else.

What they leave for parked messages is in test_parked.py.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lockapp.handler import locks
from tests.celery.deliveries import Deliveries
from tests.timing import scaled, wait_until


def test_tasks_that_share_a_key_share_no_result(deliveries: Deliveries) -> None:
    """Neither one that is remembered nor one that is being made."""
    capture = deliveries.returning("captured", "capture", key="order", remember=60)
    refund = deliveries.returning("refunded", "refund", key="order", remember=60)
    assert deliveries.deliver(capture).value == "captured"
    assert deliveries.deliver(refund).value == "refunded"
    assert deliveries.deliver(capture).value == "captured"


def test_tasks_that_share_a_key_join_no_result(deliveries: Deliveries) -> None:
    """Who waits for another task's run then runs its own body."""
    begun, over = threading.Event(), threading.Event()

    @deliveries.task("one", key="shared", on_contention="join")
    def one() -> str:
        begun.set()
        assert over.wait(scaled(20))
        return "of one"

    other = deliveries.returning("of the other", "other", key="shared", on_contention="join")
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(deliveries.deliver, one)
        try:
            assert begun.wait(scaled(5))
            waits = pool.submit(deliveries.deliver, other)
            engine: Any = locks["default"]
            wait_until(lambda: engine.server.flights.names() == ["shared"], what="a follower")
        finally:
            over.set()
        assert runs.result(scaled(5)).value == "of one"
        assert waits.result(scaled(5)).value == "of the other"
