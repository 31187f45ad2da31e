"""core.backoff: what to do when the engine did not answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockapp.core.backoff import LONGEST_PAUSE_S, pause_s

REASONS = st.sampled_from(["connect", "open", "reset", "timeout", "transient", "refused"])


@pytest.mark.parametrize("reason", ["connect", "open", "timeout"])
def test_who_has_had_no_answer_learns_at_once_that_the_engine_is_down(reason: str) -> None:
    """However long one was ready to wait: down is not busy."""
    assert pause_s(reason, 1, answered=False, left_s=60) is None


@pytest.mark.parametrize("reason", ["connect", "open", "timeout", "transient"])
def test_who_stands_in_the_queue_asks_again_until_the_end_of_its_patience(reason: str) -> None:
    """A failover in mid-wait only means asking again."""
    assert pause_s(reason, 1, answered=True, left_s=60) == 0.05
    assert pause_s(reason, 1, answered=True, left_s=None) == 0.05
    assert pause_s(reason, 1, answered=True, left_s=0) is None


@pytest.mark.parametrize("answered", [True, False])
def test_a_refusal_is_final(answered: bool) -> None:
    """No memory, no permission: asking again changes nothing."""
    assert pause_s("refused", 1, answered=answered, left_s=60) is None


def test_a_broken_idle_connection_is_tried_once_more_at_once() -> None:
    """The server was restarted since; also for who does not wait."""
    assert pause_s("reset", 1, answered=False, left_s=0) == 0
    assert pause_s("reset", 2, answered=False, left_s=60) is None


def test_a_server_that_says_later_is_asked_later() -> None:
    """Loading or failing over: also before the first answer, while there is time."""
    assert pause_s("transient", 1, answered=False, left_s=5) == 0.05
    assert pause_s("transient", 1, answered=False, left_s=0) is None


@given(REASONS, st.integers(1, 10_000), st.booleans(), st.none() | st.floats(-1, 100))
def test_no_pause_is_longer_than_half_a_second_or_than_what_is_left(
    reason: str, attempt: int, answered: bool, left_s: float | None
) -> None:
    """Nor negative."""
    pause = pause_s(reason, attempt, answered=answered, left_s=left_s)
    if pause:
        assert 0 < pause <= LONGEST_PAUSE_S
        assert left_s is None or pause <= left_s
