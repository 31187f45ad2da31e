"""P5: everything ends by itself, and numbers are checked where they are written."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from lockapp.engines.base import Engine
from lockapp.lock import Lock
from tests.contract.places import Place

NONSENSE = (0, -1, -0.001, True, False, math.nan, math.inf, "30", b"3", [], 10**12)


@pytest.mark.parametrize("argument", ["ttl", "max_hold"])
@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_a_life_that_makes_no_sense_is_refused_by_its_name(
    engine: Engine, argument: str, value: Any
) -> None:
    """Where the lock is described, before anything is sent."""
    with pytest.raises((TypeError, ValueError), match=argument):
        Lock(engine, "order:1", **{argument: value})


@pytest.mark.parametrize("value", [v for v in NONSENSE if v != 0 or v is False], ids=repr)
def test_a_wait_that_makes_no_sense_is_refused_by_its_name(engine: Engine, value: Any) -> None:
    """Zero is a wait; the same where it is given to acquire."""
    with pytest.raises((TypeError, ValueError), match="wait"):
        Lock(engine, "order:1", wait=value)
    with pytest.raises((TypeError, ValueError), match="wait"):
        Lock(engine, "order:1").acquire(wait=value)
    with pytest.raises((TypeError, ValueError), match="wait"):
        Lock(engine, "order:1").try_acquire(wait=value)


def test_a_lease_has_no_life_without_end(engine: Engine) -> None:
    """There is no ttl of None."""
    with pytest.raises(TypeError, match="ttl"):
        Lock(engine, "order:1", ttl=None)  # type: ignore[arg-type]


def test_every_default_is_finite(place: Place) -> None:
    """ttl, wait and max_hold end, unless None was said aloud."""
    lock = place.lock()
    assert lock.spec.ttl_ms == 30_000
    assert lock.spec.max_hold_ms == 3_600_000
    assert lock.wait_s == 10
    endless = place.lock(wait=None, max_hold=None)
    assert endless.wait_s is None
    assert endless.spec.max_hold_ms == 0


def test_durations_are_seconds_or_timedeltas(place: Place) -> None:
    """Both forms mean the same."""
    spec = place.lock(ttl=timedelta(seconds=2), max_hold=timedelta(minutes=1)).spec
    assert spec == place.lock(ttl=2, max_hold=60.0).spec
    assert place.lock(wait=timedelta(milliseconds=1500)).wait_s == 1.5


@pytest.mark.parametrize("key", ["ttl", "wait", "max_hold", "waiting_slice", "command_timeout"])
@pytest.mark.parametrize("value", [-1, True, math.nan, "30"], ids=repr)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(
    place: Place, key: str, value: Any
) -> None:
    """As in the settings."""
    with pytest.raises((TypeError, ValueError), match=key):
        place.another_engine(**{key: value})
