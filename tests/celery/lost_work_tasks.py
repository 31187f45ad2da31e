"""The tasks of test_lost_work.py, run by the suite's workers."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.signals import task_prerun

from lockapp.celery import current_lease, single_instance
from tests.celery.app import _body as body
from tests.celery.app import _client as client
from tests.celery.app import _tell as tell
from tests.celery.app import app


def _retrying(word: str) -> None:
    @app.task(bind=True, name=f"lost.retry_or_{word}", max_retries=2)
    @single_instance(key="hold:{run}:{key}", on_contention=word)
    def retry(self: Task[..., Any], run: str, key: int = 0, queue: str = "") -> int:
        """Come back twice; through another queue if one is given."""
        tell(run, "enter", retries=self.request.retries, key=key)
        if self.request.retries < 2:
            raise self.retry(countdown=0.4, **({"queue": queue} if queue else {}))
        return self.request.retries


@app.task(bind=True, name="lost.work", acks_late=True, reject_on_worker_lost=True)
@single_instance(key="hold:{run}:{key}", ttl=4)
def work(self: Task[..., Any], run: str, key: int = 0) -> str:
    """Have an effect, once it is let through."""
    body(self, run, key)
    tell(run, "effect", id=self.request.id)
    return "done"


def _copying(word: str) -> None:
    @app.task(name=f"lost.copy_or_{word}")
    @single_instance(key="hold:{run}:{key}", on_contention=word)
    def copy(run: str, key: int = 0) -> str:
        """Read the source, take a while, write the copy."""
        value: Any = client().get(f"gate:{run}:source")
        tell(run, "enter", key=key)
        client().blpop([f"gate:{run}:{key}"], timeout=50)
        client().set(f"gate:{run}:copy", value)
        return str(value.decode())


for _word in ("skip", "raise"):
    _retrying(_word)
for _word in ("skip", "rerun"):
    _copying(_word)


@app.task(name="lost.behind_a_broken_signal")
@single_instance(key="hold:{run}:{key}")
def behind_a_broken_signal(run: str, key: int = 0) -> int:
    tell(run, "enter", key=key)
    return current_lease().fence


@task_prerun.connect(weak=False)
def _break(sender: Any, **_: object) -> None:
    if sender.name == behind_a_broken_signal.name:
        raise RuntimeError("a receiver that fails")
