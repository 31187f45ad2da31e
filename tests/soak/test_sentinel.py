"""Masters are killed and frozen while processes contend; how often two held a lock is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sentinels import Watched
from tests.soak.failovers import assert_only_what_may_be, contend


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acks", [0, 1])
def test_masters_die_and_freeze_while_processes_contend(tmp_path: Path, acks: int) -> None:
    """Without acknowledgements some overlaps are to be expected; with them there is none."""
    with Watched() as service:
        stays = contend(service, lambda _: service.master, tmp_path, acks)
    assert_only_what_may_be(stays, acks)
