"""Celery tasks of which one instance runs at a time.

This package may be imported without Django settings and without an app; it connects nothing.
"""

from __future__ import annotations

from lockapp.celery import worker as _worker  # noqa: F401 - listens to Celery's signals
from lockapp.celery.decorator import single_instance
from lockapp.celery.execution import current_lease
from lockapp.celery.publish import LockTask
from lockapp.celery.turned import Skipped, was_skipped

__all__ = ["LockTask", "Skipped", "current_lease", "single_instance", "was_skipped"]
