"""core.breaker: who may still try to reach a server that has stopped answering."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockapp.core.breaker import (
    FAILURES,
    FIRST_COOL_DOWN_S,
    JITTER,
    LONGEST_COOL_DOWN_S,
    MEMORY_S,
    Breaker,
)

ATTEMPT_S = 3.0


def opened(at: float = 100.0) -> Breaker:
    """A breaker that opens at this time."""
    breaker = Breaker(ATTEMPT_S)
    assert [breaker.failed(at, 0) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    return breaker


def test_it_opens_with_the_third_failure_in_a_row_and_says_so_once() -> None:
    """Until then everybody may connect."""
    breaker = Breaker(ATTEMPT_S)
    for _ in range(FAILURES - 1):
        assert not breaker.failed(0, 0)
        assert breaker.admits(0)
    assert breaker.failed(0, 0)
    assert breaker.is_open
    assert not breaker.admits(0)
    assert not breaker.failed(0, 0)


def test_an_answer_in_between_breaks_the_row() -> None:
    """Single lost packets, however many, open nothing."""
    breaker = Breaker(ATTEMPT_S)
    for number in range(10 * FAILURES):
        assert not breaker.failed(number, 0)
        assert breaker.worked(number) is None


def test_failures_that_are_far_apart_are_no_row() -> None:
    """What succeeded between them on open connections is not told to the breaker."""
    breaker = Breaker(ATTEMPT_S)
    for number in range(10 * FAILURES):
        assert not breaker.failed(number * (MEMORY_S + 1), 0)


def test_after_the_cool_down_one_may_try() -> None:
    """And only one, for as long as its attempt can take."""
    breaker = opened(100)
    end = 100 + FIRST_COOL_DOWN_S
    assert not breaker.admits(end - 0.001)
    assert [breaker.admits(end) for _ in range(5)] == [True, False, False, False, False]
    assert not breaker.admits(end + ATTEMPT_S - 0.001)
    # Nothing was heard of the probe: its caller was cancelled, or its thread killed.
    assert breaker.admits(end + ATTEMPT_S)
    assert not breaker.admits(end + ATTEMPT_S)


def test_a_probe_that_fails_doubles_the_cool_down_up_to_a_limit() -> None:
    """So a server that is back is asked soon, and one that is not is not asked often."""
    breaker, now, pauses = opened(0), 0.0, []
    for _ in range(6):
        before = now
        while not breaker.admits(now):
            now += 0.125
        pauses.append(now - before)
        assert not breaker.failed(now, 0)
    assert pauses == [1, 2, 4, 5, 5, 5]
    assert pauses[0] == FIRST_COOL_DOWN_S
    assert pauses[-1] == LONGEST_COOL_DOWN_S


def test_a_probe_that_succeeds_closes_it_for_everybody() -> None:
    """And tells how long the outage was: from the first failure of the row."""
    breaker = Breaker(ATTEMPT_S)
    for at in (10, 11, 12):
        breaker.failed(at, 0)
    assert breaker.admits(14)
    assert breaker.worked(15) == 5
    assert all(breaker.admits(15) for _ in range(10))
    assert breaker.worked(16) is None
    assert not breaker.failed(17, 0), "the row starts anew"


def test_late_failures_do_not_prolong_the_cool_down() -> None:
    """Attempts that were under way when it opened end one after the other."""
    breaker = opened(0)
    for tenth in range(9):
        assert not breaker.failed(tenth / 10, 0)
    assert breaker.admits(FIRST_COOL_DOWN_S)


def test_an_attempt_that_nobody_asked_about_is_a_probe_too() -> None:
    """The watchdog's: it fails after the cool-down, so nobody else has to find out."""
    breaker = opened(0)
    assert not breaker.failed(FIRST_COOL_DOWN_S, 0)
    assert not breaker.admits(FIRST_COOL_DOWN_S)
    assert not breaker.admits(3 * FIRST_COOL_DOWN_S - 0.001)
    assert breaker.admits(3 * FIRST_COOL_DOWN_S)
    assert breaker.worked(3 * FIRST_COOL_DOWN_S) == 3 * FIRST_COOL_DOWN_S


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_jitter_only_shortens(chance: float) -> None:
    """By a fifth at most."""
    breaker = Breaker(ATTEMPT_S)
    for _ in range(FAILURES):
        breaker.failed(0, chance)
    assert not breaker.admits(FIRST_COOL_DOWN_S * (1 - JITTER) - 0.001)
    assert breaker.admits(FIRST_COOL_DOWN_S)


@given(st.lists(st.tuples(st.sampled_from("afw"), st.floats(0, 2)), max_size=60))
def test_whatever_happens_it_admits_somebody_again(steps: list[tuple[str, float]]) -> None:
    """A breaker that never lets anybody try would never close."""
    breaker, now = Breaker(ATTEMPT_S), 0.0
    for step, passed in steps:
        now += passed
        if step == "a":
            breaker.admits(now)
        elif step == "f":
            breaker.failed(now, 0.5)
        else:
            breaker.worked(now)
            assert breaker.admits(now)
    assert breaker.admits(now + max(LONGEST_COOL_DOWN_S, ATTEMPT_S))


def test_attempts_that_were_under_way_together_are_one_failure() -> None:
    """A pause of the server, or of this process, fails all of them at one moment."""
    breaker = Breaker(attempt_s=3)
    assert not any(breaker.failed(10.0 + at / 1000, 0.5, took_s=2.0) for at in range(20))
    assert not breaker.is_open
    assert not breaker.failed(12.1, 0.5, took_s=2.0)
    assert breaker.failed(14.2, 0.5, took_s=2.0), "one after the other they are three"
