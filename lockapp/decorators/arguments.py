"""What ``@view_lock`` may be given, and put on: judged at decoration.

Invariant: what makes no sense is an error at import, with the argument named and the cure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.views import View

from lockapp.core.duration import to_ms
from lockapp.core.options import OnUnavailable, on_unavailable_option
from lockapp.decorators.key import view_name
from lockapp.ways import UNSET, Unset

Hook = Callable[[HttpRequest, Any], Any]


def refuse_shape(view: Any, by: str = "@view_lock") -> None:
    """Refuse what is no view, or would run after the lock is released; ``by`` the decorator.

    Raises:
        TypeError: the message says what to decorate instead.
    """
    if isinstance(view, type):
        raise TypeError(
            f"{by} can't decorate the class {view.__name__}; use "
            f"@method_decorator({by[1:]}(…), name='dispatch'), or decorate as_view()"
        )
    if not callable(view):
        raise TypeError(f"{by} decorates views, not {view!r}")
    inner = view.func if isinstance(view, partial) else view
    shapes = (inner, type(inner).__call__)  # a function, or an object that is called like one
    if any(inspect.isasyncgenfunction(it) or inspect.isgeneratorfunction(it) for it in shapes):
        raise TypeError(
            f"{by}: {view_name(view)} is a generator, which runs after the lock is released"
        )
    if inspect.isfunction(inner) and inner.__code__.co_varnames[:1] in (("self",), ("cls",)):
        raise TypeError(f"{by}: {view_name(view)} is a method; use @method_decorator({by[1:]}(…))")


def is_async(view: Callable[..., Any]) -> bool:
    """Whether calling the view gives a coroutine."""
    if iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None)):  # noqa: B004
        return True
    # dispatch() of an async class-based view is a plain method that returns a coroutine.
    method = view.func if isinstance(view, partial) else view
    instance = getattr(method, "__self__", None)
    return (
        isinstance(instance, View)
        and getattr(method, "__name__", "") == "dispatch"
        and instance.view_is_async
    )


def lock_options(
    ttl: float | timedelta | None, max_hold: float | timedelta | Unset | None, why: str
) -> dict[str, Any]:
    """Return the options of the lock that say something.

    Raises:
        TypeError, ValueError: a number that makes no sense, by its name.
    """
    options: dict[str, Any] = {"why": why}
    if ttl is not None:
        to_ms(ttl, "ttl")
        options["ttl"] = ttl
    if not isinstance(max_hold, Unset):
        if max_hold is not None:
            to_ms(max_hold, "max_hold")
        options["max_hold"] = max_hold
    return options


def unavailable_option(given: Hook | OnUnavailable | None, fenced: bool) -> OnUnavailable | Unset:
    """Return what the lock does when the engine can't be asked; a hook means that it raises.

    Raises:
        ValueError: an unknown word, or one that runs a fenced view without a lock.
    """
    if given is None or callable(given):
        return "raise" if fenced or given else UNSET
    if fenced and on_unavailable_option(given) != "raise":
        raise ValueError(
            f"@view_lock: without a lock there is nothing to fence: on_unavailable={given!r} and "
            "fenced=True exclude each other"
        )
    return on_unavailable_option(given)


def methods_option(given: Collection[str] | None, by: str = "@view_lock") -> frozenset[str] | None:
    """Return the HTTP methods that are locked, or None for all.

    Raises:
        TypeError, ValueError: no names, or none.
    """
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise TypeError(f'{by}: methods must be names in a list: ["POST"], not {given!r}')
    if not given:
        raise ValueError(f"{by}: methods is empty, so nothing would be locked")
    return frozenset(name.upper() for name in given)
