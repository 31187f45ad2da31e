"""Parts of a business key, or the arguments of a call, → one lock name.

Invariant: different keys give different names and equal keys equal names, everywhere; a value that
can't keep that promise is refused at the call, with its position or argument named. The spelling of
each value is in `lockapp.core.encoding`; docs/reference/names.md has the table. It is a frozen
contract: releases that run side by side must agree on every name.

Names are ASCII without spaces, control characters, braces or wildcards, at most NAME_LIMIT
characters long, and compared exactly. A long one keeps a readable head and ends in ``#`` and the
digest of the whole, which no text can imitate.

Not here: how a name becomes a storage key (prefix, shard, hash tag). No Django is imported; a model
instance is recognised by its `_meta` and its `pk`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

from lockapp.core.arguments import encode_argument
from lockapp.core.encoding import Refused, encode_part, encode_word, is_plain

NAME_LIMIT = 200  # characters
FAMILY_LIMIT = 120  # characters of the encoded family; leaves room for a head and a digest
DIGEST_BYTES = 16
_SMALL = 2**63  # ints below it take the short way; encode_part knows the true limit

_escapes = re.compile("(?:%[0-9A-F]{2})+")


def lock_name(*parts: object) -> str:
    """Join the parts of a business key into one lock name.

    ``lock_name("order", 42)`` is ``order:42``; ``lock_name("order", "42")`` is ``order:'42'``.

    Args:
        *parts: the family (text that is not empty), then what tells this lock from others of its
            family: text, int, bool, float, Decimal, UUID, date, datetime, time, timedelta, bytes,
            an enum member or a saved model instance.

    Returns:
        At most NAME_LIMIT ASCII characters.

    Raises:
        TypeError: a part is None, a container or of a type without a stable spelling.
        ValueError: a part is empty, not finite, not valid text or an unsaved instance.
    """
    pieces: list[str] = []
    part: Any
    for part in parts:
        kind = type(part)
        if kind is str and is_plain(part):
            pieces.append(part)
        elif kind is int and pieces and -_SMALL < part < _SMALL:
            pieces.append(str(part))
        else:
            pieces.append(_encode_at(len(pieces), parts))
    name = ":".join(pieces)
    if not pieces:
        raise TypeError('lock_name() needs a family: lock_name("order", 42)')
    return name if len(name) <= FAMILY_LIMIT else _limited(name)


def call_name(prefix: str, arguments: Mapping[str, object]) -> str:
    """Return the lock name of a call: the prefix and each argument by name, sorted.

    ``call_name("shop.report", {"day": "mon", "customer": 5})`` is
    ``shop.report:customer=5:day=mon``. Without arguments it is ``lock_name(prefix)``.

    Args:
        prefix: the family, usually the task's name.
        arguments: name → value as bound by `bind_call`, or a selection of it. None, empty and
            nested values are allowed here; a list equals a tuple.

    Raises:
        TypeError: a value has a type without a stable spelling; the message names the argument.
        ValueError: a value is not finite, not valid text, an unsaved instance or nested too deep.
    """
    pieces = []
    for argument, value in arguments.items():
        try:
            pieces.append(f"{encode_word(argument)}={encode_argument(value)}")
        except Refused as refusal:
            raise refusal.error(
                f"argument {argument!r}{refusal.where} of the call {_shown(prefix)} "
                f"{refusal.reason}"
            ) from None
    name = ":".join([_encode_at(0, (prefix,)), *sorted(pieces)])
    return name if len(name) <= FAMILY_LIMIT else _limited(name)


def bind_call(
    function: Callable[..., object],
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
) -> dict[str, object]:
    """Bind a call to the function's true signature, so that equal calls look equal.

    ``f(1)``, ``f(x=1)`` and, where 1 is the default, ``f()`` give the same result. The true
    signature is found behind bound methods, partials and wrappers made with `functools.wraps`
    (Celery's autoretry is one).

    Args:
        function: the task's ``run``, or any callable with a signature.
        args: positional arguments; None means none.
        kwargs: keyword arguments; None means none.

    Returns:
        Argument name → value, defaults applied, sorted by name. A first parameter ``self``, or
        ``cls`` that holds a class, is dropped: it says where the code runs, not what it works on.

    Raises:
        TypeError: the arguments don't fit; the message names the function and the argument.
    """
    called = getattr(function, "__qualname__", None) or type(function).__name__
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise TypeError(f"{called} has no signature to bind arguments to; name the key") from None
    try:
        bound = signature.bind(*(args or ()), **(kwargs or {}))
    except TypeError as error:
        raise TypeError(f"the call of {called} does not fit its signature: {error}") from None
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    first = next(iter(arguments), None)
    if first == "self" or (first == "cls" and isinstance(arguments[first], type)):
        del arguments[first]
    return dict(sorted(arguments.items()))


def family_of(name: str) -> str:
    """Return the first part of a lock name, decoded.

    The inverse of what `lock_name` was given, except that a family of more than FAMILY_LIMIT
    encoded characters comes back as its head, ``#`` and its digest: still one per family.
    """
    family = name.split(":", 1)[0]
    if family[:1] == "'":
        family = family.strip("'")
    return unquote_to_bytes(family).decode("utf-8", "replace") if "%" in family else family


def readable(name: str) -> str:
    """Return the name for people's eyes: escapes decoded, except those of unprintable characters.

    Control characters, line separators and the marks that reverse or hide text stay escaped, so a
    name can't forge a log line or a table row. Two names may read alike; never look one up by this.
    """
    return _escapes.sub(_decoded, name) if "%" in name else name


def name_digest(name: str) -> str:
    """Return 32 hexadecimal digits that stand for the name where equality is not exact.

    For unique columns: a database may compare text without regard to case or trailing spaces, and
    would take two locks for one.

    Source: BLAKE2b (RFC 7693) with 16 bytes, over the ASCII bytes of the name.
    """
    return blake2b(name.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _encode_at(index: int, parts: tuple[object, ...]) -> str:
    part = parts[index]
    try:
        if index == 0 and part is not None and not issubclass(type(part), str):
            raise Refused(f"has the type {type(part).__name__}", TypeError)
        return encode_part(part)
    except Refused as refusal:
        if index == 0:
            text = f"the family (part 1 of a lock name) {refusal.reason}"
            text += '; start with a fixed word, as in lock_name("order", 42)'
        else:
            text = f"part {index + 1} of lock name ({_shown(parts[0])}, …) {refusal.reason}"
        raise refusal.error(text) from None


def _shown(family: object) -> str:
    text = repr(family)  # repr: a family can hold control characters
    return text if len(text) <= 80 else f"{text[:79]}…"


def _limited(name: str) -> str:
    """Cut what is too long: first the family on its own, then the whole."""
    family, colon, rest = name.partition(":")
    short = _cut(family, family, FAMILY_LIMIT) + colon + rest
    return _cut(short, name, NAME_LIMIT)


def _cut(text: str, digested: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    at = limit - 1 - 2 * DIGEST_BYTES
    # Never end inside an escape, nor inside a character of several bytes.
    if "%" in text[at - 2 : at]:
        at = text.index("%", at - 2)
    while text[at] == "%" and text[at + 1] in "89AB" and text[at - 3] == "%":
        at -= 3
    return f"{text[:at]}#{name_digest(digested)}"


def _decoded(match: re.Match[str]) -> str:
    text = unquote_to_bytes(match[0]).decode("utf-8", "surrogateescape")
    return "".join([c if c.isprintable() else _escaped(c) for c in text])


def _escaped(character: str) -> str:
    return "".join([f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape")])
