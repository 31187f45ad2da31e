"""Task call → lock name. Pure: the same call gives the same name in every process.

Three ways to say what a call works on, one small class each: all of its arguments (the default),
a template over them, or a callable. How values are spelled is `lockapp.naming`'s business.
"""

from __future__ import annotations

import inspect
import string
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lockapp.naming import bind_call, call_name, lock_name

Parts = Sequence[object]
KeyOption = str | Callable[..., Parts] | None
"""What a user may give as ``key=``."""


class Call(NamedTuple):
    """One call of a task, without the task itself among the arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def bound(self) -> dict[str, Any]:
        """Return argument name → value, defaults applied."""
        return bind_call(self.function, self.args, self.kwargs)


class Parameters:
    """The parameters of one function, for its calls."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._names = _in_order(tuple(signature.parameters.values()))
        self._after_task = _in_order(tuple(signature.parameters.values())[1:])

    def of(self, call: Call) -> dict[str, Any]:
        """Return argument name → value, defaults applied.

        Most calls give everything in order, as a message does; those need no signature, which
        takes a worker longer than all else about a name.

        Raises:
            TypeError: the arguments don't fit.
        """
        names = self._after_task if type(call.function) is types.MethodType else self._names
        if names is not None and not call.kwargs and len(names) == len(call.args):
            return dict(zip(names, call.args, strict=True))
        return call.bound()


def _in_order(parameters: tuple[inspect.Parameter, ...]) -> tuple[str, ...] | None:
    """Return the names of parameters that can all be given in order; else None."""
    plain = all(
        it.kind is it.POSITIONAL_OR_KEYWORD and it.name not in ("self", "cls") for it in parameters
    )
    return tuple(it.name for it in parameters) if plain else None


class Key(ABC):
    """How a call is named."""

    @abstractmethod
    def name(self, task_name: str, call: Call) -> str:
        """Return the lock name of a call.

        Raises:
            TypeError, ValueError: the call doesn't fit the signature, or a value has no stable
                spelling; the message names it.
        """


class AllArguments(Key):
    """The task's name and every argument: equal calls exclude each other."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._parameters = Parameters(signature)

    def name(self, task_name: str, call: Call) -> str:
        """See Key."""
        return call_name(task_name, self._parameters.of(call))


class PartsOf(Key):
    """What a callable makes of the arguments: the parts of a lock name, family first."""

    def __init__(self, function: Callable[..., Parts]) -> None:
        self.function = function

    def name(self, task_name: str, call: Call) -> str:
        """See Key."""
        parts = self.function(*call.args, **call.kwargs)
        if isinstance(parts, str) or not isinstance(parts, Sequence):
            # Text would become one family per order, and its colons would be escaped: it would
            # never meet lock("order", 42), which is what its author means.
            raise TypeError(
                f"the key callable of {task_name} must return the parts of a lock name as a "
                f'tuple, such as ("order", order_id), not {type(parts).__name__}'
            )
        return lock_name(*parts)


class Template(Key):
    """``"order:{order_id}"``: what `lock("order", order_id)` locks elsewhere.

    Each part between colons is either fixed text or one field, whose value keeps its type. A part
    that mixed several values could spell two different calls alike.
    """

    def __init__(self, text: str, signature: inspect.Signature) -> None:
        """Read a template.

        Raises:
            ValueError: it has no fixed family, or a part or field of another form.
            TypeError: a field is none of the function's parameters.
        """
        self.text = text
        self._parameters = Parameters(signature)
        self.parts = [_read_part(part, text) for part in text.split(":")]
        if not isinstance(self.parts[0], str):
            raise ValueError(
                f"key {text!r} must start with fixed text, its family, as in 'order:{{order_id}}'"
            )
        for part in self.parts:
            if isinstance(part, list):
                _refuse_unknown(part[0], text, signature)

    def name(self, task_name: str, call: Call) -> str:
        """See Key."""
        arguments = self._parameters.of(call)
        return lock_name(
            *[
                part if isinstance(part, str) else self._value(part, arguments, call)
                for part in self.parts
            ]
        )

    def _value(self, path: list[str], arguments: dict[str, Any], call: Call) -> object:
        root = path[0]
        if root in arguments:
            value = arguments[root]
        elif root in call.kwargs:  # taken up by **kwargs
            value = call.kwargs[root]
        else:
            raise TypeError(f"key {self.text!r}: the call has no argument {root!r}")
        for attribute in path[1:]:
            value = getattr(value, attribute)
        if value is None:
            field = ".".join(path)
            raise TypeError(f"key {self.text!r}: {field} is None, which names nothing to lock")
        return value


def make_key(key: KeyOption, signature: inspect.Signature) -> Key:
    """Return the key that ``key=`` asks for.

    Raises:
        TypeError, ValueError: it makes no sense for a function of this signature.
    """
    if key is None:
        return AllArguments(signature)
    if isinstance(key, str):
        return Template(key, signature)
    if callable(key):
        return PartsOf(key)
    raise TypeError(
        "key must be a template such as 'order:{order_id}', a callable that returns the parts of "
        f"a name, or None, not {type(key).__name__}"
    )


def _read_part(part: str, template: str) -> str | list[str]:
    """Return fixed text as text and a field as its dotted path."""
    shown = f"part {part!r} of key {template!r}"
    if not part:
        raise ValueError(f"key {template!r} has an empty part")
    if "{" not in part and "}" not in part:
        return part
    try:
        pieces = list(string.Formatter().parse(part))
    except ValueError as error:
        raise ValueError(f"{shown} can't be read: {error}; a field ends before the colon") from None
    if len(pieces) != 1 or pieces[0][0]:
        raise ValueError(
            f"{shown} must be either fixed text or one field; put a colon between them"
        )
    _, field, spec, conversion = pieces[0]
    path = (field or "").split(".")
    if spec or conversion or not all(name.isidentifier() for name in path):
        raise ValueError(
            f"{shown} must name an argument or an attribute of one, as in 'order:{{order.pk}}'; "
            "for anything else give a callable"
        )
    if any(name.startswith("_") for name in path[1:]):
        raise ValueError(f"{shown} reaches for a private attribute")
    return path


def _refuse_unknown(root: str, template: str, signature: inspect.Signature) -> None:
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if root in ("self", "cls"):
        raise TypeError(f"key {template!r}: {root} says where the task runs, not what it works on")
    if root not in kinds and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        known = ", ".join(name for name in kinds if name not in ("self", "cls")) or "none"
        raise TypeError(f"key {template!r}: no parameter {root!r}; there are: {known}")
