"""Load the Lua steps: includes resolved, SHA computed, nothing sent.

One file per operation, one text, one SHA. ``-- include: _shared/x.lua`` stands on a line of its
own and is replaced by that file; no values are ever templated into a script.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from importlib.resources import files

from lockapp.engines.redis.request import Words

INCLUDE = re.compile(r"^-- include: (\S+)$")
STEPS = (
    "acquire", "acquire_all", "accept", "release", "cancel", "renew", "downgrade", "revoke",
    "force_release", "abandon", "sweep", "inspect", "land", "report",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One step's text as the server runs it; ``origin`` maps its lines back to files."""

    name: str
    text: str
    sha: str
    origin: tuple[tuple[str, int], ...] = field(repr=False)
    by_sha: Words = field(init=False, repr=False, compare=False)
    by_text: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_sha", Words("EVALSHA", self.sha))
        object.__setattr__(self, "by_text", Words("EVAL", self.text))

    def locate(self, line: int) -> tuple[str, int]:
        """Return the file and line that ``line`` of the text came from."""
        return self.origin[line - 1] if 0 < line <= len(self.origin) else (f"{self.name}.lua", line)


def read(path: str) -> str:
    """Return the text of a file under ``lua/``."""
    return (files("lockapp.engines.redis") / "lua" / path).read_text(encoding="utf-8")


def build(name: str, sources: dict[str, str] | None = None) -> Script:
    """Assemble the script ``name``.

    Args:
        name: the operation, as its file is called.
        sources: other texts for some files (tests take a guard away to see that it is missed).
    """
    given = sources or {}
    lines: list[str] = []
    origin: list[tuple[str, int]] = []

    def add(path: str) -> None:
        for number, line in enumerate((given.get(path) or read(path)).splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                add(include[1])
            else:
                lines.append(line)
                origin.append((path, number))

    add(f"{name}.lua")
    text = "\n".join(lines)
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest(), tuple(origin))  # noqa: S324


def build_all(sources: dict[str, str] | None = None) -> dict[str, Script]:
    """Assemble every step."""
    return {name: build(name, sources) for name in STEPS}
