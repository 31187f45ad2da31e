"""The application of the worker of test_publish.py; as a program, a process that sends.

It says "ready". For each line of four words, TASK RUN QUEUE COUNT, it sends COUNT copies one after
another, says of each its id and when it was asked for, and at last "done".
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


def main() -> None:
    """Send when told, until the end of the input."""
    _say("ready")
    for line in sys.stdin:
        task, run, queue, count = line.split()
        for _ in range(int(count)):
            asked_at = time.time()
            _say(f"{app.tasks[task].apply_async((run,), queue=queue).id} {asked_at}")
        with app.producer_or_acquire() as producer:  # what it answers comes behind what was sent
            queue_of(QUEUES, queue).bind(producer.channel).queue_declare()
        _say("done")
    app.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
