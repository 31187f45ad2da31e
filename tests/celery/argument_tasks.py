"""The task of test_arguments.py, run by the suite's workers."""

from __future__ import annotations

from typing import Any

from lockapp.celery import current_lease, single_instance
from tests.celery.app import GATE_LIMIT_S, _client, _tell, app


@app.task(name="by_value", autoretry_for=(KeyError,))
@single_instance
def by_value(run: str, value: Any = None, *, more: Any = ()) -> str:
    """Celery wraps it once more, because of the retries; its parameters are those of this line."""
    _tell(run, "enter", key=0)
    _client().blpop([f"gate:{run}:0"], timeout=GATE_LIMIT_S)
    return current_lease().name
