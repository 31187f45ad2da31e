"""For tests of code that takes locks: engines of a test's own, other holders, time that passes.

Not for production: what is here takes locks away from their holders and turns clocks. The fixtures
for pytest are in :mod:`lockapp.pytest_plugin`.
"""

from lockapp.testing.assertions import assert_locked, assert_no_litter, assert_not_locked
from lockapp.testing.clock import SteppableClock
from lockapp.testing.engine import override_engine
from lockapp.testing.others import (
    aexpire,
    aforce_release,
    arevoke,
    expire,
    force_release,
    held_by_other,
    revoke,
)
from lockapp.testing.transactions import rolled_back

__all__ = [
    "SteppableClock",
    "aexpire",
    "aforce_release",
    "arevoke",
    "assert_locked",
    "assert_no_litter",
    "assert_not_locked",
    "expire",
    "force_release",
    "held_by_other",
    "override_engine",
    "revoke",
    "rolled_back",
]
