"""The proof that names are injective: a reader gets from every name what went in.

The reader below is written from docs/reference/names.md, not from the encoder. If reading the name
of a value gives the value's meaning, then no two meanings share a name; and if a value rebuilt from
its meaning has the same name, then equal meanings do.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from typing import Any
from urllib.parse import unquote, unquote_to_bytes
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from lockapp.core.arguments import encode_argument
from lockapp.core.encoding import encode_part
from lockapp.naming import FAMILY_LIMIT, NAME_LIMIT, call_name, family_of, lock_name, readable
from tests.unit.naming_golden import row

Meaning = tuple[Any, ...]
calm = settings(deadline=None)  # a busy machine is no reason to fail


class A(Enum):
    a = 1
    true = 2


class U(Flag):
    a = 1
    b = 2


# ------------------------------------------------------------------ what a value means


def meaning(value: Any) -> Meaning:
    """Return a value that is equal exactly where two arguments count as equal."""
    kind = type(value)
    if kind in (list, tuple):
        return ("list", tuple(map(meaning, value)))
    if kind in (set, frozenset):
        return ("set", frozenset(map(meaning, value)))
    if kind is dict:
        return ("dict", frozenset((key, meaning(item)) for key, item in value.items()))
    if kind is Decimal:
        return ("decimal", Fraction(value))
    if kind is datetime:
        if value.tzinfo is None:
            return ("naive", value.isoformat())
        return ("instant", value - datetime(1970, 1, 1, tzinfo=UTC))
    if kind is time:
        clock = timedelta(0, value.second, value.microsecond, 0, value.minute, value.hour)
        if value.tzinfo is None:
            return ("clock", clock)
        return ("utc clock", clock - value.utcoffset())
    if kind in (A, U):
        return ("enum", kind.__qualname__, value.name if kind is A else value.value)
    if hasattr(value, "_meta"):
        return ("row", value._meta.concrete_model._meta.label_lower, meaning(value.pk))
    return (kind.__name__, value)


# ------------------------------------------------------------------ the reader

_DATE = r"(\d{4}-\d\d-\d\d)"
_CLOCK = r"(\d\d)(\d\d)(\d\d)(?:\.(\d{1,6}))?"
_END = r"(?=[:,)]|$)"
_NUMBER = r"(-?[0-9.]+(?:e-?[0-9]+)?)"


def read_text(text: str) -> str:
    return unquote(text, errors="strict")


def read_clock(*digits: str | None) -> timedelta:
    hour, minute, second, fraction = digits
    micro = int((fraction or "").ljust(6, "0"))
    return timedelta(0, int(second or 0), micro, 0, int(minute or 0), int(hour or 0))


def read_moment(day: str, *digits: str | None) -> datetime:
    return datetime.fromisoformat(day) + read_clock(*digits)


def read_seconds(text: str) -> timedelta:
    return timedelta(microseconds=int(Fraction(text) * 10**6))


SCALARS: list[tuple[str, Any]] = [
    (r"'([^']*)'", lambda text: ("str", read_text(text))),
    (rf"(-?[0-9]+){_END}", lambda text: ("int", int(text))),
    (rf"([A-Za-z0-9_.~@%-]+){_END}", lambda text: ("str", read_text(text))),
    (rf"!none{_END}", lambda: ("NoneType", None)),
    (rf"!true{_END}", lambda: ("bool", True)),
    (rf"!false{_END}", lambda: ("bool", False)),
    (rf"!f{_NUMBER}{_END}", lambda text: ("float", float(text))),
    (rf"!n{_NUMBER}{_END}", lambda text: ("decimal", Fraction(text))),
    (rf"!u([0-9a-f-]{{36}}){_END}", lambda text: ("UUID", UUID(text))),
    (rf"!d{_DATE}{_END}", lambda day: ("date", date.fromisoformat(day))),
    (rf"!w{_DATE}T{_CLOCK}{_END}", lambda *text: ("naive", read_moment(*text).isoformat())),
    (
        rf"!z{_DATE}T{_CLOCK}{_END}",
        lambda *text: ("instant", read_moment(*text) - datetime(1970, 1, 1)),
    ),
    (rf"!c{_CLOCK}{_END}", lambda *text: ("clock", read_clock(*text))),
    (rf"!cz{_NUMBER}{_END}", lambda text: ("utc clock", read_seconds(text))),
    (rf"!p{_NUMBER}{_END}", lambda text: ("timedelta", read_seconds(text))),
    (r"!b\(([^()]*)\)", lambda text: ("bytes", unquote_to_bytes(text))),
    (r"!e\(([^(),]+)\.([^(),.]+)\)", lambda kind, member: ("enum", kind, member)),
    (r"!e\(([^(),]+),([0-9]+)\)", lambda kind, value: ("enum", kind, int(value))),
]
CONTAINERS = {"!l(": ("list", tuple), "!s(": ("set", frozenset), "!m(": ("dict", frozenset)}


def read(text: str, at: int = 0) -> tuple[Meaning, int]:
    """Return what the piece at `at` means and where it ends; exactly one rule must fit."""
    found: list[tuple[Meaning, int]] = []
    for pattern, build in SCALARS:
        if match := re.compile(pattern).match(text, at):
            found.append((build(*match.groups()), match.end()))
    if found[:1] and found[0][0][0] == "int":
        del found[1:]  # what reads like a whole number is one
    if text[at : at + 3] in CONTAINERS:
        kind, collect = CONTAINERS[text[at : at + 3]]
        items, end = read_items(text, at + 3, keyed=kind == "dict")
        found.append(((kind, collect(items)), end))
    if match := re.compile(r"!([\w%]+\.[A-Za-z_%][\w%]*):").match(text, at):
        pk, end = read(text, match.end())
        found.append((("row", read_text(match[1]), pk), end))
    assert len(found) == 1, (text[at:], found)
    return found[0]


def read_items(text: str, at: int, *, keyed: bool) -> tuple[list[Any], int]:
    items: list[Any] = []
    while text[at] != ")":
        at += text[at] == "," and bool(items)
        if keyed:
            key, at = text[at : text.index("=", at)], text.index("=", at) + 1
            item, at = read(text, at)
            items.append((read_text(key), item))
        else:
            item, at = read(text, at)
            items.append(item)
    return items, at + 1


# ------------------------------------------------------------------ values

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "0123456789-_.~@!':=,()#%ab {}T", max_size=12
)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
labels = st.sampled_from(["shop.order", "f1.n", "true.none", "u.b", "e.a", "a.a", "cz.l", "é.m"])
numbers = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-1000, 1000, places=3)
scalars = st.one_of(
    text,
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    numbers,
    st.uuids(),
    st.dates(),
    st.datetimes(),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets),
    st.times(),
    st.times(timezones=offsets),
    st.timedeltas(),
    st.binary(max_size=12),
    st.sampled_from([*A, *U, U.a | U.b]),
)
keys = st.one_of(text.filter(bool), st.integers(), st.uuids())
rows = st.builds(row, labels, keys | st.tuples(keys, keys))
leaves = scalars | st.none() | rows
hashable = st.recursive(scalars | st.none(), lambda inner: st.frozensets(inner, max_size=3))
values = st.recursive(
    leaves | st.frozensets(hashable, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text, inner, max_size=4)
    ),
    max_leaves=8,
)
parts = (scalars | rows).filter(lambda part: part not in ("", b""))


# ------------------------------------------------------------------ the properties


@calm
@given(values)
def test_what_went_into_a_name_can_be_read_out_of_it(value: Any) -> None:
    spelled = encode_argument(value)
    assert read(spelled) == (meaning(value), len(spelled))


@calm
@given(parts)
def test_a_part_is_spelled_like_the_same_argument(part: Any) -> None:
    assert encode_part(part) == encode_argument(part)


@calm
@given(text.filter(bool), st.lists(parts, max_size=4))
def test_the_parts_of_a_name_can_be_read_out_of_it(family: str, rest: list[Any]) -> None:
    name = lock_name(family, *rest)
    if "#" not in name:
        found, at = [], 0
        while at <= len(name):
            piece, end = read(name, at)
            found.append(piece)
            at = end + 1
        assert found == [("str", family), *map(meaning, rest)]
        assert family_of(name) == family
    assert len(name) <= NAME_LIMIT
    assert len(name.partition(":")[0]) <= FAMILY_LIMIT
    assert re.fullmatch(r"[A-Za-z0-9_.~@%!'():,#=-]+", name)
    assert readable(name).isprintable()


@calm
@given(st.dictionaries(text, values, max_size=4))
def test_the_arguments_of_a_call_can_be_read_out_of_its_name(arguments: dict[str, Any]) -> None:
    name = call_name("t", arguments)
    if "#" not in name:
        found, at = {}, 2
        while at <= len(name):
            equals = name.index("=", at)
            found[read_text(name[at:equals])], end = read(name, equals + 1)
            at = end + 1
        assert found == {key: meaning(value) for key, value in arguments.items()}


@calm
@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets), offsets)
def test_an_instant_keeps_its_name_in_every_zone(at: datetime, zone: timezone) -> None:
    assert lock_name("f", at) == lock_name("f", at.astimezone(zone))


@calm
@given(numbers, st.integers(0, 50))
def test_zeros_that_change_nothing_change_no_decimal(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    padded = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert lock_name("f", padded) == lock_name("f", number)


@calm
@given(st.dictionaries(text, values, max_size=5), st.randoms())
def test_the_order_of_a_dict_changes_no_name(arguments: dict[str, Any], chance: Any) -> None:
    shuffled = list(arguments.items())
    chance.shuffle(shuffled)
    assert call_name("t", dict(shuffled)) == call_name("t", arguments)
    assert call_name("t", {"x": dict(shuffled)}) == call_name("t", {"x": arguments})


@calm
@given(st.text(min_size=250, max_size=400), st.text(min_size=250, max_size=400))
def test_long_texts_stay_apart(one: str, other: str) -> None:
    assert (lock_name("f", one) == lock_name("f", other)) == (one == other)
    assert readable(lock_name("f", one)).startswith("f:")
