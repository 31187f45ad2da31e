"""Read the headers of the Lua steps, and write the sections of docs/reference/lua.md from them.

`python -m tools.lua_page` prints the page, `--write` puts it in its place. The header is the
source: tests/meta/test_lua_headers.py compares it with the body and with what Python sends.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from lockapp.engines.redis.scripts import INCLUDE, STEPS, read

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "lua.md"
FIELDS = ("Keys", "Args", "Returns", "Time", "Cost", "Since", "Invariant")
SHARED = ("clock", "number", "events", "grant", "waiters", "lock", "handoff")

_FIELD = re.compile(r"^(\w+): *(.*)$")
_COUNT = re.compile(r"^(?:(\d+)(?! per)\b)?(?: \+ )?(?:(one|two|three|six)\b.* per (\w+))?")
_NUMBERED = re.compile(r"^(\d+)…? ")
_WORDS = {None: 0, "one": 1, "two": 2, "three": 3, "six": 6}


@dataclass(frozen=True, slots=True)
class Count:
    """How many keys or arguments a step takes: so many, and so many per item."""

    fixed: int
    each: int = 0

    def of(self, items: int) -> int:
        """Return the number for a call with this many items."""
        return self.fixed + self.each * items


@dataclass(frozen=True, slots=True)
class Header:
    """What stands above a step's code."""

    flags: str
    sentence: str
    fields: dict[str, list[str]]  # in the order in which they stand; the lines of each

    def count(self, field: str) -> Count:
        """Return what `Keys:` or `Args:` declares."""
        found = _COUNT.match(self.fields[field][0])
        if found is None or not found[0]:
            raise ValueError(f"{field}: {self.fields[field][0]!r} says no number")
        return Count(int(found[1] or 0), _WORDS[found[2]])

    def numbers(self, field: str) -> list[int]:
        """Return the positions that a field explains, in the order in which they stand."""
        entries = [part for line in self.fields[field][1:] for part in re.split(r", (?=\d)", line)]
        return [int(found[1]) for part in entries if (found := _NUMBERED.match(part))]


def parse(source: str) -> Header:
    """Read the comment lines up to the first include or line of code.

    Raises:
        ValueError: no such header.
    """
    lines = source.splitlines()
    if not lines or not lines[0].startswith("#!lua"):
        raise ValueError("the first line must be '#!lua', with flags")
    flags = lines[0].removeprefix("#!lua").strip()
    sentence: list[str] = []
    fields: dict[str, list[str]] = {}
    present: list[str] = sentence
    for line in lines[1:]:
        if INCLUDE.match(line) or not line.startswith("-- "):
            break
        text = line.removeprefix("-- ")
        field = _FIELD.match(text)
        if field and field[1] in FIELDS:
            if field[1] in fields:
                raise ValueError(f"{field[1]}: stands there twice")
            present = fields[field[1]] = [field[2]]
        else:
            present.append(text.strip())
    if not sentence:
        raise ValueError("no sentence says what the step does")
    return Header(flags, " ".join(sentence), fields)


def body(source: str) -> list[str]:
    """Return the lines below the header, without includes and blank lines."""
    lines = source.splitlines()
    start = next((i for i, line in enumerate(lines) if not line.startswith(("#!", "--"))), 0)
    return [line for line in lines[start:] if line.strip() and not INCLUDE.match(line)]


def includes(source: str) -> list[str]:
    """Return what a step includes, in order."""
    return [found[1] for line in source.splitlines() if (found := INCLUDE.match(line))]


def sources() -> dict[str, str]:
    """Return every Lua file by its path."""
    paths = [f"{name}.lua" for name in STEPS] + [f"_shared/{name}.lua" for name in SHARED]
    return {path: read(path) for path in paths}


# ------------------------------------------------------------------ the page

MARK = "<!-- From here on written by `python -m tools.lua_page --write`. -->\n"


def page(given: dict[str, str] | None = None) -> str:
    """Return docs/reference/lua.md: what people wrote above the mark, and a section per step."""
    texts = given or sources()
    parts = [PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK]
    for name in STEPS:
        source = texts[f"{name}.lua"]
        header = parse(source)
        flags = header.flags.removeprefix("flags=") or "none"
        shared = ", ".join(f"`{path}`" for path in includes(source))
        fields = "\n".join(_shown(field, lines) for field, lines in header.fields.items())
        parts.append(
            f"## {name}\n\n{header.sentence}\n\n```text\n{fields}\n```\n\n"
            f"Flags: {flags}. Includes: {shared}.\n"
        )
    return "\n".join(parts)


def _shown(field: str, lines: list[str]) -> str:
    return "\n".join([f"{field}: {lines[0]}", *(f"  {line}" for line in lines[1:])])


def main(arguments: list[str]) -> int:
    """Print or write the page."""
    if arguments == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
