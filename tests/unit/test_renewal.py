"""core.renewal: when to renew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockapp.core.renewal import renew_at, retry_at

TIMES = st.floats(0, 1e6)


@given(now=TIMES, life=st.floats(0.001, 1e5), chance=st.floats(0, 1, exclude_max=True))
def test_two_renewals_may_fail_before_a_lease_is_lost(
    now: float, life: float, chance: float
) -> None:
    """The first is due within a third of the life, and not before 90 % of that."""
    due = renew_at(now, life, chance)
    assert now + life * 0.29 <= due + 1e-6
    assert due <= now + life / 3 + 1e-6


@given(now=TIMES, left=st.floats(-10, 1e5))
def test_a_failed_renewal_is_tried_again_soon_and_before_the_end(now: float, left: float) -> None:
    """After a quarter of a second, or of what is left; never in a busy loop."""
    due = retry_at(now, now + left)
    assert now + 0.01 - 1e-6 <= due <= now + 0.25 + 1e-6
    if left > 0.05:
        assert due < now + left


def test_jitter_spreads_leases_that_were_taken_together() -> None:
    """Two chances, two times."""
    assert renew_at(0, 30, 0.0) - renew_at(0, 30, 0.999) > 0.9
