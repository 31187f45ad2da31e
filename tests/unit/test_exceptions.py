"""exceptions: fields, messages, and the way between processes."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator

import pytest

from lockapp import exceptions
from lockapp.core.values import HolderState
from lockapp.exceptions import (
    AlreadyHeld,
    EngineUnavailable,
    LeaseLost,
    LockAppError,
    NotAcquired,
    NotHeld,
    ScriptError,
    WaitTimeout,
)

HOLDER = HolderState(7, 1, 2, 3, 4, 5, True, {"host": "a", "why": "b"})


def family(of: type[LockAppError]) -> Iterator[type[LockAppError]]:
    yield of
    for child in of.__subclasses__():
        yield from family(child)


ALL = list(family(LockAppError))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle_with_message_and_fields(cls: type[LockAppError], protocol: int) -> None:
    """Celery sends them from worker to caller."""
    error = cls("what happened", name="order:1", holder=HOLDER, waited=1.5, note=None)
    twin = pickle.loads(pickle.dumps(error, protocol))
    assert type(twin) is cls
    assert (str(twin), twin.fields) == (str(error), error.fields)
    assert twin.holder == HOLDER
    assert copy.copy(error).fields == error.fields


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_errors_keep_message_and_fields_through_json(cls: type[LockAppError]) -> None:
    """As Celery carries them: the arguments as JSON, and the class called with them."""
    holder = {"holder": HOLDER} if issubclass(cls, NotAcquired) else {}
    error = cls("what happened", name="order:1", waited=1.5, note=None, **holder)
    twin = cls(*json.loads(json.dumps(error.args)))
    assert (str(twin), twin.fields) == (str(error), error.fields)
    assert (str(error), repr(error)) == ("what happened", f"{cls.__name__}('what happened')")
    again = cls(*json.loads(json.dumps(twin.args)))
    assert again.fields == error.fields


def test_what_json_could_not_carry_leaves_the_message() -> None:
    """Celery then sends its repr; a holder of an unknown shape is unknown."""
    assert NotAcquired("busy", "{'holder': <object>}").fields == {}
    assert NotAcquired("busy", {"name": "a", "holder": {"colour": "red"}}).holder is None


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_docstring_is_the_default_message(cls: type[LockAppError]) -> None:
    """One sentence, no line breaks."""
    assert cls.__doc__
    assert str(cls()).endswith(".")
    assert "\n" not in str(cls())
    assert pickle.loads(pickle.dumps(cls())).message == cls().message


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_tree_in_the_module_names_every_class(cls: type[LockAppError]) -> None:
    """What is drawn is what there is."""
    assert exceptions.__doc__
    assert cls.__name__ in exceptions.__doc__


def test_errors_are_caught_where_a_caller_would_expect_them() -> None:
    """Beside their own branch."""
    assert issubclass(WaitTimeout, TimeoutError)
    assert issubclass(WaitTimeout, NotAcquired)
    assert issubclass(AlreadyHeld, RuntimeError)
    assert issubclass(NotHeld, RuntimeError)
    assert not issubclass(LeaseLost, NotHeld)
    assert not issubclass(EngineUnavailable, NotAcquired)
    assert not issubclass(EngineUnavailable, OSError)


def test_no_class_shadows_a_builtin() -> None:
    """`from lockapp.exceptions import *` must change the meaning of nothing."""
    import builtins

    assert [cls.__name__ for cls in ALL if hasattr(builtins, cls.__name__)] == []


def test_a_field_that_is_not_there_is_an_attribute_error() -> None:
    """With the class and the field named."""
    with pytest.raises(AttributeError, match="LeaseLost has no field 'holder'"):
        LeaseLost("x", name="n").holder  # noqa: B018


@pytest.mark.parametrize(
    ("reason", "sent"),
    [("connect", False), ("reset", True), ("timeout", True), ("transient", False),
     ("refused", False)],
)  # fmt: skip
def test_whether_a_request_may_have_taken_effect_follows_from_the_reason(
    reason: str, sent: bool
) -> None:
    """What decides between a tombstone and none."""
    assert EngineUnavailable("x", reason=reason).sent is sent


def test_a_script_error_says_where() -> None:
    """File, line and the server's words."""
    error = ScriptError("x", script="acquire.lua", line=3, detail="nil")
    assert (error.script, error.line, error.detail) == ("acquire.lua", 3, "nil")
