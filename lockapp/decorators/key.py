"""The parts of ``@view_lock`` and a request → one lock name.

Invariant: whatever a client sends, a name is made of the values asked for or the request is refused
with 400: no empty part, no text that runs over into its neighbour, no call of a method and no
private attribute. A mistake of the developer is an error at decoration where it can be seen there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.core.exceptions import BadRequest, ImproperlyConfigured
from django.http import HttpRequest

from lockapp.naming import lock_name

_field = re.compile(
    r"\{ (?P<root> [^\W\d]\w* ) (?P<path> (?: \.[^\W\d]\w* | \[[^\[\]{}]+\] )* )"
    r" (?: : (?P<convert> \w+ ) )? \}",
    re.VERBOSE,
)
_step = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")
_integer = re.compile(r"-?[0-9]{1,18}", re.ASCII)

_MISSING: Any = object()


class Call:
    """One call of a view: where the fields of a template are looked up."""

    def __init__(
        self,
        view: Callable[..., Any],
        request: HttpRequest,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.view = view
        self.request = request
        self.args = args
        self.kwargs = kwargs
        self.user: Any = _MISSING  # set beforehand where loading it has to be awaited

    def root(self, name: str) -> Any:
        """Return what a field starts at: a URL argument, the request or the user."""
        if name in self.kwargs:
            return self.kwargs[name]
        if name == "request":
            return self.request
        if name == "user":
            return self.load_user()
        return self._positional(name)

    def load_user(self) -> Any:
        """Return the request's user."""
        if self.user is _MISSING:
            try:
                self.user = self.request.user
            except AttributeError:
                raise ImproperlyConfigured(
                    "@view_lock: the request has no user; AuthenticationMiddleware sets it"
                ) from None
        return self.user

    def _positional(self, name: str) -> Any:
        try:
            bound = inspect.signature(self.view).bind_partial(self.request, *self.args)
        except (TypeError, ValueError):
            return _MISSING
        bound.apply_defaults()
        return bound.arguments.get(name, _MISSING)


class _Field(NamedTuple):
    """A template of exactly one field."""

    text: str
    root: str
    steps: tuple[tuple[str, str], ...]  # (attribute, "") or ("", item)
    convert: str

    def read(self, call: Call) -> Any:
        value = call.load_user() if self.root == "request.user" else call.root(self.root)
        if value is _MISSING:
            raise ImproperlyConfigured(
                f"@view_lock: {self.text}: the view was called without {self.root!r}; "
                f"it got {sorted(call.kwargs)}"
            )
        for attribute, item in self.steps:
            value = self._attribute(value, attribute) if attribute else self._item(value, item)
        if _is_empty(value):
            cure = "; put @login_required above @view_lock" if "user" in self.root else ""
            raise BadRequest(f"@view_lock: {self.text} is empty{cure}")
        if callable(value) and not hasattr(value, "_meta"):
            raise ImproperlyConfigured(
                f"@view_lock: {self.text} is a method, and templates call nothing; "
                "give a callable (request, *args, **kwargs) instead"
            )
        return _CONVERT[self.convert](value, self.text) if self.convert else value

    def _attribute(self, value: Any, name: str) -> Any:
        try:
            return getattr(value, name)
        except AttributeError:
            kind = type(value).__name__
            raise ImproperlyConfigured(
                f"@view_lock: {self.text}: {kind} has no attribute {name!r}"
            ) from None

    def _item(self, value: Any, name: str) -> Any:
        try:
            if isinstance(value, Sequence) and name.isdecimal():
                return value[int(name)]
            return value[name]
        except LookupError:
            raise BadRequest(f"@view_lock: {self.text} is missing") from None
        except TypeError:
            raise ImproperlyConfigured(
                f"@view_lock: {self.text}: {type(value).__name__} has no items by name"
            ) from None


class Key:
    """The parts of one ``@view_lock``.

    Raises:
        TypeError, ValueError: a part that can't be part of a name, or no template we understand.
    """

    def __init__(self, parts: tuple[object, ...]) -> None:
        if len(parts) == 1 and callable(parts[0]):
            raise TypeError('@view_lock needs to know what to lock: @view_lock("order", "{pk}")')
        self.parts = [_compile(part) for part in parts]
        self.fields = [part for part in self.parts if type(part) is _Field]
        self.callables = [part for part in self.parts if callable(part)]
        if not parts or not isinstance(self.parts[0], str):
            raise TypeError(
                "@view_lock: the first part is the family, which must be fixed text: "
                '@view_lock("order", "{pk}")'
            )
        fixed = [part for part in self.parts if type(part) is not _Field and not callable(part)]
        name = lock_name(*fixed)  # refuses a constant that can't be part of a name
        self._fixed = name if len(fixed) == len(parts) else ""
        self._needs_user = any(field.root in ("user", "request.user") for field in self.fields)

    def check(self, view: Callable[..., Any]) -> None:
        """Refuse fields that the view's signature rules out.

        Raises:
            ValueError: the view has no such argument.
        """
        if not self.fields or isinstance(view, partial):  # method_decorator's, at each request
            return
        try:
            parameters = inspect.signature(view).parameters
        except (TypeError, ValueError):
            return
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        for field in self.fields:
            if field.root not in {*parameters, "request", "user", "request.user"}:
                raise ValueError(
                    f"@view_lock: {field.text}: the view has no argument {field.root!r}, only "
                    f"{', '.join(parameters)}"
                )

    def name(self, call: Call) -> str:
        """Return the lock name for a call.

        Raises:
            BadRequest: a value is missing, empty or no usable text.
            ImproperlyConfigured: a template asks for what there never is.
            TypeError: a value whose type can't be part of a name.
        """
        return self._fixed or self._joined([self._value(part, call) for part in self.parts])

    async def aname(self, call: Call) -> str:
        """See name(); awaits the user and callables."""
        if self._fixed:
            return self._fixed
        if self._needs_user and hasattr(call.request, "auser"):
            call.user = await call.request.auser()
        values = []
        for part in self.parts:
            value = self._value(part, call)
            values.append(await value if inspect.isawaitable(value) else value)
        return self._joined(values)

    def _value(self, part: Any, call: Call) -> Any:
        if type(part) is _Field:
            return part.read(call)
        return part(call.request, *call.args, **call.kwargs) if callable(part) else part

    def _joined(self, values: list[Any]) -> str:
        for number, value in enumerate(values, 1):
            if _is_empty(value):
                raise BadRequest(f"@view_lock: part {number} is empty")
        try:
            return lock_name(*values)
        except ValueError as error:  # a text or number of the client's that can't be spelled
            raise BadRequest(f"@view_lock: {error}") from error


def view_name(view: Any) -> str:
    """Return a view's name for people."""
    return f"{getattr(view, '__module__', '')}.{getattr(view, '__qualname__', repr(view))}"


def _compile(part: object) -> Any:
    if not isinstance(part, str) or not ("{" in part or "}" in part):
        return part
    found = _field.fullmatch(part)
    if found is None:
        raise ValueError(
            f"@view_lock: {part!r} is no template of exactly one field, such as '{{pk}}', "
            "'{user.pk}' or '{request.POST[cart]:int}'; text beside it is a part of its own"
        )
    root, convert = found["root"], found["convert"] or ""
    steps = [step.groups("") for step in _step.finditer(found["path"])]
    for name in (root, *(attribute for attribute, _ in steps)):
        if name.startswith("_"):
            raise ValueError(f"@view_lock: {part!r}: {name!r} is private")
    if convert and convert not in _CONVERT:
        raise ValueError(
            f"@view_lock: {part!r}: unknown conversion {convert!r}; known: {', '.join(_CONVERT)}"
        )
    if root == "request" and steps[:1] == [("user", "")]:
        root, steps = "request.user", steps[1:]
    if root == "request" and not steps:
        raise ValueError(f"@view_lock: {part!r}: a request is no key; name something of it")
    return _Field(part, root, tuple((attribute, item) for attribute, item in steps), convert)


def _is_empty(value: Any) -> bool:
    if value is None or getattr(value, "is_anonymous", False) is True:
        return True
    return isinstance(value, str | bytes | list | tuple) and not value


def _to_int(value: Any, text: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and _integer.fullmatch(value):
        return int(value)
    raise _unfit(text, "a whole number")


def _to_uuid(value: Any, text: str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _unfit(text, "a UUID") from None


def _to_str(value: Any, text: str) -> str:
    if isinstance(value, str | int | UUID) and not isinstance(value, bool):
        return str(value)
    raise _unfit(text, "text")


def _unfit(text: str, what: str) -> BadRequest:
    return BadRequest(f"@view_lock: {text} is not {what}")


_CONVERT: dict[str, Callable[[Any, str], Any]] = {"int": _to_int, "str": _to_str, "uuid": _to_uuid}
