"""Deliveries: run a task as a worker does for a message, in this process, one delivery at a time.

What a worker's child calls for a message is Celery's tracer; here a test calls it with the id, the
headers and the delivery info that it wants, and in the order that it wants. Messages that are sent
meanwhile go to a broker in memory, and are noted down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from celery import Celery
from celery.app.trace import build_tracer
from celery.utils import uuid

from lockapp import lock
from lockapp.celery import single_instance
from lockapp.celery.message import HEADER
from lockapp.context import holder_details
from lockapp.lock import Lock
from tests.timing import scaled

TASK_OPTIONS = ("bind", "acks_late", "pydantic")


class Message(NamedTuple):
    """A message that was sent."""

    task: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its task's id."""
        return str(self.options["task_id"])

    @property
    def note(self) -> dict[str, Any]:
        """Its header."""
        return dict(self.options["headers"][HEADER])


class Ended(NamedTuple):
    """How a delivery ended, and what it returned or raised."""

    state: str
    """Also IGNORED and REJECTED, which no result backend knows."""
    value: Any


class Recording(Celery):
    """An application whose tasks no other one gets, and which notes down what it sends."""

    def __init__(self, broker: str) -> None:
        super().__init__(
            "deliveries", broker=broker, backend="cache+memory://", set_as_current=False,
            task_cls="lockapp.celery:LockTask",
        )  # fmt: skip
        self.conf.task_publish_retry = False
        self.conf.broker_transport_options = {"max_retries": 0}  # kombu tries for seconds else
        self.sent: list[Message] = []

    def task(self, *args: Any, **options: Any) -> Any:
        return super().task(*args, **{"shared": False, **options})

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        result = super().send_task(name, args, kwargs, **options)
        self.sent.append(Message(name, tuple(args or ()), options))
        return result


class Deliveries:
    """One test's application, tasks and messages."""

    def __init__(self, broker: str = "memory://") -> None:
        self.app = Recording(broker)
        self.follow = self.returning("followed", "follow", key="follow:{it}")

    def task(self, name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """Make a locked task of a function; the key is its name, unless it is told another one."""
        of_task = {word: options.pop(word) for word in TASK_OPTIONS if word in options}
        locked = single_instance(**{"key": name, **options})
        return lambda body: self.app.task(name=name, **of_task)(locked(body))

    def returning(self, value: object, name: str, **options: Any) -> Any:
        """Make a locked task that returns something; see task()."""

        def body(it: object = None) -> object:
            return value

        return self.task(name, **options)(body)

    @property
    def chain(self) -> list[dict[str, Any]]:
        """What goes on behind a message, as its request has it."""
        return [dict(self.follow.si(1))]

    def close(self) -> None:
        """Close the application."""
        self.app.close()

    def deliver(
        self,
        task: Any,
        *args: Any,
        task_id: str = "",
        note: Any = None,
        again: bool = False,
        **more: Any,
    ) -> Ended:
        """Run it for a message.

        Args:
            task: the task.
            *args: of the message.
            task_id: of the message; a new one by default.
            note: the header that an earlier delivery left.
            again: whether the broker says that it has delivered the message before.
            **more: of the request.
        """
        request = {
            "id": task_id or uuid(),
            "delivery_info": {"exchange": "", "routing_key": "celery", "redelivered": again},
            **({HEADER: note} if note else {}),
            **more,
        }
        traced = build_tracer(task.name, task, app=self.app)(request["id"], args, {}, request)
        if traced.info is None:
            return Ended("SUCCESS", traced.retval)
        return Ended(traced.info.state, traced.info.retval)

    def deliver_sent(self, task: Any, **more: Any) -> Ended:
        """Deliver the one message that was sent, and forget it."""
        message = self.take()
        return self.deliver(task, *message.args, task_id=message.id, note=message.note, **more)

    def take(self) -> Message:
        """Return the one message that was sent, and forget it."""
        (message,) = self.app.sent
        self.app.sent.clear()
        return message

    def sent(self, task: Any) -> list[Message]:
        """The messages of a task that were sent and not taken."""
        return [message for message in self.app.sent if message.task == task.name]

    def result(self, task_id: str) -> tuple[str, Any]:
        """What the result backend says of a task."""
        result = self.app.AsyncResult(task_id)
        return result.state, result.result


@contextmanager
def held(wanted: str | Lock, **details: object) -> Iterator[None]:
    """Have another thread hold a lock, as the run that the details describe."""
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        with holder_details(**details), lock(wanted) if isinstance(wanted, str) else wanted:
            holds.set()
            over.wait(scaled(30))

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold)
        assert holds.wait(scaled(5))
        try:
            yield
        finally:
            over.set()
            holder.result(scaled(5))
