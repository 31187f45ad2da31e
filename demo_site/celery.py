"""The Celery application, set up the way Celery's own Django guide does it.

Imported by ``demo_site/__init__.py``, so that ``@shared_task`` binds to this application in every
process.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")

app = Celery("demo_site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
