"""What the tests of the Django part share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.django import fence_places
from tests.django.fence_places import Place
from tests.services import require


@pytest.fixture(scope="module", params=fence_places.KINDS)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Place]:
    """A database of each kind, for all tests of this module."""
    kind = request.param
    if kind != "sqlite":
        require(kind)
    with django_db_blocker.unblock(), fence_places.made(kind, tmp_path_factory.mktemp("db")) as it:
        yield it
