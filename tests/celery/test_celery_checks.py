"""What does harm beside Celery's settings is found by `manage.py check --deploy`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from celery import Celery, _state, signals
from django.core import checks

from lockapp.celery import LockTask, single_instance
from lockapp.celery.checks import HINTS, check_tasks
from lockapp.checks import TAG
from tests.timing import scaled

# Celery has Django check the models before it loads tasks, which from 6.1 on asks the database.
pytestmark = pytest.mark.django_db

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "checks.md"
SHARED_CACHE = {
    "BACKEND": "django_redis.cache.RedisCache",
    "LOCATION": "redis://127.0.0.1:6379/3",
}


@pytest.fixture
def current(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The test's own application as the current one, without what other tests have shared."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    before = _state._tls.current_app
    app.conf.update(broker_url="redis://", result_backend="redis://", imports=[])
    app.set_current()
    yield app
    _state._set_current_app(before)


@pytest.fixture
def told(settings: Any, redis_locks: Any) -> Callable[[], list[str]]:
    """The ids that `check --deploy` finds, through Django."""
    settings.CACHES = {"default": SHARED_CACHE}

    def ids() -> list[str]:
        found = checks.run_checks(tags=[TAG], include_deployment_checks=True)
        assert all(message.hint for message in found)
        return [str(message.id) for message in found]

    return ids


def make(app: Celery, options: dict[str, Any], **task_options: Any) -> None:
    """One task of the application's."""

    def capture(order_id: int) -> int:
        return order_id

    app.task(**{"name": "capture", **task_options})(single_instance(**options)(capture))


Told = Callable[[], list[str]]


@pytest.mark.parametrize("policy", ["skip", "raise", "retry", "wait", "join", "rerun"])
@pytest.mark.parametrize("late", [False, True])
def test_a_task_with_defaults_has_no_problem(
    current: Celery, told: Told, policy: str, late: bool
) -> None:
    """Under Celery's own defaults, with any policy."""
    make(current, {"on_contention": policy}, acks_late=late)
    assert told() == []


@pytest.mark.parametrize("scope", ["queued", "queued_or_running"])
def test_a_scope_that_looks_at_the_queue_needs_the_task_class(
    current: Celery, told: Told, scope: str
) -> None:
    """Which is who looks; and what runs without a lock is judged by nothing else."""
    make(current, {"scope": scope}, time_limit=600)
    assert told() == ["lockapp.W016"]
    make(current, {"scope": scope}, name="capture_too", base=LockTask)
    assert told() == ["lockapp.W016"]


def test_a_scope_without_a_lock_has_no_lock_to_judge(current: Celery, told: Told) -> None:
    """Whatever its time limits, and however it is acknowledged."""
    current.conf.result_backend = None
    make(
        current, {"scope": "queued"}, base=LockTask, time_limit=9000, acks_late=True,
    )  # fmt: skip
    assert told() == []


def test_other_tasks_are_nobodys_business(current: Celery, told: Told) -> None:
    """Only what has one instance is judged."""

    @current.task(name="other", acks_late=True, ignore_result=True)
    def other() -> None: ...

    assert told() == []


@pytest.mark.parametrize("deploy", [True, False])
def test_tasks_are_judged_on_deployment_only(current: Celery, told: Told, deploy: bool) -> None:
    """Their modules need not be loaded by every command."""
    make(current, {"using": "payments"})
    found = checks.run_checks(tags=[TAG], include_deployment_checks=deploy)
    assert [message.id for message in found] == (["lockapp.E005"] if deploy else [])


def test_settings_that_are_no_good_are_told_once(
    current: Celery, told: Told, settings: Any
) -> None:
    """By the checks of settings."""
    make(current, {"using": "payments"})
    settings.LOCKAPP = {"default": {"LOCATION": ""}}
    assert told() == ["lockapp.E002"]


def test_an_engine_that_is_not_there_is_an_error(current: Celery, told: Told) -> None:
    """E005: each run of the task would fail."""
    make(current, {"using": "payments"})
    assert told() == ["lockapp.E005"]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"on_contention": "join"}, ["lockapp.E006"]),
        ({"on_contention": "rerun"}, ["lockapp.E006"]),
        ({"remember": 5}, ["lockapp.E006"]),
        ({"scope": "queued"}, ["lockapp.E006"]),
        ({"scope": "queued_or_running"}, ["lockapp.E006"]),
        ({"scope": "queued_and_running", "on_contention": "wait"}, ["lockapp.E006"]),
        ({"on_contention": "wait"}, []),
        ({"on_contention": "retry", "limit": 2}, []),
    ],
)
def test_what_an_engine_cannot_do_is_an_error(
    current: Celery, settings: Any, options: dict[str, Any], ids: list[str]
) -> None:
    """E006: each run, or each sending, would fail with the same words."""
    engine = "lockapp.engines.zookeeper.ZooKeeperEngine"
    settings.LOCKAPP = {"default": {"ENGINE": engine, "LOCATION": "zk://127.0.0.1:1"}}
    settings.CACHES = {"default": SHARED_CACHE}
    make(current, options, base=LockTask)
    assert [message.id for message in check_tasks()] == ids


@pytest.mark.parametrize(("ttl", "ids"), [(4.5, ["lockapp.W004"]), (4.6, [])])
def test_a_ttl_of_its_own_that_one_lost_renewal_ends(
    current: Celery, told: Told, ttl: float, ids: list[str]
) -> None:
    """W004, as for an engine."""
    make(current, {"ttl": ttl})
    assert told() == ids


@pytest.mark.parametrize(
    "options", [{"on_contention": "join"}, {"on_contention": "rerun"}, {"remember": 5}]
)
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_shared_through_a_cache_that_is_not(
    current: Celery, told: Told, settings: Any, options: dict[str, Any], shared: bool
) -> None:
    """W008: results, and the latest arguments."""
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {"default": local, "tasks": SHARED_CACHE}
    make(current, options | ({"cache": "tasks"} if shared else {}))
    assert told() == ([] if shared else ["lockapp.W008"])


def test_a_module_that_cant_be_loaded_is_told(current: Celery, told: Told) -> None:
    """W010, and no traceback: the other checks have their say."""
    make(current, {"using": "payments"})
    current.conf.imports = ["tests.celery.no_such_module"]
    assert told() == ["lockapp.W010"]


def test_whatever_a_receiver_raises_while_loading_is_told(current: Celery, told: Told) -> None:
    """Autodiscovery is one."""

    def broken(**about: Any) -> None:
        raise ZeroDivisionError("in tasks.py")

    signals.import_modules.connect(broken, sender=current)
    try:
        assert told() == ["lockapp.W010"]
    finally:
        signals.import_modules.disconnect(broken, sender=current)


@pytest.mark.parametrize(
    ("options", "limits", "conf", "ids"),
    [
        ({"max_hold": 60}, {"time_limit": 61}, {}, ["lockapp.W011"]),
        ({"max_hold": timedelta(minutes=1)}, {}, {"task_time_limit": 61}, ["lockapp.W011"]),
        ({"max_hold": 60}, {"time_limit": 60}, {}, []),
        ({"max_hold": 60}, {}, {}, []),
        ({"max_hold": None}, {"time_limit": 61}, {}, []),
        ({}, {"time_limit": 7200}, {}, []),
        ({}, {"soft_time_limit": 7200}, {}, ["lockapp.W011"]),
        ({}, {}, {"task_soft_time_limit": 7200}, ["lockapp.W011"]),
        ({}, {"soft_time_limit": 7200, "time_limit": 7300}, {}, []),
    ],
)
def test_a_lock_that_ends_before_the_time_limit(
    current: Celery,
    told: Told,
    options: dict[str, Any],
    limits: dict[str, Any],
    conf: dict[str, Any],
    ids: list[str],
) -> None:
    """W011: the body goes on without it. By default it follows the hard limit."""
    current.conf.update(conf)
    make(current, options, **limits)
    assert told() == ids


@pytest.mark.parametrize(
    ("options", "task", "conf", "fires"),
    [
        ({}, {"acks_late": True, "time_limit": 3601}, {}, True),
        ({}, {"time_limit": 3601}, {"task_acks_late": True}, True),
        ({}, {"time_limit": 3601}, {}, False),  # acknowledged before it runs
        ({}, {"acks_late": True, "time_limit": 3600}, {}, False),
        ({"max_hold": None}, {"acks_late": True}, {}, True),
        ({"max_hold": None}, {"acks_late": True, "time_limit": 60}, {}, False),
        ({"max_hold": 7200}, {"acks_late": True}, {}, True),
        (
            {"max_hold": 7200},
            {"acks_late": True},
            {"broker_transport_options": {"visibility_timeout": 7200}},
            False,
        ),
        # A message that comes back stays away for some seconds, unacknowledged.
        (
            {"on_contention": "retry"},
            {},
            {"broker_transport_options": {"visibility_timeout": 35}},
            True,
        ),
        (
            {"on_contention": "retry"},
            {},
            {"broker_transport_options": {"visibility_timeout": 36}},
            False,
        ),
        ({}, {}, {"broker_transport_options": {"visibility_timeout": 11}}, True),
        # These don't deliver anew by the clock.
        ({"max_hold": None}, {"acks_late": True}, {"broker_url": "memory://"}, False),
        ({"max_hold": None}, {"acks_late": True}, {"broker_url": "amqp://"}, False),
        (
            {"max_hold": None},
            {"acks_late": True},
            {"broker_url": ["sentinel://a", "sentinel://b"]},
            True,
        ),
        ({"max_hold": 1801}, {"acks_late": True}, {"broker_url": "sqs://"}, True),
    ],
)
def test_a_broker_that_delivers_a_running_message_again(
    current: Celery,
    told: Told,
    options: dict[str, Any],
    task: dict[str, Any],
    conf: dict[str, Any],
    fires: bool,
) -> None:
    """W012: the copies never run beside it, and cost."""
    current.conf.update(conf)
    make(current, options, **task)
    assert told() == (["lockapp.W012"] if fires else [])


@pytest.mark.parametrize(
    ("options", "task", "conf", "fires"),
    [
        ({}, {"acks_late": True, "ignore_result": True}, {}, True),
        ({}, {"acks_late": True}, {"task_ignore_result": True}, True),
        ({}, {"acks_late": True}, {"result_backend": None}, True),
        ({}, {"acks_late": True}, {"result_backend": "disabled://"}, True),
        ({}, {"ignore_result": True}, {}, False),
        ({"remember": 60}, {"acks_late": True, "ignore_result": True}, {}, False),
    ],
)
def test_a_late_acknowledgement_whose_success_nobody_can_know(
    current: Celery,
    told: Told,
    options: dict[str, Any],
    task: dict[str, Any],
    conf: dict[str, Any],
    fires: bool,
) -> None:
    """W013: the second delivery runs again."""
    current.conf.update(conf)
    make(current, options, **task)
    assert told() == (["lockapp.W013"] if fires else [])


@pytest.mark.parametrize("policy", ["wait", "join"])
@pytest.mark.parametrize(
    ("wait", "multiplier", "ids"),
    [
        (None, 1, ["lockapp.W014"]),
        (None, 4, ["lockapp.W014"]),
        (31, 4, ["lockapp.W015"]),
        (31, 0, ["lockapp.W015"]),
        (31, 1, []),
        (30, 4, []),
    ],
)
def test_a_process_that_waits_for_long(
    current: Celery, told: Told, policy: str, wait: float | None, multiplier: int, ids: list[str]
) -> None:
    """W014 without end; W015 with messages behind it that no other worker gets."""
    current.conf.worker_prefetch_multiplier = multiplier
    make(current, {"on_contention": policy, "wait": wait})
    assert told() == ids


def test_a_message_that_keeps_coming_back_keeps_no_process(current: Celery, told: Told) -> None:
    """Its `wait` is another one."""
    make(current, {"on_contention": "retry", "wait": None})
    assert told() == []


@pytest.mark.parametrize("bound", [True, False])
def test_a_task_is_known_through_the_wrappers_of_celery_and_of_others(
    current: Celery, told: Told, bound: bool
) -> None:
    """`autoretry_for` is one."""

    def body(self: Any, order_id: int = 0) -> None: ...

    def other_body(order_id: int) -> None: ...

    decorated = single_instance(using="payments")(body if bound else other_body)
    current.task(name="capture", bind=bound, autoretry_for=(KeyError,))(decorated)

    class Refund(current.Task):  # type: ignore[name-defined,misc]
        name = "refund"

        @single_instance(using="payments")
        def run(self, order_id: int) -> None: ...

    current.register_task(Refund())
    assert told() == ["lockapp.E005"] * 2


def test_manage_py_finds_the_tasks_of_a_site_that_nothing_has_loaded(
    tmp_path: Path, redis_url: str
) -> None:
    """Through Celery's autodiscovery, in a process of its own, with the warnings on the screen."""
    files = {
        "site_under_test/__init__.py": "from site_under_test.celery import app\n",
        "site_under_test/celery.py": """
            from celery import Celery

            app = Celery("site_under_test", set_as_current=True)
            app.config_from_object("django.conf:settings", namespace="CELERY")
            app.autodiscover_tasks()
            """,
        "site_under_test/settings.py": f"""
            SECRET_KEY = "only for tests"
            INSTALLED_APPS = ["lockapp", "site_under_test.shop"]
            CELERY_BROKER_URL = "redis://"
            CELERY_TASK_ACKS_LATE = True
            CELERY_TASK_IGNORE_RESULT = True
            CELERY_TASK_TIME_LIMIT = 7200
            LOCKAPP = {{"default": {{"LOCATION": {redis_url!r}}}}}
            """,
        "site_under_test/shop/__init__.py": "",
        "site_under_test/shop/tasks.py": """
            from celery import shared_task

            from lockapp.celery import LockTask, single_instance

            @shared_task
            @single_instance
            def nightly_report(): ...
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "site_under_test.settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    for options, expected in (([], set()), (["--deploy"], {"W012", "W013"})):
        done = subprocess.run(
            [sys.executable, "-m", "django", "check", "--tag", TAG, *options],
            env=environment, cwd=tmp_path, text=True, capture_output=True, check=True,
            timeout=scaled(60),
        )  # fmt: skip
        assert set(re.findall(r"lockapp\.(\w+)\) ", done.stderr)) == expected
        assert done.stderr.count("site_under_test.shop.tasks.nightly_report: ") == len(expected)


def test_every_id_is_used_and_tested() -> None:
    """By its full spelling here, and in the code."""
    tests = Path(__file__).read_text(encoding="utf-8")
    code = (ROOT / "lockapp" / "celery" / "checks.py").read_text(encoding="utf-8")
    assert [number for number in HINTS if f"lockapp.{number}" not in tests] == []
    assert [number for number in HINTS if code.count(f'"{number}"') < 2] == []
