"""core.options: the numbers that govern an engine."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest

from lockapp.core.options import EngineOptions


def test_nothing_given_means_the_documented_defaults() -> None:
    """As the table in the design has them."""
    options = EngineOptions.parse({})
    assert options == EngineOptions()
    assert (options.ttl_ms, options.wait_ms, options.view_wait_ms) == (30_000, 10_000, 0)
    assert options.max_hold_ms == 3_600_000
    assert (options.claim_window_ms, options.slice_ms, options.seen_ms) == (3000, 5000, 10_000)
    assert (options.connect_timeout_ms, options.command_timeout_ms) == (1000, 2000)


def test_users_write_seconds_under_names_without_units() -> None:
    """Numbers or timedeltas."""
    options = EngineOptions.parse(
        {"ttl": 5, "wait": 0, "waiting_slice": timedelta(seconds=2), "prefix": "shop:locks"}
    )
    assert (options.ttl_ms, options.wait_ms, options.slice_ms) == (5000, 0, 2000)
    assert options.prefix == "shop:locks"


def test_max_hold_may_be_switched_off() -> None:
    """Only by saying None."""
    assert EngineOptions.parse({"max_hold": None}).max_hold_ms == 0
    with pytest.raises(ValueError, match="max_hold"):
        EngineOptions.parse({"max_hold": 0})


@pytest.mark.parametrize(
    ("key", "near"), [("tll", "ttl"), ("max_holds", "max_hold"), ("wating_slice", "waiting_slice")]
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(key: str, near: str) -> None:
    """A typing mistake must not silently mean the default."""
    with pytest.raises(ValueError, match=f"unknown option '{key}'; did you mean '{near}'"):
        EngineOptions.parse({key: 1})


@pytest.mark.parametrize("key", ["slice", "safety", "ttl_ms", "xyzzy"])
def test_internal_names_are_not_options(key: str) -> None:
    """What is inside may change."""
    with pytest.raises(ValueError, match="unknown option"):
        EngineOptions.parse({key: 1})


@pytest.mark.parametrize("value", [0, 1, "no", "False", None])
def test_only_true_and_false_say_how_many_processes_run(value: object) -> None:
    """The text "False" from an environment variable would be true."""
    assert EngineOptions.parse({"single_process": True}).single_process
    with pytest.raises(TypeError, match="single_process"):
        EngineOptions.parse({"single_process": value})


@pytest.mark.parametrize("key", ["event_cap", "sweep_limit", "renew_batch"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "10", None])
def test_counts_are_whole_numbers_from_one(key: str, value: object) -> None:
    """Named when they are not."""
    with pytest.raises(ValueError, match=key):
        EngineOptions.parse({key: value})


@pytest.mark.parametrize("value", ["", "a b", "{x}", "x" * 65, None, 5, "ключ"])
def test_a_prefix_that_could_break_keys_is_refused(value: object) -> None:
    """Braces would move the keys of one lock to several cluster slots."""
    with pytest.raises(ValueError, match="prefix"):
        EngineOptions.parse({"prefix": value})


def test_every_option_is_documented_beside_its_default() -> None:
    """And every field but words, counts and flags carries its unit."""
    words = {"prefix", "on_unavailable"}
    flags = {"single_process", "two_phase_fencing"}
    counts = {"event_cap", "fence_epoch", "sweep_limit", "renew_batch", "min_replicas_acked"}
    others = {f.name for f in fields(EngineOptions) if not f.name.endswith("_ms")}
    assert others == words | counts | flags


def test_what_the_user_gave_is_not_changed() -> None:
    """Settings belong to the site."""
    given = {"ttl": 5}
    EngineOptions.parse(given)
    assert given == {"ttl": 5}
