"""What the tests of the Django part share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def delete_lockapp(settings: Any) -> Callable[[], None]:
    """Take LOCKAPP out of the settings for this test.

    A deletion alone is told nobody, neither then nor when it is undone: the engines of an earlier
    test would still be there. So a change comes before it.
    """

    def delete() -> None:
        settings.LOCKAPP = {}
        del settings.LOCKAPP

    return delete
