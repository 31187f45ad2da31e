"""Lock names as people meet them: which inputs share a name, which don't, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from lockapp.naming import (
    FAMILY_LIMIT,
    NAME_LIMIT,
    family_of,
    lock_name,
    name_digest,
    readable,
)
from tests.unit.naming_golden import AutumnNight, compute, load, row

ROOT = Path(__file__).parents[2]


class Colour(Enum):
    RED = "r"
    CRIMSON = "r"  # noqa: PIE796 - an alias of RED


class Paid(StrEnum):
    YES = "yes"


class Level(IntEnum):
    HIGH = 3


def all_differ(*names: str) -> bool:
    return len(set(names)) == len(names)


# ------------------------------------------------------------------ the frozen contract


def test_names_equal_those_of_every_earlier_release() -> None:
    """Add lines to the golden file; never change one."""
    assert compute(load()) == load()


@pytest.mark.parametrize("seed", ["1", "2718"])
def test_another_process_gives_the_same_names(seed: str) -> None:
    """Hash seed, locale, time zone and decimal context play no part."""
    surroundings = {"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.unit.naming_golden"],
        cwd=ROOT,
        env={**os.environ, **surroundings},
        capture_output=True,
        check=True,
    )
    assert json.loads(result.stdout) == load()


# ------------------------------------------------------------------ different keys, different names


def test_parts_cannot_run_into_each_other() -> None:
    assert all_differ(lock_name("f", 1, 23), lock_name("f", 12, 3), lock_name("f", 123))
    assert lock_name("a:b", "c") != lock_name("a", "b:c")


def test_values_that_python_calls_equal_or_prints_alike_keep_their_types_apart() -> None:
    """True, 1, 1.0, "1", Decimal(1): one lock per type; convert where you mean the same."""
    ones: list[Any] = [True, 1, 1.0, "1", "1.0", "True", Decimal(1), b"1"]
    assert all_differ(*[lock_name("f", one) for one in ones])
    pk = UUID(int=7)
    assert lock_name("f", pk) != lock_name("f", str(pk))


def test_composed_and_decomposed_text_are_two_names() -> None:
    """No normalisation: its tables change with Python's Unicode version, names must not."""
    assert lock_name("user", "\u00e9") != lock_name("user", "e\u0301")
    assert lock_name("user", "見😀").isascii()


def test_two_rows_with_the_same_text_are_two_names() -> None:
    first, second = row("shop.site", 1), row("shop.site", 2)
    assert lock_name("crawl", first) == "crawl:!shop.site:1"
    assert lock_name("crawl", second) == "crawl:!shop.site:2"


def test_case_and_trailing_space_make_different_names_and_different_digests() -> None:
    names = [lock_name("Order", 7), lock_name("order", 7), lock_name("x"), lock_name("x ")]
    assert all_differ(*[name.casefold().rstrip() for name in map(name_digest, names)])
    assert all(re.fullmatch("[0-9a-f]{32}", name_digest(name)) for name in names)


# ------------------------------------------------------------------ equal keys, equal names


def test_one_instant_has_one_name_in_every_zone() -> None:
    at = datetime(2025, 3, 30, 1, 0, tzinfo=UTC)
    there = datetime(2025, 3, 30, 2, 0, tzinfo=timezone(timedelta(hours=1)))
    assert lock_name("slot", at) == lock_name("slot", there)
    assert lock_name("slot", at) != lock_name("slot", at.replace(tzinfo=None))
    assert lock_name("slot", datetime(2025, 3, 30)) != lock_name("slot", date(2025, 3, 30))


def test_the_repeated_hour_is_two_instants_when_aware_and_one_text_when_naive() -> None:
    first = datetime(2025, 10, 26, 2, 30, tzinfo=AutumnNight())
    second = first.replace(fold=1)
    assert lock_name("slot", first) != lock_name("slot", second)
    assert lock_name("slot", second) == lock_name("slot", datetime(2025, 10, 26, 1, 30, tzinfo=UTC))
    naive = datetime(2025, 10, 26, 2, 30)
    assert lock_name("slot", naive) == lock_name("slot", naive.replace(fold=1))


def test_a_zone_without_offset_is_naive_as_python_says() -> None:
    class Nowhere(AutumnNight):
        def utcoffset(self, moment: datetime | None) -> Any:
            return None

    assert lock_name("slot", time(1, tzinfo=Nowhere())) == lock_name("slot", time(1))
    aware = time(13, tzinfo=timezone(timedelta(hours=1)))
    assert lock_name("slot", aware) == lock_name("slot", time(12, tzinfo=UTC))
    assert lock_name("slot", aware) != lock_name("slot", time(12))


def test_decimals_that_are_equal_share_a_name() -> None:
    for one, other in [("1.10", "1.1"), ("1E+2", "100"), ("-0.0", "0"), ("1.0E-40", "1E-40")]:
        assert lock_name("price", Decimal(one)) == lock_name("price", Decimal(other))
    assert lock_name("price", -0.0) == lock_name("price", 0.0)


def test_enums_count_as_the_value_a_serializer_makes_of_them() -> None:
    assert lock_name("f", Paid.YES) == lock_name("f", "yes")
    assert lock_name("f", Level.HIGH) == lock_name("f", 3)
    assert lock_name("f", Colour.CRIMSON) == lock_name("f", Colour.RED) == "f:!e(Colour.RED)"
    assert lock_name(Paid.YES, 1) == "yes:1"


def test_subclasses_of_text_and_numbers_count_as_what_they_hold() -> None:
    class Shouted(str):
        def __str__(self) -> str:
            return self.upper()

        __repr__ = __str__

    class Odd(int):
        def __repr__(self) -> str:
            return "odd"

        __str__ = __repr__

    assert lock_name("f", Shouted("a b")) == lock_name("f", "a b")
    assert lock_name("f", Shouted("ab")) == lock_name("f", "ab")
    assert lock_name("f", Odd(5)) == lock_name("f", 5)


def test_a_proxy_model_names_the_same_row_as_its_concrete_model() -> None:
    assert lock_name("pay", row("shop.paid", 5, concrete="shop.order")) == "pay:!shop.order:5"


def test_django_values_are_named_by_what_they_identify() -> None:
    from django.contrib.auth.models import User
    from django.db.models import IntegerChoices, TextChoices
    from django.utils.functional import SimpleLazyObject
    from django.utils.safestring import mark_safe

    class State(TextChoices):
        PAID = "paid", "Paid"

    class Step(IntegerChoices):
        LAST = 9, "Last"

    assert lock_name("f", State.PAID) == "f:paid"
    assert lock_name("f", Step.LAST) == "f:9"
    assert lock_name("f", mark_safe("<b>")) == lock_name("f", "<b>")
    assert lock_name("f", User(pk=5)) == "f:!auth.user:5"
    assert lock_name("f", SimpleLazyObject(lambda: User(pk=5))) == "f:!auth.user:5"


# ------------------------------------------------------------------ fit for every store and log


@pytest.mark.parametrize(
    "text",
    [
        "user _name", "\tfoo\n\r", "a\x00b", "\x7f\x85\u2028", "{Test}:x:key", "a{b}c", "{}", "}{",
        "job:*", "[rate][sms]", "a?b", "test\\name", '"', "'", "../x", "a,b", "100%", "#", "見",
    ],
)  # fmt: skip
def test_no_input_puts_a_brace_wildcard_space_or_control_character_into_a_name(text: str) -> None:
    """So no input picks a hash slot, matches a pattern, forges a log line or leaves a path."""
    for name in (lock_name("f", text), lock_name(text, 1), lock_name("f", text.encode())):
        assert re.fullmatch(r"[A-Za-z0-9_.~@%!'():,#=-]+", name)
        assert name.isascii()
    assert family_of(lock_name(text, 1)) == text


def test_long_names_keep_a_readable_head_and_a_digest_of_the_whole() -> None:
    one, other = lock_name("file", "a" * 300), lock_name("file", "a" * 299 + "b")
    assert one != other
    assert re.fullmatch("file:a{100,}#[0-9a-f]{32}", one)
    assert len(one) <= NAME_LIMIT
    assert family_of(one) == "file"
    assert one.endswith("#" + name_digest("file:" + "a" * 300))
    longest = lock_name("file", "a" * (NAME_LIMIT - len("file:")))
    assert len(longest) == NAME_LIMIT
    assert "#" not in longest


def test_a_long_family_is_cut_on_its_own_so_that_it_stays_one_family() -> None:
    family = "f" * (FAMILY_LIMIT + 1)
    short, long = lock_name(family, 1), lock_name(family, "a" * 300)
    assert family_of(short) == family_of(long) == lock_name(family)
    assert family_of(short) != family_of(lock_name(family + "f", 1))
    assert len(family_of(short)) <= FAMILY_LIMIT
    assert len(long) <= NAME_LIMIT
    assert lock_name("f" * FAMILY_LIMIT) == "f" * FAMILY_LIMIT


@pytest.mark.parametrize("shift", range(12))
def test_a_long_name_is_never_cut_inside_a_character(shift: int) -> None:
    name = lock_name("f", "a" * shift + "😀" * 100)
    assert re.fullmatch("f:a*😀+#[0-9a-f]{32}", readable(name))
    assert len(name) > NAME_LIMIT - 15
    assert len(lock_name("f", b"\x80" * shift + b"a\x80" * 100)) <= NAME_LIMIT


def test_no_text_can_imitate_a_digest() -> None:
    long = lock_name("file", "a" * 300)
    head, _, digest = long.partition("#")
    assert lock_name("file", head.removeprefix("file:") + "#" + digest) != long


def test_readable_decodes_for_people_and_keeps_what_could_deceive_them() -> None:
    assert readable(lock_name("user", "Zoë 見😀")) == "user:Zoë 見😀"
    assert (
        readable(lock_name("user", "a\x00b\n\u2028\u202ec")) == "user:a%00b%0A%E2%80%A8%E2%80%AEc"
    )
    assert readable(lock_name("blob", b"a\xff")) == "blob:!b(a%FF)"
    assert readable("order:42") == "order:42"


def test_family_of_reads_any_text_back() -> None:
    for family in ["order", "42", "a:b", "a'b", "'", "見", "a\nb", "#", "!true", "100%25"]:
        assert family_of(lock_name(family)) == family_of(lock_name(family, 42)) == family


# ------------------------------------------------------------------ refused, with position and cure


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        (None, TypeError, "is None; leave it out"),
        ("", ValueError, "is empty"),
        (b"", ValueError, "is empty"),
        (row("shop.order", None), ValueError, "unsaved shop.order.*save it first"),
        (row("shop.line", (1, None)), ValueError, "unsaved shop.line"),
        (row("shop.tag", ""), ValueError, "shop.tag whose primary key is empty"),
        (object(), TypeError, "has the type object; pass what identifies it"),
        (Colour, TypeError, "has the type EnumType"),
        (len, TypeError, "has the type builtin_function_or_method"),
        ([1], TypeError, "is a list; pass its elements as parts of their own"),
        ({"a": 1}, TypeError, "is a dict"),
        (float("nan"), ValueError, "is nan"),
        (float("inf"), ValueError, "is inf"),
        (Decimal("nan"), ValueError, "not a finite number"),
        (Decimal("-inf"), ValueError, "not a finite number"),
        ("\ud800", ValueError, "lone surrogate"),
        (2**2048, ValueError, "more than 2048 bits"),
        (bytearray(b"x"), TypeError, r"pass bytes\(value\)"),
        (PurePosixPath("/x"), TypeError, r"pass str\(path\)"),
        (1j, TypeError, "has the type complex"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), ValueError, "years 1 to 9999"),
    ],
)  # fmt: skip
def test_what_cannot_be_stable_is_refused_with_its_position(
    part: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=rf"part 3 of lock name \('order', …\) .*{words}"):
        lock_name("order", 1, part)


def test_lazy_text_is_refused_because_it_changes_with_the_language() -> None:
    from django.utils.functional import SimpleLazyObject
    from django.utils.translation import gettext_lazy

    with pytest.raises(TypeError, match="lazy text changes with the language"):
        lock_name("order", gettext_lazy("Order"))
    with pytest.raises(TypeError, match="has the type SimpleLazyObject"):
        lock_name("order", SimpleLazyObject(lambda: "Order"))


def test_a_refusal_does_not_show_the_value() -> None:
    """Key parts may be secrets; messages end in logs."""

    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(TypeError) as caught:
        lock_name("order", Secret())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("family", [None, 42, "", True, b"order", ("order",)])
def test_the_family_must_be_text(family: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"the family \(part 1 .*fixed word"):
        lock_name(family, 42)


def test_a_name_needs_a_family() -> None:
    with pytest.raises(TypeError, match="needs a family"):
        lock_name()
