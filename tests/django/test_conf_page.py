"""docs/reference/settings.md says what conf.py does: each key, each option, each default."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from lockapp import conf
from lockapp.core.options import EngineOptions

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text("utf-8")
ROW = re.compile(r"^\| `(\w+)` \| *(.*?) *\| ", re.MULTILINE)
ENGINE_PART, OPTIONS_PART = PAGE.split("## `OPTIONS`")
OPTIONS = dict(ROW.findall(OPTIONS_PART))
OTHER = {
    "prefix": "other",
    "on_unavailable": "local",
    "single_process": True,
    "two_phase_fencing": True,
}
"""Another value of each option that is no number."""


def test_the_keys_of_an_engine_are_the_documented_ones() -> None:
    """In the same order, with the default engine."""
    rows = dict(ROW.findall(ENGINE_PART))
    assert tuple(rows) == conf.KEYS
    assert rows["ENGINE"] == f"`{conf.DEFAULT_ENGINE}`"


def test_each_option_is_documented_once() -> None:
    """None is missing and none is too many."""
    assert len(OPTIONS) == len(ROW.findall(OPTIONS_PART)) == len(fields(EngineOptions))


@pytest.mark.parametrize("key", OPTIONS)
def test_the_documented_default_is_the_default(key: str) -> None:
    """Given in words, it changes nothing; another value changes something."""
    default = OPTIONS[key]
    value = default.strip("`") if "`" in default else ast.literal_eval(default)
    assert EngineOptions.parse({key: value}) == EngineOptions()
    other = OTHER[key] if key in OTHER else value + 1
    assert EngineOptions.parse({key: other}) != EngineOptions()
