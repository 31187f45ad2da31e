"""System checks of tasks: options that are legal and, beside Celery's own settings, do harm.

Run by ``check --deploy`` only: tasks are known once their modules are loaded, as a worker loads
them, and what is judged is the settings of production.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from celery import Celery, current_app
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from lockapp import conf
from lockapp.celery.execution import hard_limit_of, with_grace
from lockapp.celery.options import Options
from lockapp.celery.publish import LockTask
from lockapp.celery.running import LONGEST_PAUSE_S
from lockapp.celery.slot import require_slots
from lockapp.checks import Messages, short_ttl, unshared_cache
from lockapp.lock import Lock
from lockapp.single_flight.store import require_flights
from lockapp.ways import Unset

LONGEST_TASK_WAIT_S = 30
VISIBILITY_S = {
    "redis": 3600, "rediss": 3600, "redis+socket": 3600, "sentinel": 3600, "sqs": 1800,
}  # fmt: skip
"""Brokers that deliver a message anew unless it is acknowledged in time, and their default."""

HINTS = {
    "E005": "Define it in LOCKAPP, or correct using=….",
    "E006": "Name an engine that can, such as one on Redis: using=….",
    "W010": "See to it that a worker can load them: its first step is the same.",
    "W011": "Leave out max_hold: it follows the hard time limit. Or lower the limit.",
    "W012": 'Raise broker_transport_options["visibility_timeout"] above the longest run.',
    "W013": "Keep the task's result (ignore_result=False and a result backend), or set remember=….",
    "W014": "Give wait= an end, or let the task come back: on_contention='retry'.",
    "W015": "Set worker_prefetch_multiplier to 1, lower wait=, or use on_contention='retry'.",
    "W016": 'Give it the class: Celery(task_cls="lockapp.celery:LockTask"), or base=LockTask.',
}
"""What to do, by the number of the id. The reference page has the why."""


def check_tasks() -> Messages:
    """Load the tasks of the current app, and judge those of which one instance runs."""
    try:
        conf.configs()
    except ImproperlyConfigured:
        return []  # told by check_settings
    app: Celery = current_app._get_current_object()  # type: ignore[attr-defined]
    try:
        app.loader.import_default_modules()
        tasks = sorted(app.tasks.items())
    except Exception as error:  # noqa: BLE001 - whatever the modules of others raise
        return [_warning("W010", f"The tasks can't be loaded: {type(error).__name__}: {error}")]
    found: Messages = []
    for name, task in tasks:
        options = getattr(task.run, "single_instance", None)
        if isinstance(options, Options):
            found += _judge(app, name, task, options)
    return found


def _judge(app: Celery, name: str, task: Any, options: Options) -> Iterator[checks.CheckMessage]:
    limit_s = hard_limit_of(task)
    try:
        lock = options.named(name, with_grace(limit_s))
    except ImproperlyConfigured as error:
        if options.using not in conf.configs():
            yield _error("E005", f"{name}: {error}")
        return  # otherwise told by check_settings
    try:
        if options.flies:
            require_flights(lock.engine)
        if options.scope.queued or options.policy.word == "rerun":
            require_slots(lock.engine)
    except ImproperlyConfigured as error:
        yield _error("E006", f"{name}: {error}")
        return
    if options.scope.queued and not isinstance(task, LockTask):
        yield _warning(
            "W016",
            f"{name}: with scope={options.scope.word!r} copies of what waits already are sent all "
            "the same, since its class is not lockapp.celery.LockTask.",
        )
    if not options.scope.running:
        return  # it runs without a lock
    if not isinstance(options.ttl, Unset):
        yield from short_ttl(name, lock.spec.ttl_ms, lock.engine.options)
    if options.shares:
        yield from unshared_cache(name, options.cache, options.using)
    runs_s = limit_s or task.soft_time_limit or app.conf.task_soft_time_limit or math.inf
    held_s = lock.spec.max_hold_ms / 1000 or math.inf
    if held_s < runs_s < math.inf:
        yield _warning(
            "W011",
            f"{name}: its time limit lets it run for {runs_s:g} s, and its lock is renewed for "
            f"{held_s:g} s only (max_hold); after that another one may run beside it.",
        )
    if task.acks_late:
        yield from _judge_late(app, name, task, options)
    yield from _judge_visibility(app, name, task, options, min(runs_s, held_s))
    yield from _judge_waiting(app, name, options, lock)


def _judge_late(
    app: Celery, name: str, task: Any, options: Options
) -> Iterator[checks.CheckMessage]:
    kept = str(app.conf.result_backend or "disabled")
    if (task.ignore_result or kept.startswith("disabled")) and not options.remember_s:
        yield _warning(
            "W013",
            f"{name}: with acks_late its message may be delivered again after it has succeeded, "
            "and since results are ignored it then runs again.",
        )


def _judge_visibility(
    app: Celery, name: str, task: Any, options: Options, runs_s: float
) -> Iterator[checks.CheckMessage]:
    url: object = app.conf.broker_read_url
    first = url[0] if isinstance(url, list | tuple) else url
    default_s = VISIBILITY_S.get(str(first).partition(":")[0])
    if default_s is None:
        return
    visible_s = app.conf.broker_transport_options.get("visibility_timeout", default_s)
    away_s = 1.2 * max(LONGEST_PAUSE_S, options.policy.longest_pause_s)
    unacknowledged_s = max(runs_s, away_s) if task.acks_late else away_s
    if visible_s < unacknowledged_s:
        how_long = "without end" if unacknowledged_s == math.inf else f"for {unacknowledged_s:g} s"
        yield _warning(
            "W012",
            f"{name}: its message may stay unacknowledged {how_long}, and the broker delivers it "
            f"again after {visible_s:g} s (visibility_timeout). Copies don't run beside it, but "
            "each of them comes back until it has ended.",
        )


def _judge_waiting(
    app: Celery, name: str, options: Options, lock: Lock
) -> Iterator[checks.CheckMessage]:
    waits = f"{name}: on_contention={options.policy.word!r}"
    fetches = app.conf.worker_prefetch_multiplier
    if lock.wait_s is None:
        yield _warning(
            "W014", f"{waits} with wait=None keeps a worker's process for as long as it takes."
        )
    elif lock.wait_s > LONGEST_TASK_WAIT_S and fetches != 1:
        yield _warning(
            "W015",
            f"{waits} keeps a worker's process for up to {lock.wait_s:g} s, and what the worker "
            f"has fetched beforehand (worker_prefetch_multiplier={fetches}) waits behind it, also "
            "where others are idle.",
        )


def _error(number: str, text: str) -> checks.CheckMessage:
    return checks.Error(text, hint=HINTS[number], id=f"lockapp.{number}")


def _warning(number: str, text: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=HINTS[number], id=f"lockapp.{number}")
