"""core.duration: what users may write, and what they get."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockapp.core.duration import LONGEST_S, to_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1, 1000),
        (0.25, 250),
        (0.0001, 1),  # rounded up: a life is never nothing
        (1.0001, 1001),
        (0.1 + 0.2, 300),  # not 301: what floats add is not meant
        (timedelta(milliseconds=1500), 1500),
        (timedelta(microseconds=1), 1),
        (LONGEST_S, 315_360_000_000),
    ],
)
def test_seconds_become_whole_milliseconds_rounded_up(value: object, ms: int) -> None:
    """Numbers and timedeltas alike."""
    assert to_ms(value, "ttl") == ms


@given(st.integers(min_value=1, max_value=315_360_000_000))
@example(136_620_339_983)  # times 1000 as a float it is a hundredth of a microsecond more
def test_whole_milliseconds_survive(ms: int) -> None:
    """Through seconds and back."""
    assert to_ms(ms / 1000, "ttl") == ms


@given(st.floats(min_value=1e-6, max_value=LONGEST_S))
def test_the_result_is_never_shorter_than_what_was_asked_for(seconds: float) -> None:
    """By more than a billionth of a second."""
    assert to_ms(seconds, "ttl") >= Decimal(repr(seconds)) * 1000 - Decimal("1e-6")


@pytest.mark.parametrize("value", [True, False, "30", None, b"1", [], Decimal("1.5"), 1j, object()])
def test_other_types_are_refused_with_the_arguments_name(value: object) -> None:
    """Also those that Python would take for a number."""
    with pytest.raises(TypeError, match=r"^patience must be"):
        to_ms(value, "patience", zero=True)


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, -math.inf, LONGEST_S + 1])
def test_numbers_that_make_no_sense_are_refused_with_the_arguments_name(value: float) -> None:
    """Milliseconds given for seconds are caught by the upper end."""
    with pytest.raises(ValueError, match=r"^patience must be"):
        to_ms(value, "patience", zero=True)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)])
def test_zero_is_allowed_only_where_it_means_something(value: object) -> None:
    """A wait of 0 does; a ttl of 0 does not."""
    assert to_ms(value, "wait", zero=True) == 0
    with pytest.raises(ValueError, match="more than 0"):
        to_ms(value, "ttl")
