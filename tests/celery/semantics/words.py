"""What a cell of the table can say. Each word stands in the page, and has the check behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from lockapp.celery import was_skipped
from tests.celery.conftest import get
from tests.celery.semantics import BRIEF_TTL_S, PASSING_TTL_S, VALUE
from tests.celery.semantics.scene import Scene
from tests.timing import wait_until


class Fate(Enum):
    """What becomes of the lock: words for people, and the kind of event that ends the lease."""

    NEVER = ("never taken", None)
    UNLIMITED = ("none: copies that run are not limited", None)
    GIVEN_BACK = ("given back when the body ends", "released")
    SIGTERM = ("given back by the child, which SIGTERM ends", "released")
    KEPT = ("kept by the one that runs, until its body ends", "released")
    ABANDONED = ("free as soon as the child is gone", "abandoned")
    TTL = ("free within its `ttl`", "expired")
    LATE = ("given back once the engine answers, or free within its `ttl`", "released")
    TAKEN = ("free for others at once", "forced")

    @property
    def words(self) -> str:
        """As the page says it."""
        return self.value[0]

    @property
    def ending(self) -> str | None:
        """How the engine recorded the end of the first lease; None: there was no lease."""
        return self.value[1]

    def check(self, scene: Scene) -> None:
        """Compare the lock after the event with these words, and let through who still waits."""
        if self in (Fate.NEVER, Fate.UNLIMITED):
            assert scene.state() is None
        elif self is Fate.KEPT:
            assert not scene.run.told("leave"), "the body has ended"
            assert scene.holding_fence() == scene.first_fence()
        elif self is Fate.GIVEN_BACK:
            # Not a moment later: who has the result of one run may want the next one to run.
            assert scene.holding_fence() != scene.first_fence()
        else:
            limit_s = BRIEF_TTL_S + 1 if self is Fate.TTL else SOON_S
            wait_until(
                lambda: scene.holding_fence() != scene.first_fence(),
                limit_s=limit_s,
                what=self.words,
            )
        scene.run.open()
        if self is Fate.KEPT:
            wait_until(
                lambda: scene.holding_fence() != scene.first_fence(), limit_s=15, what="its end"
            )


class Place(Enum):
    """What becomes of a message's place in the queue, and how the engine recorded its end."""

    STARTED = ("given up when the body starts", {"released"})
    WAITS = ("kept by the copy, as long as it waits", {"released"})
    DROPPED = ("given up when a worker drops the message", {"released"})
    EXPIRES = ("over with `expires`, or when a worker drops the message", {"released", "expired"})
    UNDONE = ("given up at once", {"released"})
    TTL = ("free within `queued_ttl`", {"expired"})
    NONE = ("sent without one", set())

    @property
    def words(self) -> str:
        """As the page says it."""
        return str(self.value[0])

    @property
    def endings(self) -> set[str]:
        """How the engine may have recorded the end of the first one; empty: there was none."""
        return set(self.value[1])

    def check(self, scene: Scene) -> None:
        """Compare the place after the event with these words."""
        if self in (Place.TTL, Place.WAITS):
            assert scene.place() is not None, "it is over already"
        if self is Place.WAITS:
            return
        if self in (Place.STARTED, Place.NONE):
            assert scene.place() is None
        else:
            limit_s = PASSING_TTL_S + 1 if self is Place.TTL else SOON_S
            wait_until(lambda: scene.place() is None, limit_s=limit_s, what=self.words)
        if self is Place.NONE:
            assert scene.endings_of_place() == []


SOON_S = 3.0
"""What "at once" may take on a busy machine; a tenth of the ttl of the tasks that it is said of."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task's result is."""

    words: str
    check: Callable[[Any], None]


def _is(value: object) -> Callable[[Any], None]:
    def check(result: Any) -> None:
        assert get(result) == value

    return check


def _skip(result: Any) -> None:
    assert was_skipped(get(result))


def _value_and_skip(result: Any) -> None:
    values = get(result)
    assert VALUE in values
    assert sorted(map(was_skipped, values)) == [False, True]


def _nothing(result: Any) -> None:
    assert not result.ready()


def error(kind: type[BaseException], words: str = "") -> Outcome:
    """Return the outcome of a task that fails, by name or in other words."""

    def check(result: Any) -> None:
        with pytest.raises(kind):
            get(result)

    return Outcome(words or f"`{kind.__name__}`", check)


THE_BODYS = Outcome("what the body returned", _is(VALUE))
SKIPPED = Outcome("a value that `was_skipped()` knows", _skip)
VALUE_AND_SKIP = Outcome("the value of one, the skip of the other", _value_and_skip)
OF_THE_OTHER = Outcome("that of the task in its place", _is("of the other"))
OF_THE_WAITING = Outcome("that of the one that waits, once", _is(VALUE))
OF_THE_RUNNING = Outcome("that of the one that runs", _is(VALUE))
NOTHING = Outcome("none", _nothing)
