"""The parts of ``@single_flight.cached`` and a call → one lock name.

Each part is fixed, or text that is exactly one field, ``"{order.pk}"``, whose value keeps its type.
Without parts the function's dotted name and all of its arguments make the name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from lockapp.naming import bind_call, call_name, lock_name

FIELD = re.compile(r"\{([^\W\d]\w*(?:\.[^\W\d_]\w*)*)\}")


class CallKey:
    """How the calls of one function are named."""

    def __init__(self, function: Callable[..., Any], parts: tuple[object, ...]) -> None:
        """Read the parts.

        Raises:
            ValueError: text that has braces and is not exactly one field; a field as family.
            TypeError: a field is none of the function's parameters.
        """
        self.function = function
        self.called = f"{function.__module__}.{function.__qualname__}"
        self.parts = [_read(part) for part in parts]
        if parts and not isinstance(parts[0], str):
            raise TypeError(f"the first part is the family, fixed text, not {parts[0]!r}")
        if parts and isinstance(self.parts[0], list):
            raise ValueError(f"the first part is the family, fixed text, not the field {parts[0]}")
        known = inspect.signature(function).parameters
        takes_any = any(known[name].kind is inspect.Parameter.VAR_KEYWORD for name in known)
        for part in self.parts:
            if isinstance(part, list) and part[0] not in known and not takes_any:
                raise TypeError(
                    f"{self.called} has no parameter {part[0]!r}; there are: {', '.join(known)}"
                )

    def name_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the lock name of a call.

        Raises:
            TypeError, ValueError: the call doesn't fit the signature, or a value can't be part of
                a name; the message says which.
        """
        arguments = bind_call(self.function, args, kwargs)
        if not self.parts:
            return call_name(self.called, arguments)
        return lock_name(*[self._value(part, arguments, kwargs) for part in self.parts])

    def _value(self, part: object, arguments: dict[str, Any], kwargs: Mapping[str, Any]) -> object:
        if not isinstance(part, list):
            return part
        root, *attributes = part
        value = arguments[root] if root in arguments else kwargs[root]
        for attribute in attributes:
            value = getattr(value, attribute)
        return value


def _read(part: object) -> object:
    """Return a fixed part as it is and a field as its dotted path."""
    if not isinstance(part, str) or ("{" not in part and "}" not in part):
        return part
    field = FIELD.fullmatch(part)
    if not field:
        raise ValueError(
            f"{part!r} must be fixed text or exactly one field, as in '{{order.pk}}'; give what "
            "stands beside it as a part of its own"
        )
    return field[1].split(".")
