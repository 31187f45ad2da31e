"""One argument of a call, nested or not → one piece of a lock name.

Invariant: as in `lockapp.core.encoding`; two arguments share a spelling exactly when a task can't
tell them apart after the broker has carried them.

Not here: binding a call to its signature and joining the pieces (see `lockapp.naming`).
"""

from __future__ import annotations

from typing import Any

from lockapp.core.encoding import Refused, encode_scalar, encode_word

DEEPEST = 32  # levels of lists, dicts and sets
_CONTAINERS = (dict, list, tuple, set, frozenset)


def encode_argument(value: Any, around: tuple[int, ...] = ()) -> str:
    """Return one argument of a call: as a part, and also None, empty and nested values.

    A list equals a tuple, because a message serializer makes them so; dicts and sets are sorted by
    the spelling of their keys and elements, at every depth.

    Args:
        value: what the call was given.
        around: identities of the containers that this value lies in.

    Raises:
        Refused: a value inside has no stable spelling; `where` leads to it.
    """
    if value is None:
        return "!none"
    kind = type(value)
    if not issubclass(kind, _CONTAINERS):
        return encode_scalar(value)
    if id(value) in around:
        raise Refused("contains itself")
    if len(around) == DEEPEST:
        raise Refused(f"is nested deeper than {DEEPEST} levels")
    around = (*around, id(value))
    if issubclass(kind, dict):
        return f"!m({','.join(sorted(_encode_items(value, around)))})"
    if issubclass(kind, list | tuple):
        pieces = [_encode_inner(item, f"[{at}]", around) for at, item in enumerate(value)]
        return f"!l({','.join(pieces)})"
    members = {_encode_inner(item, " element", around) for item in value}
    return f"!s({','.join(sorted(members))})"


def _encode_items(value: dict[Any, object], around: tuple[int, ...]) -> list[str]:
    items = []
    for key, item in value.items():
        if not issubclass(type(key), str):
            raise Refused(
                f"has a key of type {type(key).__name__}; use text keys, because JSON turns "
                "every other key into text on its way through the broker",
                TypeError,
            )
        try:
            word = encode_word(key)
        except Refused as refusal:
            raise refusal.inside(" key") from None
        items.append(f"{word}={_encode_inner(item, f'[{str.__str__(key)!r}]', around)}")
    return items


def _encode_inner(value: object, step: str, around: tuple[int, ...]) -> str:
    try:
        return encode_argument(value, around)
    except Refused as refusal:
        raise refusal.inside(step) from None
