"""An order shop that shows each feature of lockapp once, on real servers.

Start it with ``make demo`` (or ``python -m demo_site.run``). Read it in this order:
``settings.py`` (how a project is set up), ``shop/views.py`` and ``shop/tasks.py`` (a lock round a
view and round a task), ``runner/`` (how the race is run and judged; a project of yours needs
nothing of that).
"""

from demo_site.celery import app as celery_app

__all__ = ["celery_app"]
