"""Locks in the transactions of a task's body: released after the end, before the task's own."""

from __future__ import annotations

import pytest
from celery import Celery
from django.contrib.auth.models import Group
from django.db import transaction

from lockapp.celery import single_instance
from lockapp.handler import lock
from lockapp.testing import assert_locked, assert_not_locked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_locks")]


def test_a_lock_inside_a_task_s_transaction_is_released_after_it(app: Celery) -> None:
    """As anywhere else, and on a rollback too."""
    seen: list[None] = []

    @app.task(name="shop.restock")
    @single_instance
    def restock(fails: bool) -> None:
        with transaction.atomic():
            with lock("stock", 1):
                Group.objects.create(name=f"stock {fails}")
            seen.append(assert_locked("stock", 1))
            if fails:
                raise KeyError
        assert_not_locked("stock", 1)

    restock(False)
    with pytest.raises(KeyError):
        restock(True)
    assert_not_locked("stock", 1)
    assert len(seen) == 2
