"""`make check`: run every check, name each one, fail when any failed.

All of them run even after a failure, so that one round shows everything there is to mend.
`ARGS="lint types"` runs only the checks named.
"""

import shutil
import subprocess
import sys
import time

PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]

CHECKS: dict[str, list[str]] = {
    "format": [PYTHON, "-m", "ruff", "format", "--check", "."],
    "lint": [PYTHON, "-m", "ruff", "check", "."],
    "types": [PYTHON, "-m", "mypy"],
    "layers": [*PYTEST, "tests/meta/test_layering.py"],
    "migrations": [PYTHON, "manage.py", "makemigrations", "--check", "--dry-run"],
    "translations": [PYTHON, "-m", "tools.translations", "check"],
    "docs": [*PYTEST, "tests/docs"],
    "lua": [PYTHON, "-m", "tools.lua"],
}


def run(name: str, command: list[str]) -> str:
    """Run one check and return its outcome: "ok", "FAILED" or why it was left out."""
    print(f"--- {name}: {' '.join(command).replace(PYTHON, 'python')}", flush=True)
    if name == "lua" and shutil.which("luacheck") is None:
        return "left out: luacheck is not installed (Debian package lua-check)"
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    seconds = time.monotonic() - started
    return f"ok ({seconds:.1f} s)" if code == 0 else f"FAILED ({seconds:.1f} s, exit {code})"


def main(names: list[str]) -> int:
    """Run the checks named, or all of them; return the exit code."""
    unknown = set(names) - set(CHECKS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(CHECKS)}")
        return 2
    outcomes = {name: run(name, CHECKS[name]) for name in names or CHECKS}
    print("--- result")
    for name, outcome in outcomes.items():
        print(f"  {name:13} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
