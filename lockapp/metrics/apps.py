"""The app that has what happens to locks counted."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _


class MetricsConfig(AppConfig):
    """lockapp.metrics as Django sees it."""

    name = "lockapp.metrics"
    label = "lockapp_metrics"
    verbose_name = _("Metrics of locks")

    def ready(self) -> None:
        """Begin to count.

        Raises:
            ImproperlyConfigured: prometheus-client is not installed.
        """
        try:
            from lockapp.metrics.prometheus import connect
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise ImproperlyConfigured(
                '"lockapp.metrics" is in INSTALLED_APPS, and prometheus-client is not installed: '
                "pip install django-lockapp[prometheus]"
            ) from error
        connect()
