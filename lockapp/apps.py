"""The app's configuration: registers checks, nothing else. Nothing is connected or read here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _


class LockAppConfig(AppConfig):
    """lockapp as Django sees it."""

    name = "lockapp"
    verbose_name = _("Locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from lockapp import checks

        checks.register_all()
        register(_check_fences, Tags.database)  # only: a tag of ours would run it unasked
        if find_spec("celery"):
            register(_check_tasks, checks.TAG, deploy=True)


def _check_fences(app_configs: object = None, databases: Any = None, **kwargs: object) -> Any:
    """Judge the fences of the databases that may be asked, if any."""
    return import_string("lockapp.fencing.checks.check_fences")(databases or ())


def _check_tasks(app_configs: object = None, **kwargs: object) -> Any:
    """Judge the tasks. What knows Celery is imported by who deploys, not by every process."""
    return import_string("lockapp.celery.checks.check_tasks")()
