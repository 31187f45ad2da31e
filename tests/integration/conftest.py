"""Stepping servers: the shipped scripts on a real server, under virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockapp.core.run import run_sync
from tests.contract.conftest import CHOSEN
from tests.stepping import RedisWorldServer

collect_ignore = [] if "zookeeper" in CHOSEN else ["test_zookeeper.py"]


@pytest.fixture
def make_server(redis_url: str, prefix: str) -> Iterator[Callable[..., RedisWorldServer]]:
    """Build a stepping server, with some script texts replaced, or other options."""
    made: list[RedisWorldServer] = []

    def build(sources: dict[str, str] | None = None, **options: Any) -> RedisWorldServer:
        made.append(RedisWorldServer(redis_url, prefix, sources, **options))
        return made[-1]

    yield build
    for server in made:
        server.client.delete(f"{prefix}:none", *server.client.keys(f"{prefix}:*"))
        run_sync(server.steps.rest())
        server.client.close()
