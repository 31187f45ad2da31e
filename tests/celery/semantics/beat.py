"""The application with one entry for beat, from the environment."""

from __future__ import annotations

import json
import os

from tests.celery.app import app

_task, _run, _id = json.loads(os.environ["LOCKAPP_TEST_BEAT"])
app.conf.beat_schedule = {
    "often": {
        "task": _task,
        "args": [_run],
        "schedule": 0.2,
        "options": {"queue": "shared", "task_id": _id},
    }
}
