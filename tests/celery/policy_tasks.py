"""The tasks of test_policies.py, run by the same workers."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

from celery import Task
from celery.exceptions import Retry
from celery.signals import before_task_publish

from lockapp.celery import single_instance
from tests.celery.app import _body as body
from tests.celery.app import _client as client
from tests.celery.app import _tell as tell
from tests.celery.app import app
from tests.timing import wait_until


@app.task(bind=True, name="join")
@single_instance(key="hold:{run}:{key}", on_contention="join", wait=20)
def join(self: Task[..., Any], run: str, key: int = 0, how: str = "") -> object:
    """Return a number of this run alone, or fail, or retry once."""
    body(self, run, key)
    if how == "error":
        raise KeyError("no such order")
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0.1)
    return [self.request.id, self.request.retries]


@app.task(bind=True, name="rerun")
@single_instance(key="hold:{run}:{key}", on_contention="rerun")
def rerun(self: Task[..., Any], run: str, key: int = 0, version: int = 0, how: str = "") -> object:
    tell(run, "ran", version=version)
    body(self, run, key)
    if how == "error":
        raise KeyError("no such order")
    return version


@app.task(bind=True, name="rerun_dearly")
@single_instance(key="hold:{run}:{key}", on_contention="rerun", ttl=3)
def rerun_dearly(self: Task[..., Any], run: str, key: int = 0, version: int = 0) -> object:
    tell(run, "ran", version=version)
    return body(self, run, key)


@app.task(bind=True, name="come_back", max_retries=1)
@single_instance(key="hold:{run}:{key}", on_contention="retry")
def come_back(self: Task[..., Any], run: str, key: int = 0) -> object:
    """Use the user's own retry once, after however many of ours."""
    body(self, run, key)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(bind=True, name="come_back_briefly")
@single_instance(key="hold:{run}:{key}", on_contention="retry", wait=1)
def come_back_briefly(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@app.task(bind=True, name="remember")
@single_instance(key="hold:{run}:{key}", remember=2)
def remember(self: Task[..., Any], run: str, key: int = 0, how: str = "") -> object:
    body(self, run, key)
    if how == "error":
        raise KeyError("no such order")
    return self.request.id


@app.task(bind=True, name="two_at_once")
@single_instance(key="two:{run}:{key}", limit=2)
def two_at_once(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@app.task(bind=True, name="late", acks_late=True, reject_on_worker_lost=True)
@single_instance(key="hold:{run}:{key}", ttl=3)
def late(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


class SlowToStore(Task):
    """Its result is there only when somebody opens the gate "stored"."""

    abstract = True

    @property
    def backend(self) -> Any:
        slow = copy(self.app.backend)
        slow.mark_as_done = partial(self._store, slow)
        return slow

    @staticmethod
    def _store(slow: Any, task_id: str, result: Any, request: Any, *args: Any) -> None:
        tell(request.args[0], "storing")
        client().blpop([f"gate:{request.args[0]}:stored"], timeout=20)
        type(slow).mark_as_done(slow, task_id, result, request, *args)


@before_task_publish.connect
def _store_before_it_looks_again(sender: str, headers: Any, body: Any, **_: Any) -> None:
    if sender == "slow_to_store" and headers.get("lockapp", {}).get("looked"):
        client().rpush(f"gate:{body[0][0]}:stored", "open")
        wait_until(app.AsyncResult(headers["id"]).ready, what="the result")


@app.task(bind=True, base=SlowToStore, name="slow_to_store", acks_late=True)
@single_instance(key="hold:{run}:{key}")
def slow_to_store(self: Task[..., Any], run: str, key: int = 0) -> object:
    return body(self, run, key)


@app.task(bind=True, name="moving_key")
@single_instance(key="hold:{run}:{key}")
def moving_key(self: Task[..., Any], run: str, key: int = 0) -> object:
    """Come back with other arguments: the message still locks what it locked at first."""
    if not self.request.retries:
        try:
            raise self.retry(args=(run, key + 1), countdown=0)
        except Retry:
            tell(run, "retried")
            raise
    return body(self, run, key)
