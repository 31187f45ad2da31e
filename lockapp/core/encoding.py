"""One value → one piece of a lock name: the frozen spelling.

Invariant: the spelling is injective and a pure function of the value. Two values get the same
spelling exactly when the table in docs/reference/names.md calls them equal, in every process, on
every supported Python version and on both sides of a broker. Text is percent-encoded byte by byte
from our own table, numbers come from their exact digits; locale, hash seed, decimal context, time
zone of the process and Python's Unicode tables are never consulted. `tests/unit/golden/names.json`
pins the result: a change here that alters a line of it locks two releases apart.

How it stays injective: text and whole numbers stand bare (text that reads like a number or is
empty is quoted), everything else starts with ``!``, and none of ``! ' : = , ( ) #`` survives
unescaped from text. So a spelling can be read back; the property tests do.

Not here: nested values (see `lockapp.core.arguments`), joining pieces into a name, and its length
(see `lockapp.naming`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~@")
_ESCAPES = tuple(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in range(256))

# Text that stands for itself: safe characters only, and not what a whole number looks like.
is_plain = re.compile(r"(?!-?[0-9]+\Z)[A-Za-z0-9_.~@-]+").fullmatch
_is_integer = re.compile(r"-?[0-9]+").fullmatch

# Beyond 640 digits CPython may refuse to print an int, depending on an environment variable.
LARGEST_INT = 2**2048
_POINT_DIGITS = 20  # decimals use a point, or trailing zeros, up to here and an exponent beyond


class Refused(Exception):
    """A value without a stable spelling.

    Args:
        reason: what is wrong and how to cure it; follows "part 2 …" in the final message.
        error: the builtin that the caller should see.
        where: the way into a nested argument, such as ``['spam'][0]``.
    """

    def __init__(
        self,
        reason: str,
        error: type[TypeError] | type[ValueError] = ValueError,
        where: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.where = where

    def inside(self, step: str) -> Refused:
        """Return the same refusal as seen from one level further out."""
        return Refused(self.reason, self.error, step + self.where)


def escape(raw: bytes) -> str:
    """Return the bytes with everything but letters, digits and ``_ . - ~ @`` as ``%XX``."""
    return "".join([_ESCAPES[byte] for byte in raw])


def encode_word(value: str) -> str:
    """Return text percent-encoded; code points as given, so NFC and NFD stay apart.

    Raises:
        Refused: the text has a lone surrogate and so no UTF-8.
    """
    if is_plain(value):
        return str.__str__(value)
    try:
        return escape(str.encode(value, "utf-8"))
    except UnicodeEncodeError:
        raise Refused(
            "contains a lone surrogate, which has no UTF-8; decode the text with its true encoding"
        ) from None


def encode_text(value: str) -> str:
    """Return text as a piece of a name; quoted where it is empty or reads like a whole number."""
    word = encode_word(value)
    return f"'{word}'" if not word or _is_integer(word) else word


def encode_part(value: object) -> str:
    """Return one part of a lock name.

    Raises:
        Refused: empty, None, unsaved, a container, or of a type that has no stable spelling.
    """
    if value is None:
        raise Refused("is None; leave it out or say what it stands for with a word", TypeError)
    if issubclass(type(value), dict | list | tuple | set | frozenset):
        raise Refused(
            f"is a {type(value).__name__}; pass its elements as parts of their own", TypeError
        )
    piece = encode_scalar(value)
    if piece in ("''", "!b()"):
        raise Refused("is empty; it would name the same lock for everything that has no value")
    return piece


def encode_scalar(value: object) -> str:
    """Return one value that is neither None nor a container; empty text is ``''``.

    Raises:
        Refused: the value has no stable spelling.
    """
    # By type() and not isinstance(): a lazy proxy claims the class of what it wraps, and its text
    # may change with the active language.
    kind = type(value)
    for known, encode in _ENCODERS:
        if issubclass(kind, known):
            return encode(value)
    return _encode_instance(value)


def _encode_bool(value: bool) -> str:
    return "!true" if value else "!false"


def _encode_int(value: int) -> str:
    if not -LARGEST_INT < value < LARGEST_INT:
        raise Refused("is a number of more than 2048 bits; pass a digest of it")
    return int.__repr__(value)  # also right for IntEnum, whose own text differs by Python version


def _encode_float(value: float) -> str:
    if not math.isfinite(value):
        raise Refused(f"is {float(value)!r}, which equals nothing; pass a finite number")
    return "!f" + repr(float(value) + 0.0).replace("e+", "e")  # + 0.0: -0.0 equals 0.0


def _encode_decimal(value: Decimal) -> str:
    sign, digits, exponent = Decimal.as_tuple(value)  # exact, whatever the decimal context
    if not isinstance(exponent, int):
        raise Refused("is a Decimal that is not a finite number; pass a finite one")
    written = "".join(map(str, digits))
    figures = written.rstrip("0")
    if not figures:
        return "!n0"
    exponent += len(written) - len(figures)
    if 0 <= exponent <= _POINT_DIGITS:
        figures += "0" * exponent
    elif -_POINT_DIGITS <= exponent < 0:
        padded = figures.zfill(1 - exponent)
        figures = f"{padded[:exponent]}.{padded[exponent:]}"
    else:
        figures += f"e{exponent}"
    return f"!n{'-' if sign else ''}{figures}"


def _encode_uuid(value: UUID) -> str:
    hexes = f"{value.int:032x}"
    return f"!u{hexes[:8]}-{hexes[8:12]}-{hexes[12:16]}-{hexes[16:20]}-{hexes[20:]}"


def _encode_datetime(value: datetime) -> str:
    offset = value.utcoffset()  # honours `fold`
    wall = datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second,
        value.microsecond,
    )  # fmt: skip
    if offset is None:
        return f"!w{_day(wall)}T{_clock(wall)}"
    try:
        instant = wall - offset
    except OverflowError:
        raise Refused("is an instant outside the years 1 to 9999 in UTC") from None
    return f"!z{_day(instant)}T{_clock(instant)}"


def _encode_date(value: date) -> str:
    return f"!d{_day(value)}"


def _encode_time(value: time) -> str:
    offset = value.utcoffset()
    if offset is None:
        return f"!c{_clock(value)}"
    since_midnight = timedelta(
        hours=value.hour,
        minutes=value.minute,
        seconds=value.second,
        microseconds=value.microsecond,
    )
    return f"!cz{_seconds(since_midnight - offset)}"


def _encode_timedelta(value: timedelta) -> str:
    return f"!p{_seconds(value)}"


def _day(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _clock(value: time | datetime) -> str:
    # No colons: they separate parts.
    clock = f"{value.hour:02}{value.minute:02}{value.second:02}"
    return f"{clock}.{value.microsecond:06}".rstrip("0") if value.microsecond else clock


def _seconds(value: timedelta) -> str:
    whole, fraction = divmod(abs(timedelta.__floordiv__(value, timedelta(microseconds=1))), 10**6)
    text = f"{whole}.{fraction:06}".rstrip("0") if fraction else str(whole)
    return f"-{text}" if value < timedelta(0) else text


def _encode_bytes(value: bytes) -> str:
    return f"!b({escape(value)})"


def _encode_enum(value: Enum) -> str:
    # Enums that are also text or numbers never come here: a serializer makes them their value.
    kind = encode_word(type(value).__qualname__)
    if isinstance(value, Flag):
        return f"!e({kind},{value.value})"  # names of combined flags differ by Python version
    return f"!e({kind}.{encode_word(value.name)})"


# The order matters where one type is a subclass of another: bool of int, datetime of date, and
# enums of the value type they mix in.
_ENCODERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, encode_text),
    (bool, _encode_bool),
    (int, _encode_int),
    (UUID, _encode_uuid),
    (datetime, _encode_datetime),
    (date, _encode_date),
    (Decimal, _encode_decimal),
    (float, _encode_float),
    (bytes, _encode_bytes),
    (time, _encode_time),
    (timedelta, _encode_timedelta),
    (Enum, _encode_enum),
)


def _encode_instance(value: object) -> str:
    """Spell a saved model instance as label and key; anything else has no stable spelling."""
    label = None
    if not isinstance(value, type):
        # The concrete model: a proxy or deferred instance is the same row.
        concrete = getattr(getattr(value, "_meta", None), "concrete_model", None)
        label = getattr(getattr(concrete, "_meta", None), "label_lower", None)
    if not isinstance(label, str):
        raise Refused(f"has the type {type(value).__name__}; {_cure(value)}", TypeError)
    key: Any = value.pk  # type: ignore[attr-defined]
    try:
        if issubclass(type(key), tuple):  # a composite primary key
            spelled = f"!l({','.join([encode_part(item) for item in key])})"
        else:
            spelled = encode_part(key)
    except Refused as refusal:
        if key is None or (issubclass(type(key), tuple) and None in key):
            raise Refused(f"is an unsaved {label} (pk is None); save it first") from None
        raise Refused(f"is a {label} whose primary key {refusal.reason}", refusal.error) from None
    return f"!{encode_word(label)}:{spelled}"


def _cure(value: object) -> str:
    if type(value).__name__ == "__proxy__":
        return "lazy text changes with the language; pass the value behind it"
    if hasattr(type(value), "__fspath__"):
        return "pass str(path), made absolute or relative by your own rule"
    if isinstance(value, bytearray | memoryview):
        return "pass bytes(value)"
    if hasattr(type(value), "__index__"):
        return "pass int(value)"
    return "pass what identifies it: text, a number, a UUID, a date or a saved model instance"
