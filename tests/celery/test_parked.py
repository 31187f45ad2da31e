"""Parked messages (`on_contention="rerun"`): whose arguments the extra run has, and their place.

Each test runs Celery's tracer with the request of a message, in the order that matters.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.app.task import Context
from celery.signals import task_revoked

from lockapp.celery import was_skipped
from lockapp.celery.slot import Slot, parked
from lockapp.exceptions import EngineError
from lockapp.handler import locks
from tests.celery.deliveries import Deliveries, Message, held
from tests.celery.test_deliveries import unavailable


class Index:
    """A task that brings something up to date, and what its bodies were called with."""

    def __init__(self, deliveries: Deliveries, name: str = "index", **options: Any) -> None:
        self.deliveries = deliveries
        self.name = name
        self.versions: list[str] = []
        self.flaky = False

        def index(task: Any, version: str) -> str:
            self.versions.append(version)
            if self.flaky and not task.request.retries:
                raise task.retry(countdown=0)
            return version

        locked = {"key": "index", "on_contention": "rerun", **options}
        self.task = deliveries.task(name, bind=True, **locked)(index)

    def park(self, version: str = "first", **more: Any) -> Message:
        """Have a message park, while another one runs."""
        with held("index", task=self.name, task_id="another"):
            assert self.deliver(version, **more).state == "RETRY"
        return self.deliveries.take()

    def deliver(self, version: str, **more: Any) -> Any:
        """Deliver a message."""
        return self.deliveries.deliver(self.task, version, **more)

    def back(self, message: Message, **more: Any) -> Any:
        """Deliver what was sent."""
        return self.deliver(message.args[0], task_id=message.id, note=message.note, **more)

    @property
    def taken(self) -> bool:
        """Whether a message holds the place."""
        return parked(locks["default"], self.name, "index").taken()


@pytest.fixture
def index(deliveries: Deliveries) -> Index:
    """The task."""
    return Index(deliveries)


class TestArguments:
    """The extra run has the latest arguments, whoever brought them."""

    def test_another_task_with_the_same_key_leaves_its_own(self, deliveries: Deliveries) -> None:
        """What it was called with means something else."""
        one, other = Index(deliveries, "one"), Index(deliveries, "other")
        first = one.park("of one")
        second = other.park("of the other")
        assert one.back(first).value == "of one"
        assert other.back(second).value == "of the other"

    def test_a_parked_run_that_retries_keeps_them(self, index: Index) -> None:
        """Its retry is called with what it was called with."""
        index.flaky = True
        first = index.park("old")
        with held("index", task_id="another"):
            assert was_skipped(index.deliver("new").value)
        assert index.back(first).state == "RETRY"
        assert index.back(index.deliveries.take(), retries=1).value == "new"
        assert index.versions == ["new", "new"]

    def test_a_newer_run_leaves_its_own_for_the_parked_one(self, index: Index) -> None:
        """It found the lock free before the parked one came back, which must not undo its work."""
        first = index.park("old")
        assert index.deliver("new").value == "new"
        assert index.back(first).value == "new"

    def test_a_retry_that_is_turned_away_leaves_none(self, index: Index) -> None:
        """It is older than what is parked, whose place is taken."""
        first = index.park("new")
        with held("index", task_id="another"):
            assert was_skipped(index.deliver("old", retries=1).value)
        assert index.back(first).value == "new"


class TestPlace:
    """The place of the parked message: others rely on it, and leave without a run."""

    def test_its_message_does_not_expire(self, index: Index) -> None:
        """What was left with it would be lost."""
        soon = datetime.now(UTC) + timedelta(seconds=60)
        assert index.park(expires=soon.isoformat()).options.get("expires") is None
        assert index.taken

    def test_is_given_up_when_its_message_is_revoked(self, index: Index) -> None:
        """The next copy parks."""
        message = index.park()
        task_revoked.send(
            sender=index.task, request=Context({"lockapp": message.note, "id": message.id}),
            terminated=False, signum=None, expired=False,
        )  # fmt: skip
        assert not index.taken
        index.park("second")

    @pytest.mark.parametrize("broken", ["cache", "engine"])
    def test_is_given_up_when_its_message_ends_without_a_run(
        self, index: Index, monkeypatch: pytest.MonkeyPatch, broken: str
    ) -> None:
        """By an error on the way to it."""
        message = index.park()
        with held("index", task_id="another"), monkeypatch.context() as patch:
            if broken == "engine":
                patch.setattr(Slot, "keep", failing)
            else:
                patch.setattr("lockapp.celery.policies.Latest", failing)
            assert index.back(message).state == "FAILURE"
        assert not index.taken

    def test_is_kept_while_its_message_comes_back(
        self, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also when the engine can't be asked to prolong it."""
        message = index.park()
        with held("index", task_id="another"), monkeypatch.context() as patch:
            patch.setattr(Slot, "keep", unavailable)
            assert index.back(message).state == "RETRY"
        again = index.deliveries.take()
        assert again.note["parked"] == message.note["parked"]
        assert index.taken
        assert index.back(again).value == "first"

    def test_that_could_not_be_taken_fails_no_message_that_was_sent(
        self, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is on its way, and takes the place when it is back."""
        with held("index", task_id="another"):
            with monkeypatch.context() as patch:
                patch.setattr(Slot, "take", unavailable)
                assert index.deliver("first").state == "RETRY"
            assert not index.taken
            assert index.back(index.deliveries.take()).state == "RETRY"
            assert index.taken
        assert index.back(index.deliveries.take()).value == "first"
        assert not index.taken


def failing(*_: object, **__: object) -> Any:
    """Stand in for a call that ends in an error of the server."""
    raise EngineError("out of memory")
