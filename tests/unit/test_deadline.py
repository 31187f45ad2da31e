"""core.deadline: how long a lease may be believed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockapp.core.deadline import drift_s, slice_s, valid_until

POLICY = {"slice_ms": 5000, "stagger_ms": 10, "stagger_max_ms": 500}


def test_validity_is_counted_from_before_the_request_and_less_drift() -> None:
    """1 % and 2 ms are given away."""
    assert valid_until(100.0, 50_000, 60_000) == pytest.approx(100 + 10 - 0.1 - 0.002)


def test_a_deadline_that_has_passed_is_no_validity() -> None:
    """A stale grant is worth less than nothing."""
    assert valid_until(100.0, 60_000, 60_000) < 100
    assert valid_until(100.0, 60_000, 59_000) < 100


@given(
    sent=st.floats(0, 1e6),
    delay=st.floats(0, 100),
    life_ms=st.integers(1, 10**7),
    rate=st.floats(0.9901, 1.0099),
)
def test_the_holder_stops_believing_before_the_server_does(
    sent: float, delay: float, life_ms: int, rate: float
) -> None:
    """Whatever the reply's delay, and clocks up to 0.99 % apart.

    The server reads its clock `delay` after the request was sent, so its deadline falls, on our
    clock, `life / rate` later than that.
    """
    ends_at_server = sent + delay + life_ms / 1000 / rate
    assert valid_until(sent, 1_000_000, 1_000_000 + life_ms) <= ends_at_server


@given(st.floats(0, 1e6))
def test_drift_grows_with_life(life_s: float) -> None:
    """And is never nothing."""
    assert drift_s(life_s) == pytest.approx(life_s * 0.01 + 0.002)


@pytest.mark.parametrize(
    ("left_s", "lease_left_ms", "position", "expected"),
    [
        (None, 3000, 0, 3.0),  # the present lease ends first
        (None, 30_000, 0, 5.0),  # to be seen alive
        (2.0, 30_000, 0, 2.0),  # the caller's patience
        (None, 3000, 7, 3.07),  # not all at once
        (None, 3000, 10_000, 3.5),  # nor too late
        (None, -100, 0, 0.001),  # a lease that has ended: at once, without spinning
        (0.0, 3000, 0, 0.001),
    ],
)
def test_a_waiter_looks_again_at_whichever_comes_first(
    left_s: float | None, lease_left_ms: int, position: int, expected: float
) -> None:
    """Lease's end, slice, patience."""
    assert slice_s(
        left_s=left_s, lease_left_ms=lease_left_ms, position=position, **POLICY
    ) == pytest.approx(expected)
