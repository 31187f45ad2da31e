"""Print constraints.txt with the pins of other files laid over it.

Run before anything is installed, so it uses the standard library only:
`python tools/merge_pins.py constraints.txt constraints-newest.txt`. A later file wins.
"""

import re
import sys
from pathlib import Path


def read_pins(path: Path) -> dict[str, str]:
    """Return {normalised name: "name==version"} of one file.

    Raises:
        SystemExit: A line is not a plain `name==version` pin.
    """
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        pin = line.split("#", 1)[0].strip()
        if not pin:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)", pin)
        if match is None:
            raise SystemExit(f"{path}: not a plain name==version pin: {pin!r}")
        pins[re.sub(r"[-_.]+", "-", match[1]).lower()] = pin
    return pins


def main(arguments: list[str]) -> None:
    """Print the merged pins of the files named."""
    merged: dict[str, str] = {}
    for argument in arguments:
        merged |= read_pins(Path(argument))
    print("\n".join(merged[name] for name in sorted(merged)))


if __name__ == "__main__":
    main(sys.argv[1:])
