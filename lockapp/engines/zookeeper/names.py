"""Where things are below the engine's root, and what stands in a node.

=================================  ========================================================
path                               what
=================================  ========================================================
``/P/locks/<name>``                one lock; gone when nobody holds it or waits for it
``/P/locks/<name>/<contender>``    one holder or waiter: ephemeral, its data says who it is
``/P/ended/<token>``               who took a lease away and why, for its holder to find: ephemeral
``/P/notices``                     the names of locks that an operator did something to
=================================  ========================================================

``P`` is the option ``prefix`` below the chroot of the address.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

TOLD_NAMES = 20
"""How many of the last names a notice repeats, for who missed one."""
SAFE = ":@,;=+!~*'()$&- "


class Paths:
    """The paths of one prefix."""

    def __init__(self, prefix: str) -> None:
        self.root = "/" + "/".join(node_name(part) for part in prefix.split("/") if part)
        self.locks = f"{self.root}/locks"
        self.ended = f"{self.root}/ended"
        self.notices = f"{self.root}/notices"
        parts = self.root.split("/")[1:]
        above = ["/" + "/".join(parts[: at + 1]) for at in range(len(parts))]
        self.lasting = [*above, self.locks, self.ended, self.notices]
        """What has to be there before anything else can be made; in that order."""

    def lock(self, name: str) -> str:
        """The node of a lock."""
        return f"{self.locks}/{node_name(name)}"

    def end(self, token: str) -> str:
        """Where the end of a token is told."""
        return f"{self.ended}/{token}"


def node_name(name: str) -> str:
    """Spell any text as one node's name: the server forbids slashes, control characters, dots."""
    quoted = quote(name, safe=SAFE)
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def lock_name(node: str) -> str:
    """Return the text that :func:`node_name` spelled."""
    return unquote(node)


def to_data(about: dict[str, Any]) -> bytes:
    """Write what stands in a node."""
    return json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()


def from_data(data: bytes) -> dict[str, Any]:
    """Read it; empty when it is not of this package's making."""
    try:
        about = json.loads(data or b"{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}
