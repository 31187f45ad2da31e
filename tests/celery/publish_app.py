"""The application of the worker of test_publish.py; as a program, a process that sends.

    python -m tests.celery.publish_app TASK RUN QUEUE COUNT

It says "ready", waits for a line, sends COUNT copies one after another, and says of each its id and
when it was asked for.
"""

from __future__ import annotations

import sys
import time

from celery import Task

from lockapp.celery import LockTask, single_instance
from tests.celery.app import QUEUES, app
from tests.celery.brokers import queue_of
from tests.celery.publish_tasks import PARKED, body, define

app.conf.task_queues += [queue_of(QUEUES, f"parked{number}") for number in range(PARKED)]
define(app, base=LockTask)
# Sent by name only, as by a site that has forgotten the class.
app.task(bind=True, name="classless", base=Task)(
    single_instance(key="hold:{run}:{key}", scope="queued")(body)
)


def main(task: str, run: str, queue: str, count: str) -> None:
    """Send when told."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for _ in range(int(count)):
        asked_at = time.time()
        sys.stdout.write(f"{app.tasks[task].apply_async((run,), queue=queue).id} {asked_at}\n")
    app.close()  # RabbitMQ may drop what a process sent that ends without a word


if __name__ == "__main__":
    main(*sys.argv[1:])
