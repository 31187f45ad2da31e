"""The trail the races left in the audit log."""

import time
from collections import Counter
from dataclasses import dataclass

from django.apps import apps

from demo_site.runner.site import Site

COLLECT_LIMIT_S = 20.0
POLL_S = 0.2


@dataclass(frozen=True)
class Trail:
    """Lock events of one family of locks."""

    acquired: int
    released: int

    def __sub__(self, earlier: "Trail") -> "Trail":
        return Trail(self.acquired - earlier.acquired, self.released - earlier.released)


def trail_of(family: str) -> Trail:
    """Count the events of the locks of a family: those whose names begin with the same part."""
    kinds = Counter(
        apps.get_model("lockapp", "LockEvent")
        .objects.filter(family=family)
        .values_list("kind", flat=True)
    )
    return Trail(acquired=kinds["acquired"], released=kinds["released"])


def wait_for_releases(
    site: Site, before: dict[str, Trail], releases: dict[str, int]
) -> dict[str, Trail]:
    """Return what was added since ``before``, once the collector has written the ``releases``.

    Beat starts the collector every other second. Gives up quietly after a while: then the figures
    say what is missing.
    """
    end = time.monotonic() + COLLECT_LIMIT_S
    while True:
        added = {family: trail_of(family) - earlier for family, earlier in before.items()}
        complete = all(added[family].released >= count for family, count in releases.items())
        if complete or time.monotonic() > end:
            return added
        site.require_alive()
        time.sleep(POLL_S)
