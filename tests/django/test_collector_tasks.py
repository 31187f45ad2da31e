"""The Celery tasks around the collector."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lockapp import tasks
from lockapp.exceptions import EngineUnavailable
from lockapp.lock import Lock
from lockapp.models import LockEvent
from tests.servers import free_port


@pytest.mark.django_db
def test_collect_stores_the_events_of_every_engine(redis_locks: Any) -> None:
    """And returns plain values."""
    Lock(redis_locks["default"], "order:1", wait=0).acquire().release()
    done = tasks.collect()
    assert done["default"]["stored"] == 2
    assert LockEvent.objects.count() == 2
    assert tasks.collect(using="default")["default"]["stored"] == 0


@pytest.mark.django_db
def test_an_engine_that_fails_does_not_keep_the_others_waiting(
    redis_locks: Any, settings: Any
) -> None:
    """The task fails all the same, so that somebody sees it."""
    working = settings.LOCKAPP["default"]
    down = working | {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    settings.LOCKAPP = {"down": down, "default": working}
    Lock(redis_locks["default"], "order:1", wait=0).acquire().release()
    with pytest.raises(EngineUnavailable, match="down"):
        tasks.collect()
    assert LockEvent.objects.count() == 2


def test_sweep_asks_every_engine(redis_locks: Any) -> None:
    """Per alias, how many were reclaimed."""
    assert tasks.sweep() == {"default": 0}


def test_their_names_are_what_a_schedule_says() -> None:
    """Wherever the function lives."""
    assert tasks.collect.name == "lockapp.tasks.collect"
    assert tasks.sweep.name == "lockapp.tasks.sweep"


def test_the_module_can_be_imported_without_celery() -> None:
    """Celery is an extra; autodiscovery is not the only one who imports everything."""
    code = (
        "import sys; sys.modules['celery'] = None\n"
        "import django\n"
        "from django.conf import settings\n"
        "apps = ['django.contrib.auth', 'django.contrib.contenttypes', 'lockapp']\n"
        "settings.configure(INSTALLED_APPS=apps)\n"
        "django.setup()\n"
        "import lockapp.tasks as tasks\n"
        "assert not hasattr(tasks, 'collect')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
