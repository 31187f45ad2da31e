"""Run luacheck over each Lua step as the server gets it, and report by the file that was written.

A step is assembled from fragments, so a file by itself is full of names that another one defines;
only the assembled text can be judged. A fragment's function that one step does not use is no fault;
one that no step uses is.
"""

import re
import subprocess
import sys
from collections import Counter

from lockapp.engines.redis.scripts import Script, build_all

LINE = re.compile(r"^[^:]+:(\d+):(\d+): \((\w+)\) (.*)$")
UNUSED = {"W211", "W212", "W213"}


def warnings_of(script: Script) -> set[tuple[str, int, str, str]]:
    """Return luacheck's (file, line, code, text) for one assembled step."""
    command = ["luacheck", "-", "--formatter", "plain", "--codes", "--no-color"]
    result = subprocess.run(command, input=script.text, capture_output=True, text=True, check=False)
    found = set()
    for line in result.stdout.splitlines():
        match = LINE.match(line)
        if match is None:
            raise SystemExit(f"{script.name}: luacheck said {line!r}")
        # Where another line is quoted, it is the assembled text's; drop what would mislead.
        text = re.sub(r" on line \d+", "", match[4])
        found.add((*script.locate(int(match[1])), match[3], text))
    if result.returncode > 2 or (result.returncode and not found):
        raise SystemExit(f"luacheck failed: {result.stdout}{result.stderr}")
    return found


def main() -> int:
    """Print what is wrong and return the exit code."""
    scripts = build_all()
    everything = {name: warnings_of(script) for name, script in scripts.items()}
    including = Counter(
        path for script in scripts.values() for path in {path for path, _line in script.origin}
    )
    seen = Counter(warning for warnings in everything.values() for warning in warnings)
    faults = [
        warning
        for warning, times in sorted(seen.items())
        if not (warning[2] in UNUSED and times < including[warning[0]])
    ]
    for path, line, code, text in faults:
        print(f"lockapp/engines/redis/lua/{path}:{line}: ({code}) {text}")
    print(f"{len(scripts)} steps, {len(faults)} problem(s)")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
