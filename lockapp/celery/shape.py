"""What can be a task's body: refused at decoration, with the name of what to write instead."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from celery import Task
from celery.local import Proxy


def refuse_unfit(function: Any) -> None:
    """Raise TypeError for what can't be locked, naming what can."""
    if issubclass(type(function), Proxy | Task):
        raise TypeError(
            "@single_instance goes below the decorator that makes the task: "
            "@shared_task first, @single_instance under it"
        )
    if isinstance(function, type):
        raise TypeError(f"decorate the run() method of {function.__name__}, not the class")
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(
            f"@single_instance goes below @{type(function).__name__}, next to the function"
        )
    if not callable(function):
        raise TypeError(
            "@single_instance takes its arguments by name, "
            f"as in @single_instance(key={function!r})"
            if isinstance(function, str)
            else f"@single_instance decorates a function, not {function!r}"
        )
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__qualname__", repr(inner))
    shapes = (inner, type(inner).__call__)  # a function, or an object that is called like one
    if any(map(inspect.iscoroutinefunction, shapes)):
        raise TypeError(
            f"{name} is async: Celery would not run its body. Write a sync task "
            "that calls it, for example by asyncio.run()"
        )
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in shapes):
        raise TypeError(
            f"{name} is a generator: its body would run after the lock was released. Return a list"
        )


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function; its annotations may exist for type checkers only."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
