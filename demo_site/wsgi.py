"""The WSGI entry point; the demo's runner serves it from two processes (`runner/web.py`)."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")

application = get_wsgi_application()
