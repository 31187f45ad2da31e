"""The fixtures of lockapp for pytest. Loaded by itself where lockapp is installed.

Nothing of Django or lockapp is imported before a fixture is asked for, so that a project without
Django settings is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockapp.engines.base import Engine
    from lockapp.testing import SteppableClock


@pytest.fixture
def lockapp_clock() -> SteppableClock:
    """The clock of `lockapp_engine`, which `advance(seconds)` sets ahead."""
    from lockapp.testing import SteppableClock

    return SteppableClock()


@pytest.fixture
def lockapp_engine(lockapp_clock: SteppableClock) -> Iterator[Engine]:
    """Put the alias "default" on a fresh memory engine; fail a test that leaves a lock behind."""
    from lockapp.testing import assert_no_litter, override_engine

    with override_engine(clock=lockapp_clock) as engine:
        yield engine
        assert_no_litter("default")


@pytest.fixture
def lockapp_no_litter() -> Iterator[None]:
    """Fail a test that leaves a lock held, or somebody waiting, on any engine that it used."""
    yield
    from lockapp.testing import assert_no_litter

    assert_no_litter()
