"""What passes between the callers of a single flight: the landing, and what was computed.

A *flight* is one computation, numbered by the fencing token of its leader's lease. Its *landing* is
the broadcast that ends it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

KEPT = "kept"  # the result is in the cache, for later callers too
PASSED = "passed"  # the result is in the cache, for those who wait for this flight only
ABORTED = "aborted"  # there is none: somebody else has to compute

FORM = 1
"""Version of what is put into a cache. Another one counts as nothing found."""


class Landing(NamedTuple):
    """What a flight's followers are told, all at once."""

    fence: int
    outcome: str


class Stored(NamedTuple):
    """A result as it lies in the cache. Times are epoch seconds of whoever computed it."""

    ok: bool
    value: Any  # the error when not ok
    fence: int
    computed_at: float
    fresh_until: float
    stale_until: float

    def packed(self) -> tuple[Any, ...]:
        """Return it in plain types, which any serializer of a cache can carry."""
        return (FORM, *self)


def unpacked(raw: object) -> Stored | None:
    """Read what a cache returned; None for nothing, and for what somebody else put there."""
    if not isinstance(raw, tuple | list) or len(raw) != 1 + len(Stored._fields) or raw[0] != FORM:
        return None
    return Stored(*raw[1:])
