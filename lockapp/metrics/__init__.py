"""Prometheus metrics of what this process does with locks (``django-lockapp[prometheus]``).

An app of its own: who lists ``"lockapp.metrics"`` in ``INSTALLED_APPS`` has them, nobody else pays
for them. See :mod:`lockapp.metrics.prometheus` for their names.
"""
