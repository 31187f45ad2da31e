"""Second deliveries of a message, and engines and brokers that go down in the middle of one.

Each test runs Celery's tracer with the request of a message, in the order that matters.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery.result import AsyncResult
from celery.utils import uuid
from django.core.cache.backends.locmem import LocMemCache
from kombu.exceptions import OperationalError

from lockapp import semaphore
from lockapp.celery import current_lease
from lockapp.celery.message import FIRST_PAUSE_S, Note
from lockapp.exceptions import EngineUnavailable
from lockapp.handler import locks
from tests.celery.conftest import drop_reports
from tests.celery.deliveries import Deliveries, held
from tests.servers import free_port
from tests.timing import scaled


class TestNote:
    """What a message carries from one delivery to the next."""

    def test_what_is_in_the_way_has_a_patience_of_its_own(self) -> None:
        """Others in the way, then itself: both the time and the pauses start anew."""
        note = Note("pay", "order:1").later(100).later(101).later(110)
        assert (note.since, note.times, note.own) == (100, 3, False)
        own = note.later(200, own=True).later(201, own=True)
        assert (own.since, own.times, own.own) == (200, 2, True)
        other = own.later(300)
        assert (other.since, other.times, other.own) == (300, 1, False)

    def test_what_was_delivered_anew_begins_anew(self) -> None:
        """It has run in between; the places that it holds are its own all the same."""
        note = Note("pay", "order:1", parked="p", queued="q").later(100, own=True, looked=2)
        assert note.afresh() == Note("pay", "order:1", parked="p", queued="q")

    def test_the_first_pause_is_short_and_the_next_ones_double(self) -> None:
        """Each spread by a fifth, up to the longest."""
        note = Note("pay", "order:1")
        for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 1.5, 1.5):
            note = note.later(100)
            assert 0.8 * pause_s <= note.pause_s(1.5) <= 1.2 * pause_s
        assert FIRST_PAUSE_S == 0.25

    def test_a_redelivered_message_has_its_whole_patience(self, deliveries: Deliveries) -> None:
        """However long it was turned away before it ran."""
        pay = deliveries.returning("paid", "pay", on_contention="retry", wait=60)
        old = {"task": "pay", "name": "pay", "since": time.time() - 100, "times": 15}
        with held("pay"):
            assert deliveries.deliver(pay, note=old).state == "FAILURE"
            assert deliveries.deliver(pay, note=old, again=True).state == "RETRY"
        assert deliveries.take().note["times"] == 1


class TestItsEarlierDelivery:
    """A message that comes while it is, or has been, at work itself."""

    def test_is_found_among_several_holders(self, deliveries: Deliveries) -> None:
        """Also when it is not the one that a refusal names."""
        render = deliveries.returning("rendered", "render", limit=2)
        mine = uuid()
        with (
            held(semaphore("render", limit=2, ttl=20), task_id="another"),
            held(semaphore("render", limit=2, ttl=30), task_id=mine),
        ):
            assert deliveries.deliver(render, task_id=mine).state == "IGNORED"
        assert deliveries.take().note["own"]
        assert deliveries.result(mine) == ("PENDING", None)

    @pytest.mark.parametrize("policy", ["skip", "raise", "retry", "rerun", "wait", "join"])
    def test_has_succeeded_and_the_copy_ends_quietly_while_another_runs(
        self, deliveries: Deliveries, policy: str
    ) -> None:
        """Whatever the policy; its outcome stays, and nothing of it is sent again."""
        waits = {"wait": 0.1} if policy in ("wait", "join") else {}
        pay = deliveries.returning("paid", "pay", on_contention=policy, **waits)
        mine = uuid()
        assert deliveries.deliver(pay, task_id=mine, chain=deliveries.chain).value == "paid"
        assert deliveries.take().task == "follow"
        with held("pay", task_id="another"):
            ended = deliveries.deliver(pay, task_id=mine, chain=deliveries.chain, again=True)
        assert ended.state == "IGNORED"
        assert deliveries.app.sent == []
        assert deliveries.result(mine) == ("SUCCESS", "paid")

    @pytest.mark.parametrize("options", [{}, {"remember": 60}, {"limit": 2}, {"scope": "queued"}])
    def test_has_succeeded_and_nothing_of_it_happens_again(
        self, deliveries: Deliveries, options: dict[str, Any]
    ) -> None:
        """Nothing is in the way of the copy; a result that is remembered is not its own, either."""
        pay = deliveries.returning("paid", "pay", **options)
        mine = uuid()
        assert deliveries.deliver(pay, task_id=mine, chain=deliveries.chain).value == "paid"
        deliveries.take()
        ended = deliveries.deliver(pay, task_id=mine, chain=deliveries.chain, again=True)
        assert ended.state == "IGNORED"
        assert deliveries.app.sent == []

    def test_does_not_expire_with_the_copy(self, deliveries: Deliveries) -> None:
        """A copy that comes back has no `expires`: Celery would say REVOKED of what runs."""
        pay = deliveries.returning("paid", "pay")
        mine, soon = uuid(), datetime.now(UTC) + timedelta(seconds=60)
        with held("pay", task_id=mine):
            deliveries.deliver(pay, task_id=mine, expires=soon.isoformat())
        assert deliveries.take().options.get("expires") is None

    @pytest.mark.parametrize("policy", ["wait", "join"])
    def test_is_not_queued_behind(self, deliveries: Deliveries, policy: str) -> None:
        """The copy leaves its process at once, and what the message is for happens once."""
        runs: list[int] = []
        begun, over = threading.Event(), threading.Event()

        @deliveries.task("pay", on_contention=policy, wait=30)
        def pay() -> str:
            runs.append(1)
            begun.set()
            assert over.wait(scaled(20))
            return "paid"

        mine = uuid()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(deliveries.deliver, pay, task_id=mine, chain=deliveries.chain)
            try:
                assert begun.wait(scaled(5))
                copy = deliveries.deliver(pay, task_id=mine, chain=deliveries.chain)
                assert copy.state == "IGNORED"
                assert not first.done()
            finally:
                over.set()
            assert first.result(scaled(5)).value == "paid"
        (back,) = deliveries.sent(pay)
        assert deliveries.deliver(
            pay, task_id=mine, note=back.note, chain=deliveries.chain
        ).state == ("IGNORED")
        assert len(deliveries.sent(deliveries.follow)) == len(runs) == 1

    def test_holds_the_place_in_the_queue_no_more(self, deliveries: Deliveries) -> None:
        """A copy that comes back takes none from a new call, which is sent and has its own id."""
        feed = deliveries.returning(
            "fed", "feed", scope="queued_and_running", on_contention="retry"
        )
        feed.delay()
        first = deliveries.take()
        with held("feed", task="feed", task_id=first.id):
            copy = deliveries.deliver(feed, task_id=first.id, note=first.note)
            assert copy.state == "IGNORED"
            back = deliveries.take()
            assert back.id == first.id
            assert not back.note["queued"]
            assert feed.delay().id != first.id
        assert deliveries.take().note["queued"]

    def test_is_left_alone_when_the_broker_is_down(self, deliveries: Deliveries) -> None:
        """The broker keeps a message that it was not told to forget; else the error is loud."""
        offline = Deliveries(f"redis://127.0.0.1:{free_port()}/0")
        late = offline.returning("ran", "late", acks_late=True)
        early = offline.returning("ran", "early")
        with held("late", task_id="it"), held("early", task_id="it"):
            rejected = offline.deliver(late, task_id="it")
            failed = offline.deliver(early, task_id="it")
        offline.close()
        assert rejected.state == "REJECTED"
        assert rejected.value.requeue
        assert (failed.state, type(failed.value)) == ("FAILURE", OperationalError)


class TestEngineDown:
    """The engine that holds the locks can't be asked."""

    def test_a_body_that_may_runs_without_a_permit(self, deliveries: Deliveries) -> None:
        """Nor is the engine asked for the message's earlier delivery."""
        render = deliveries.returning(
            "rendered", "render", limit=3, using="down", on_unavailable="open"
        )
        assert deliveries.deliver(render).value == "rendered"
        drop_reports(locks["down"])

    def test_a_redelivered_message_comes_back(self, deliveries: Deliveries) -> None:
        """Its earlier delivery may be at work, whose outcome stands. A new one fails."""
        pay = deliveries.returning("paid", "pay", using="down")
        mine = uuid()
        assert deliveries.deliver(pay, task_id=mine, again=True).state == "IGNORED"
        assert deliveries.take().note["own"]
        assert deliveries.result(mine) == ("PENDING", None)
        assert deliveries.deliver(pay).state == "FAILURE"

    def test_a_redelivered_message_comes_back_when_it_can_not_look_for_its_twin(
        self, deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its body has not begun, so nothing of it has failed."""
        render = deliveries.returning("rendered", "render", limit=2)
        monkeypatch.setattr(type(locks["default"]), "show", unavailable)
        mine = uuid()
        assert deliveries.deliver(render, task_id=mine, again=True).state == "IGNORED"
        assert deliveries.take().id == mine
        assert deliveries.result(mine) == ("PENDING", None)


class TestSoftLimit:
    """A soft time limit that strikes before the body runs ends the run, as it does within."""

    @pytest.mark.parametrize(
        ("of", "options"),
        [
            ("state", {}),
            ("get", {"on_contention": "rerun"}),
            ("touch", {"on_contention": "rerun"}),
            ("get", {"remember": 60}),
            ("set", {"remember": 60}),
        ],
    )
    def test_is_not_taken_for_an_error_of_what_it_struck(
        self,
        deliveries: Deliveries,
        monkeypatch: pytest.MonkeyPatch,
        of: str,
        options: dict[str, Any],
    ) -> None:
        """Asking the backend; finding or keeping the latest arguments; a result in the cache."""
        refresh = deliveries.returning("ran", "refresh", **options)
        mine, note = uuid(), None
        if "on_contention" in options:
            with held("refresh"):
                deliveries.deliver(refresh, task_id=mine)
            note = deliveries.take().note

        def struck(*_: object, **__: object) -> Any:
            raise SoftTimeLimitExceeded

        if of == "state":
            monkeypatch.setattr(AsyncResult, "state", property(struck))
        else:
            monkeypatch.setattr(LocMemCache, of, struck)
        if of == "touch":
            with held("refresh"):
                ended = deliveries.deliver(refresh, task_id=mine, note=note)
        else:
            ended = deliveries.deliver(refresh, task_id=mine, note=note, again=of == "state")
        assert ended.state == "FAILURE"
        assert isinstance(ended.value, SoftTimeLimitExceeded)


def test_a_body_called_within_a_body_does_not_change_what_the_message_locks(
    deliveries: Deliveries,
) -> None:
    """The message's retry locks what its first delivery locked."""
    names: list[str] = []

    @deliveries.task("nest", bind=True, key="nest:{value}")
    def nest(self: Any, value: str, deep: bool = True) -> None:
        names.append(current_lease().name)
        if deep and not self.request.retries:
            nest.run("inner", False)
            raise self.retry(countdown=0)

    assert deliveries.deliver(nest, "outer").state == "RETRY"
    assert deliveries.deliver_sent(nest, retries=1).state == "SUCCESS"
    assert names == ["nest:outer", "nest:inner", "nest:outer"]


def unavailable(*_: object, **__: object) -> Any:
    """Stand in for a call that the engine did not answer."""
    raise EngineUnavailable("down", alias="default", reason="timeout")
