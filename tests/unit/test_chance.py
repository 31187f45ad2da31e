"""What spreads load is no application's to seed."""

from __future__ import annotations

import random

from lockapp.core import renewal
from lockapp.core.chance import chance


def test_a_seeded_application_neither_steers_it_nor_loses_numbers_to_it() -> None:
    """Two processes with one seed must not renew in step."""
    drawn = []
    for _ in range(2):
        random.seed(1)
        before = random.getstate()
        drawn.append(renewal.renew_at(0.0, 30.0, chance.random()))
        assert random.getstate() == before
    assert drawn[0] != drawn[1]
