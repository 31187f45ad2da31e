"""Fences in the admin: to be read, never written; pruned by who knows what that means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from lockapp import fenced_atomic, lock
from lockapp.models import Fence

pytestmark = pytest.mark.django_db


def claimed(*parts: object) -> Fence:
    with lock(*parts) as lease, fenced_atomic(lease):
        return Fence.objects.for_lock(lease.name).get()


def page(client: Client, **query: Any) -> str:
    return client.get(reverse("admin:lockapp_fence_changelist"), query).content.decode()


def test_the_list_says_who_has_last_claimed_which_lock() -> None:
    """The name as people read it; nobody can change a row."""
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    row = claimed("订单", 7)
    claimed("order", 8)
    text = page(boss)
    for shown in ("订单:7", "order:8", "default MemoryEngine", str(row.fence)):
        assert shown in text
    assert "order:8" not in page(boss, q="7")
    for forbidden in ("add", "delete"):
        args = [] if forbidden == "add" else [row.pk]
        assert boss.get(reverse(f"admin:lockapp_fence_{forbidden}", args=args)).status_code == 403
    assert (
        'name="_save"'
        not in boss.get(reverse("admin:lockapp_fence_change", args=[row.pk])).content.decode()
    )


def test_pruning_forgets_who_has_long_been_away() -> None:
    """A claim is as old as its last repetition."""
    old, new = claimed("order", 1), claimed("order", 2)
    Fence.objects.filter(pk=old.pk).update(claimed_at=new.claimed_at - timedelta(days=40))
    assert Fence.objects.prune(new.claimed_at - timedelta(days=30)) == 1
    assert Fence.objects.get() == new
