"""System check of the fences: engines whose claims the database will refuse.

Run with ``check --database`` and by ``migrate``, as every check that asks a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from lockapp import conf
from lockapp.checks import Messages
from lockapp.fencing.claims import identity
from lockapp.models import Fence

HINTS = {
    "W017": "Raise OPTIONS['fence_epoch'] of the engine that is in use now above the one stored.",
}


def check_fences(databases: Iterable[str]) -> Messages:
    """Compare the epochs of the settings with those in these databases."""
    try:
        engines = {
            identity(alias, config.engine_class()): config.options.fence_epoch
            for alias, config in conf.configs().items()
        }
    except ImproperlyConfigured:
        return []  # told by check_settings
    return [message for using in databases for message in _judge(using, engines)]


def _judge(using: str, engines: dict[str, int]) -> Iterator[checks.CheckMessage]:
    if Fence._meta.db_table not in connections[using].introspection.table_names():
        return  # not migrated, or not a database with fences
    stored = Fence.objects.using(using).order_by().values_list("engine", "epoch").distinct()
    for engine, epoch in sorted(stored):
        if engine in engines:
            refused = [engine] if engines[engine] < epoch else []
        else:  # of an alias, or a kind of engine, that the settings had before
            refused = [ours for ours, own in engines.items() if own <= epoch]
        for ours in refused:
            yield checks.Warning(
                f"The database {using!r} has fences that the engine {engine!r} claimed with epoch "
                f"{epoch}; {ours!r} has {engines[ours]}, and can't claim those locks.",
                hint=HINTS["W017"],
                id="lockapp.W017",
            )
