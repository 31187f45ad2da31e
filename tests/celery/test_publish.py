"""Copies of what waits already are not sent. Real worker, real broker, several processes."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.beat import ScheduleEntry, Scheduler
from celery.contrib.django.task import DjangoTask
from celery.schedules import schedule
from django.db import transaction
from kombu import Connection
from kombu.exceptions import OperationalError

from lockapp import signals
from lockapp.celery import LockTask, single_instance, was_skipped
from lockapp.celery.message import Note
from lockapp.celery.places import Places
from lockapp.celery.turned import TurnedAway
from lockapp.core.values import HolderState
from lockapp.handler import locks
from lockapp.naming import lock_name
from tests.celery import brokers
from tests.celery.brokers import Broker
from tests.celery.conftest import PREFIX, Run, get, get_all
from tests.celery.publish_tasks import PARKED, QUEUE, define
from tests.celery.worker import ROOT, Worker
from tests.servers import RedisServer, free_port
from tests.timing import pause, scaled, wait_until

SCOPES = ["queued", "either", "both"]

_parked = itertools.count()


@pytest.fixture(scope="module")
def taker(new_worker: Callable[..., Worker]) -> Iterator[Worker]:
    """The worker that runs these tasks; it takes from parked queues when told to."""
    with new_worker(QUEUE, app="tests.celery.publish_app", children=3) as started:
        yield started


@pytest.fixture
def engine_settings(settings: Any, redis_server: RedisServer) -> Iterator[dict[str, Any]]:
    """Locks where the workers have theirs. To be changed before the first message is sent."""
    given: dict[str, Any] = {
        "ENGINE": "lockapp.engines.redis.RedisEngine",
        "LOCATION": redis_server.url,
        "OPTIONS": {"prefix": PREFIX},
    }
    settings.LOCKAPP = {"default": given}
    yield given
    locks.close_all()


@pytest.fixture
def new_sender(
    engine_settings: dict[str, Any], broker: Broker, results_url: str
) -> Iterator[Callable[..., Celery]]:
    """Make an application of this process that knows the tasks, by default on the broker."""
    made = []

    def make(**options: Any) -> Celery:
        app = Celery(
            "sender",
            backend=results_url,
            set_as_current=False,
            amqp=brokers.amqp_with(broker.prefix),
            task_cls="lockapp.celery:LockTask",
            **{"broker": broker.url, **options},
        )
        app.conf.task_default_queue = QUEUE
        app.conf.task_queues = [brokers.queue_of(broker.prefix, QUEUE)]
        define(app)
        made.append(app)
        return app

    yield make
    for app in made:
        # Results that a cycle keeps alive until the servers are gone would unsubscribe.
        app.backend.remove_pending_result = lambda result: result
        app.close()
        app.backend.client.connection_pool.disconnect()


@pytest.fixture
def sender(new_sender: Callable[..., Celery]) -> Celery:
    """One that works."""
    return new_sender()


@dataclass
class Parked:
    """A queue of one test."""

    run: Run
    worker: Worker
    sender: Celery
    name: str

    def send(self, task: str, *args: object, **options: Any) -> Any:
        """Send through the task's class, into this queue; the run comes first."""
        options = {"queue": self.name, **options}
        return self.sender.tasks[task].apply_async((self.run.id, *args), **options)

    def ids(self, task: str, count: int, *args: object) -> list[str]:
        """Send some and return their ids."""
        return [self.send(task, *args).id for _ in range(count)]

    def waiting(self) -> int:
        """How many messages lie in it."""
        with Connection(self.run.broker.url) as connection:
            queue = brokers.queue_of(self.run.broker.prefix, self.name)
            declared = queue.bind(connection.default_channel).queue_declare(passive=False)
            return int(declared[1])

    def open(self) -> None:
        """Have the worker take from it."""
        told = self.run.client.control.add_consumer(
            self.run.broker.queue(self.name), destination=[self.worker.node], reply=True,
            timeout=scaled(10),
        )  # fmt: skip
        assert told, "the worker did not answer"


@pytest.fixture
def parked(run: Run, taker: Worker, sender: Celery) -> Parked:
    """A queue that nobody takes from before it is opened."""
    number = next(_parked)
    assert number < PARKED
    return Parked(run, taker, sender, f"parked{number}")


Send = Callable[..., list[tuple[str, float]]]


@pytest.fixture(scope="module")
def senders(taker: Worker) -> Iterator[list[subprocess.Popen[str]]]:
    """Four processes that send when they are told."""
    surroundings = {**os.environ, **taker.environment}
    surroundings["DJANGO_SETTINGS_MODULE"] = "tests.celery.worker_settings"
    with ExitStack() as stack:
        started = []
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.celery.publish_app"],
                cwd=ROOT,
                env=surroundings,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


@pytest.fixture
def send_from_processes(parked: Parked, senders: list[subprocess.Popen[str]]) -> Send:
    """Send from four processes at once; return the ids that they got, and when they asked."""

    def send(task: str, *, count: int) -> list[tuple[str, float]]:
        for process in senders:
            assert process.stdin is not None
            process.stdin.write(f"{task} {parked.run.id} {parked.name} {count}\n")
            process.stdin.flush()
        told = []
        for process in senders:
            assert process.stdout is not None
            lines = list(itertools.takewhile(lambda line: line != "done\n", process.stdout))
            assert len(lines) == count
            told += [(words[0], float(words[1])) for words in map(str.split, lines)]
        return told

    return send


def place(run: Run, task: str, key: int = 0) -> HolderState | None:
    """Who has the place in the queue."""
    state = run.engine.show(lock_name("queued", task, run.name(key=key)))
    return state.holders[0] if state else None


class TestOneCopyWaits:
    @pytest.mark.parametrize("task", SCOPES)
    def test_of_many_copies_sent_at_once_by_several_processes_one_is_sent(
        self, run: Run, parked: Parked, send_from_processes: Send, task: str
    ) -> None:
        """All of them get its id, and it runs once."""
        ids = {result_id for result_id, _ in send_from_processes(task, count=5)}
        (only,) = ids
        assert parked.waiting() == 1
        parked.open()
        (entered,) = run.wait_told("enter")
        assert entered["id"] == only
        run.open()
        assert get(run.result(only)) == 0

    def test_others_go_their_way(self, run: Run, parked: Parked) -> None:
        """Another key, and another task with the same key, are no copies."""
        sent = [parked.send("either"), parked.send("either", 1), parked.send("queued")]
        assert len({result.id for result in sent}) == 3
        assert parked.waiting() == 3
        parked.open()
        run.open(0)
        run.open(1)
        get_all([run.result(result.id) for result in sent])

    def test_arguments_that_make_no_key_are_refused_where_they_are_given(
        self, parked: Parked, sender: Celery
    ) -> None:
        """And nothing is sent."""
        with pytest.raises(TypeError, match="is None, which names nothing to lock"):
            sender.tasks["queued"].apply_async((None,), queue=parked.name)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            sender.tasks["plain"].apply_async((), queue=parked.name)
        assert parked.waiting() == 0

    def test_the_id_that_the_caller_gives_is_that_of_the_message(
        self, run: Run, parked: Parked
    ) -> None:
        """And of the copies of it."""
        assert parked.send("queued", task_id=f"mine-{run.id}").id == f"mine-{run.id}"
        assert parked.ids("queued", 2) == [f"mine-{run.id}"] * 2
        assert parked.send("queued", task_id=f"yours-{run.id}").id == f"mine-{run.id}"
        parked.open()
        run.open()
        assert get(run.result(f"mine-{run.id}")) == 0

    def test_nobody_waits_for_a_result_that_is_not_kept(self, run: Run, parked: Parked) -> None:
        """A call that is not sent ends as one that is: get() returns at once."""
        results = [parked.send("queued", ignore_result=True) for _ in range(2)]
        assert [result.get(timeout=scaled(5)) for result in results] == [None, None]
        assert parked.waiting() == 1
        parked.open()
        run.open()
        run.wait_told("leave")

    def test_what_is_not_sent_is_told(
        self, run: Run, parked: Parked, caplog: pytest.LogCaptureFixture
    ) -> None:
        """By the log and by a signal, for counting."""
        heard: list[TurnedAway] = []

        def receiver(run: TurnedAway, **about: Any) -> None:
            heard.append(run)

        signals.task_turned_away.connect(receiver)
        try:
            first = parked.send("queued")
            with caplog.at_level(logging.INFO, "lockapp.celery"):
                parked.send("queued", task_id="copy")
        finally:
            signals.task_turned_away.disconnect(receiver)
        assert heard == [TurnedAway(run.name(), "queued", "copy", "dropped")]
        assert f"queued[copy] is not sent: {first.id} stands since" in caplog.text
        parked.open()
        run.open()
        get(run.result(first.id))


class TestFromQueueToEnd:
    @pytest.mark.parametrize("task", SCOPES)
    def test_every_call_gets_a_run_that_comes_after_it(
        self, run: Run, parked: Parked, send_from_processes: Send, task: str
    ) -> None:
        """Several processes call while a worker runs what they send: no call is lost in between."""
        parked.open()
        run.open(count=1000)
        calls = send_from_processes(task, count=60)
        ids = {result_id for result_id, _ in calls}
        get_all([run.result(result_id) for result_id in ids])
        at = {event["id"]: event["at"] for event in run.told("enter")}
        if task == "either":  # a call may be answered with what runs already, up to its end
            at = {it: run.result(it).date_done.replace(tzinfo=UTC).timestamp() for it in ids}
        assert at.keys() == ids
        assert [result_id for result_id, asked_at in calls if at[result_id] < asked_at] == []
        assert place(run, task) is None

    def test_queued_puts_no_limit_on_copies_that_run(self, run: Run, parked: Parked) -> None:
        """The place is free as soon as the body starts."""
        parked.open()
        first = parked.send("queued")
        run.wait_told("enter")
        assert place(run, "queued") is None
        second = parked.send("queued")
        assert second.id != first.id
        run.wait_told("enter", 2)
        run.open()
        assert get_all([run.result(it.id) for it in (first, second)]) == [0, 0]

    def test_queued_or_running_is_one_copy_from_publish_to_end(
        self, run: Run, parked: Parked
    ) -> None:
        """While it runs, a copy gets its id; after its end a new one is sent."""
        first = parked.send("either")
        assert parked.ids("either", 2) == [first.id] * 2
        parked.open()
        run.wait_told("enter")
        assert parked.ids("either", 3) == [first.id] * 3
        assert place(run, "either") is None
        run.open(count=1)
        assert get(run.result(first.id)) == 0
        run.wait_free()
        second = parked.send("either")
        assert second.id != first.id
        run.open()
        assert get(run.result(second.id)) == 0
        assert len(run.told("enter")) == 2

    @pytest.mark.parametrize("task", ["both", "both_waiting"])
    def test_queued_and_running_is_one_that_runs_and_one_that_waits(
        self, run: Run, parked: Parked, task: str
    ) -> None:
        """Ten calls during a run give exactly one more run, which reads what they changed."""
        parked.open()
        first = parked.send(task)
        run.wait_told("enter")
        extra = parked.send(task)
        assert extra.id != first.id
        # In the queue, in a worker that has it come back, or in one that waits for the lock.
        for _ in range(5):
            assert parked.ids(task, 2) == [extra.id] * 2
            pause(0.3)
        assert len(run.told("enter")) == 1
        run.open()
        assert get_all([run.result(it.id) for it in (first, extra)]) == [0, 0]
        assert len(run.told("enter")) == 2
        assert place(run, task) is None

    def test_a_copy_that_ends_without_running_gives_up_its_place(
        self, run: Run, parked: Parked
    ) -> None:
        """Skipped, since another one that had been sent by name runs."""
        named = run.send("either", queue=QUEUE)
        run.wait_told("enter")
        waits = parked.send("both", queue=QUEUE)
        run.result(waits.id)
        assert parked.ids("either", 2) == [named.id] * 2  # that one is a copy, too
        run.open(count=1)
        assert get(named) == 0
        run.wait_told("enter", 2)  # now "both" has the lock, which is no copy of "either"
        skipped = parked.send("either", queue=QUEUE)
        assert was_skipped(get(run.result(skipped.id)))
        wait_until(lambda: place(run, "either") is None, what="a free place")
        run.open()
        assert get(run.result(waits.id)) == 0

    def test_a_call_in_the_moment_in_which_the_waiting_one_starts_is_sent(
        self, run: Run, parked: Parked, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has the place, and others may have its id by now. It does not run beside the other."""
        first = parked.send("either")
        look = Places._running

        def look_and_have_it_start(places: Places, note: Note) -> HolderState | None:
            monkeypatch.setattr(Places, "_running", look)
            seen = look(places, note)
            parked.open()
            run.wait_told("enter")
            return seen

        monkeypatch.setattr(Places, "_running", look_and_have_it_start)
        second = parked.send("either")
        assert second.id != first.id
        assert was_skipped(get(run.result(second.id)))
        assert place(run, "either") is None
        run.open()
        assert get(run.result(first.id)) == 0

    def test_messages_sent_by_name_never_overlap(self, run: Run, taker: Worker) -> None:
        """The lock of the run holds, whoever goes round the class."""
        results = [run.send("either", queue=QUEUE) for _ in range(2)]
        run.wait_told("enter")
        wait_until(lambda: any(it.ready() for it in results), limit_s=10, what="a skip")
        run.open()
        values = get_all(results)
        assert sorted(was_skipped(value) for value in values) == [False, True]
        assert len(run.told("enter")) == 1


class TestComingBack:
    def test_a_retry_is_sent_and_is_the_copy_that_waits(self, run: Run, parked: Parked) -> None:
        """Its id stands from the first publish to the last end."""
        first = parked.send("retrying", 0, parked.name, queue=QUEUE)
        run.wait_told("enter")
        run.open(count=1)
        ids: list[str] = []

        def waits() -> bool:
            ids.append(parked.send("retrying").id)
            return run.state() is None

        # It lies where nobody takes it from: a copy sent in the moment in which it starts goes out.
        wait_until(waits, limit_s=15, every_s=0.02, what="the end of the first run")
        assert parked.waiting() == 1
        ids += parked.ids("retrying", 2)
        parked.open()
        run.wait_told("enter", 2)
        ids += parked.ids("retrying", 2)
        assert set(ids) == {first.id}
        run.open(count=1)
        assert get(run.result(first.id)) == 0
        assert len(run.told("enter")) == 2
        assert place(run, "retrying") is None

    def test_a_message_of_another_producer_comes_back_though_another_copy_waits(
        self, run: Run, parked: Parked
    ) -> None:
        """It was never seen where it was sent, and has nothing of what Celery adds there."""
        parked.open()
        runs = parked.send("both")
        run.wait_told("enter")
        waits = parked.send("both")
        wait_until(lambda: run.result(waits.id).state == "RETRY", what="a copy that waits")
        foreign, app = f"foreign-{run.id}", run.client
        message = app.amqp.create_task_message(foreign, "both", (run.id,), {})
        assert not message.properties["reply_to"]
        with app.producer_or_acquire() as producer:
            app.amqp.send_task_message(producer, "both", message, queue=app.amqp.queues[QUEUE])
        wait_until(lambda: run.result(foreign).state == "RETRY", what="the other to come back")
        assert parked.send("both").id == waits.id
        run.open()
        assert get_all([run.result(each) for each in (runs.id, waits.id, foreign)]) == [0] * 3
        assert len(run.told("enter")) == 3

    def test_a_replacement_is_sent_though_another_copy_waits(
        self, run: Run, parked: Parked
    ) -> None:
        """Whoever waits for the id that was replaced would wait for ever."""
        stands = parked.send("either")
        replaced = parked.send("replacing", queue=QUEUE)
        run.wait_told("enter")
        run.open()
        assert get(run.result(replaced.id)) == 0
        parked.open()
        assert get(run.result(stands.id)) == 0

    def test_a_message_whose_worker_was_killed_runs_again(self, run: Run, parked: Parked) -> None:
        """Acknowledged late: it comes back, and meanwhile its copies get its id."""
        parked.open()
        first = parked.send("either_late")
        (entered,) = run.wait_told("enter")
        os.kill(entered["pid"], signal.SIGKILL)
        run.wait_told("enter", 2, limit_s=20)
        assert parked.send("either_late").id == first.id
        run.open()
        assert get(run.result(first.id)) == 0
        run.wait_free()
        assert place(run, "either_late") is None


class TestCanvas:
    def test_its_members_are_sent_though_another_copy_waits(self, run: Run, parked: Parked) -> None:
        """They run as far as the lock allows, and the canvas completes."""
        stands = parked.send("either")
        either = parked.sender.tasks["either"].si(run.id).set(queue=QUEUE)
        count = run.client.signature("count", queue=QUEUE)
        run.open()
        assert get(chain(either, either).apply_async()) == 0
        assert get_all(group([either, either]).apply_async().children)
        assert len(get(chord([either, either])(count))) == 2
        assert place(run, "either") is not None
        parked.open()
        assert get(run.result(stands.id)) == 0

    def test_a_message_with_something_behind_it_is_sent(self, run: Run, parked: Parked) -> None:
        """Nobody else would send what follows."""
        stands = parked.send("queued")
        follow = run.client.signature("count", queue=QUEUE)
        second = parked.send("queued", link=follow)
        third = parked.send("queued", link_error=follow)
        assert len({stands.id, second.id, third.id}) == 3
        assert parked.send("queued").id == stands.id
        parked.open()
        run.open()
        get_all([run.result(it.id) for it in (stands, second, third)])


class TestWhatBecomesOfTheMessage:
    def test_a_publish_that_fails_gives_the_place_up(
        self, run: Run, new_sender: Callable[..., Celery]
    ) -> None:
        """The error is Celery's, and the next call sends."""
        with RedisServer() as server:
            app = new_sender(broker=server.url)
            app.conf.broker_transport_options = {"max_retries": 0}
            server.kill()
            with pytest.raises(OperationalError) as caught:
                app.tasks["queued"].apply_async((run.id,), retry=False)
            assert "lockapp" not in str(caught.value)
            assert place(run, "queued") is None
            server.start()
            sent = app.tasks["queued"].apply_async((run.id,))
            assert app.tasks["queued"].apply_async((run.id,)).id == sent.id
            assert server.client.llen(run.broker.queue(QUEUE)) == 1
            app.pool.force_close_all()
        run.engine.force_release(
            lock_name("queued", "queued", run.name()), _fence(run, "queued"), actor="test"
        )

    def test_a_call_that_celery_refuses_gives_the_place_up(self, run: Run, parked: Parked) -> None:
        """Something that can't be sent at all."""
        with pytest.raises(Exception, match="object"):
            parked.send("queued", headers={"more": object()})
        assert place(run, "queued") is None

    def test_without_the_engine_it_is_sent_all_the_same(
        self,
        run: Run,
        taker: Worker,
        engine_settings: dict[str, Any],
        new_sender: Callable[..., Celery],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """With a line in the log; what is enforced where it runs still is."""
        engine_settings["LOCATION"] = f"redis://127.0.0.1:{free_port()}/0"
        app = new_sender()
        sent = [app.tasks["either"].apply_async((run.id,)) for _ in range(2)]
        assert sent[0].id != sent[1].id
        assert caplog.text.count("is sent without a look at the queue") == 2
        run.wait_told("enter")
        wait_until(lambda: any(run.result(it.id).ready() for it in sent), limit_s=10, what="a skip")
        run.open()
        values = get_all([run.result(it.id) for it in sent])
        assert sorted(was_skipped(value) for value in values) == [False, True]

    @pytest.mark.parametrize("task", SCOPES)
    def test_revoked_in_the_queue(self, run: Run, parked: Parked, task: str) -> None:
        """The worker drops it, and the next call is sent and runs."""
        first = parked.send(task)
        run.revoke(first.id, parked.worker)
        assert parked.send(task).id == first.id  # nobody has seen it yet
        parked.open()
        wait_until(lambda: place(run, task) is None, limit_s=10, what="a free place")
        second = parked.send(task)
        assert second.id != first.id
        run.open()
        assert get(run.result(second.id)) == 0
        assert [event["id"] for event in run.told("enter")] == [second.id]

    def test_revoked_while_it_waits_for_its_time(self, run: Run, parked: Parked) -> None:
        """A countdown: the worker has it already, and drops it when it is due."""
        parked.open()
        first = parked.send("either", countdown=scaled(4))
        run.revoke(first.id, parked.worker)
        wait_until(lambda: place(run, "either") is None, limit_s=15, what="a free place")
        second = parked.send("either")
        assert second.id != first.id
        run.open()
        assert get(run.result(second.id)) == 0
        assert [event["id"] for event in run.told("enter")] == [second.id]

    def test_expired(self, run: Run, parked: Parked) -> None:
        """Nobody has to see it: the place does not outlive what it is for."""
        first = parked.send("either", countdown=6, expires=4)
        assert (held := place(run, "either")) is not None
        assert held.remaining_ms <= 4000
        wait_until(lambda: place(run, "either") is None, limit_s=10, what="a free place")
        second = parked.send("either")
        assert second.id != first.id
        parked.open()
        run.open()
        assert get(run.result(second.id)) == 0
        assert [event["id"] for event in run.told("enter")] == [second.id]

    def test_expired_by_a_date(self, run: Run, parked: Parked, broker: Broker) -> None:
        """The same; until then it stands."""
        soon = datetime.now(UTC) + timedelta(seconds=4)
        first = parked.send("queued", expires=soon, countdown=60)
        assert parked.send("queued").id == first.id
        wait_until(lambda: place(run, "queued") is None, limit_s=10, what="a free place")

    def test_purged(self, run: Run, parked: Parked, broker: Broker) -> None:
        """Nothing tells of it: the place ends with its ttl, and not before."""
        first = parked.send("briefly")
        assert brokers.purge(broker, parked.name) == 1
        assert parked.send("briefly").id == first.id
        wait_until(lambda: place(run, "briefly") is None, limit_s=10, what="a free place")
        second = parked.send("briefly")
        assert second.id != first.id
        parked.open()
        run.open()
        assert get(run.result(second.id)) == 0

    @pytest.mark.parametrize("spelling", ["countdown", "date", "text"])
    def test_the_place_lives_longer_than_the_countdown(
        self, run: Run, parked: Parked, broker: Broker, spelling: str
    ) -> None:
        """By queued_ttl, which is an hour unless it is said."""
        then = datetime.now(UTC) + timedelta(seconds=5000)
        delays: dict[str, dict[str, Any]] = {
            "countdown": {"countdown": 5000},
            "date": {"eta": then},
            "text": {"eta": then.isoformat()},
        }
        parked.send("queued", **delays[spelling])
        held = place(run, "queued")
        assert held is not None
        assert 8500_000 < held.remaining_ms <= 8600_000
        brokers.purge(broker, parked.name)
        run.engine.force_release(
            lock_name("queued", "queued", run.name()), held.fence, actor="test"
        )


class TestTaskClass:
    def test_it_is_celerys_class_for_django(self, sender: Celery) -> None:
        """With delay_on_commit() and apply_async_on_commit(), for every task of the application."""
        assert issubclass(LockTask, DjangoTask)
        assert isinstance(sender.tasks["queued"], LockTask)

    def test_a_task_without_such_a_scope_is_sent_as_ever(self, run: Run, parked: Parked) -> None:
        """Every copy, and without a header of ours."""
        assert len(set(parked.ids("plain", 2))) == 2
        assert parked.waiting() == 2
        parked.open()
        run.open()
        wait_until(lambda: len(run.told("leave")) >= 1, limit_s=10, what="a run")

    def test_eager_mode_has_no_queue(self, run: Run, sender: Celery) -> None:
        """Nothing is taken, and each call runs."""
        sender.conf.task_always_eager = True

        @sender.task(name="eager", shared=False)
        @single_instance(key="hold:{run}", scope="queued_or_running")
        def eager(run: str) -> int:
            return 7

        results = [eager.delay(run.id) for _ in range(2)]
        assert [result.get() for result in results] == [7, 7]
        assert results[0].id != results[1].id
        assert run.engine.show(lock_name("queued", "eager", f"hold:{run.id}")) is None

    @pytest.mark.django_db(transaction=True)
    def test_nothing_is_taken_before_the_commit(self, run: Run, parked: Parked) -> None:
        """And nothing at all when it is rolled back; plain delay() does not wait for either."""
        task, send = parked.sender.tasks["queued"], {"queue": parked.name}
        with transaction.atomic():
            task.apply_async_on_commit((run.id,), **send)
            assert place(run, "queued") is None
            transaction.set_rollback(True)
        assert place(run, "queued") is None
        assert parked.waiting() == 0
        with transaction.atomic():
            task.apply_async_on_commit((run.id,), **send)
            task.apply_async_on_commit((run.id,), **send)
            assert place(run, "queued") is None
        assert place(run, "queued") is not None
        assert parked.waiting() == 1
        with transaction.atomic():
            parked.send("queued", 1)
            assert parked.waiting() == 2
            transaction.set_rollback(True)
        parked.open()
        run.open(0)
        run.open(1)
        run.wait_told("leave", 2)

    def test_beat_sends_through_the_class_where_it_knows_the_task(
        self, run: Run, parked: Parked
    ) -> None:
        """By name otherwise, and then each of its messages."""
        scheduler = Scheduler(parked.sender, lazy=True)
        known, unknown = (
            ScheduleEntry(
                name, name, schedule=schedule(1), args=(run.id,), options={"queue": parked.name},
                app=parked.sender,
            )
            for name in ("either", "hold")
        )  # fmt: skip
        for entry in (known, known, unknown, unknown):
            scheduler.apply_entry(entry)
        assert parked.waiting() == 3
        parked.open()
        run.open()
        run.wait_told("leave", 1)
        wait_until(lambda: parked.waiting() == 0, what="an empty queue")

    def test_a_run_without_the_class_says_so_once(self, run: Run, taker: Worker) -> None:
        """In the worker's log, by process."""
        run.open()
        for _ in range(4):
            get(run.send("classless", queue=QUEUE))
        said = taker.log().count("classless has scope='queued', but its class is not lockapp")
        assert 1 <= said <= 3  # once a child


def _fence(run: Run, task: str) -> int:
    held = place(run, task)
    assert held is not None
    return held.fence
