"""How a child process finds the database of the running test."""

from __future__ import annotations

import os

from django.db import connection

from tests.addresses import ADDRESSES, address_of


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment in which tests.settings names the test's own database."""
    name = str(connection.settings_dict["NAME"])
    kind = os.environ.get("LOCKAPP_TEST_DATABASE", "sqlite")
    if kind == "sqlite":
        database = {"LOCKAPP_TEST_SQLITE": name}
    else:
        address = address_of(kind).rpartition("/")[0]
        database = {ADDRESSES[kind][0]: f"{address}/{name}"}
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **database, **more}
