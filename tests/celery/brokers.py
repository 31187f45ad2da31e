"""The brokers under test, and queues that belong to one run of the suite.

`LOCKAPP_TEST_BROKERS` names them: "redis" (the default), "rabbitmq", or "all". Redis is the suite's
own server. RabbitMQ is a service that others use too: every queue of a run has the run's prefix,
ends with the run, and is forgotten by the service itself if the run is killed.

Tests name queues without the prefix; a queue's alias is what they say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery.app.amqp import AMQP, Queues
from kombu import Connection, Exchange, Queue

FORGET_S = 600
"""When the service drops a queue that nobody uses any more."""

NAMES = ("redis", "rabbitmq")

_known: set[str] = set()
"""The full names of the queues that this process has named."""


def chosen() -> tuple[str, ...]:
    """Return the names of the brokers to test on."""
    wanted = os.environ.get("LOCKAPP_TEST_BROKERS") or "redis"
    names = NAMES if wanted == "all" else tuple(wanted.split(","))
    if not set(names) <= set(NAMES):
        raise ValueError(f"LOCKAPP_TEST_BROKERS={wanted}; there are {', '.join(NAMES)}, or all")
    return names


@dataclass(frozen=True, slots=True)
class Broker:
    """Where messages go."""

    name: str
    url: str
    prefix: str  # of its queues and nodes

    def queue(self, name: str) -> str:
        """Return the full name of a queue. It is removed at the end of the run."""
        full = self.prefix + name.removeprefix(self.prefix)
        _known.add(full)
        return full


@contextmanager
def broker(name: str, own_redis: str) -> Iterator[Broker]:
    """Hand out a broker; its queues end with the block. Skips, or fails, if it is not there.

    Args:
        name: one of NAMES.
        own_redis: the address of the database that is the suite's own.
    """
    if name == "redis":
        yield Broker(name, own_redis, "")
        return
    from tests.services import require  # not for workers: it brings pytest along

    # The id alone comes again one day, while a queue of its last bearer is not yet forgotten.
    prefix = f"lockapp-{os.getpid()}-{os.urandom(3).hex()}."
    yield Broker(name, require("rabbitmq"), prefix)
    with Connection(require("rabbitmq")) as connection:
        for queue in _known:
            if queue.startswith(prefix):
                connection.default_channel.queue_delete(queue)
                connection.default_channel.exchange_delete(queue)


def purge(at: Broker, name: str) -> int:
    """Drop what lies in a queue; return how many messages it were."""
    with Connection(at.url) as connection:
        return int(connection.default_channel.queue_purge(at.queue(name)) or 0)


def redeliver(at: Broker) -> None:
    """Have the broker deliver again, now, what has not been acknowledged.

    RabbitMQ does so when a consumer is gone. For Redis, Celery does it after the visibility
    timeout, by the same call.
    """
    if at.name == "redis":
        with Connection(at.url, transport_options={"visibility_timeout": 0.001}) as connection:
            connection.default_channel.qos.restore_visible(num=100)


def queue_of(prefix: str, name: str) -> Queue:
    """Return a queue as everybody must declare it."""
    full = Broker("", "", prefix).queue(name)
    return Queue(
        full, Exchange(full, auto_delete=True), full, alias=full.removeprefix(prefix),
        expires=FORGET_S,
    )  # fmt: skip


def amqp_with(prefix: str) -> type[AMQP]:
    """Return what an application makes its queues with."""

    class Own(Queues):  # type: ignore[misc]
        def new_missing(self, name: str) -> Any:
            return queue_of(prefix, name)

    class OwnAMQP(AMQP):  # type: ignore[misc]
        queues_cls = Own

    return OwnAMQP
