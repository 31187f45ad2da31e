#!/bin/sh
# Prints the first Python that works and is new enough, trying $PYTHON or else the usual names.
# Each candidate is *run*: version managers leave names on PATH that only print an error.
minimum="${1:-3.11}"
script="import sys; sys.exit(sys.version_info < tuple(map(int, '$minimum'.split('.'))))"
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    if "$path" -c "$script" >/dev/null 2>&1; then
        printf '%s\n' "$path"
        exit 0
    fi
done
if [ -n "$PYTHON" ]; then
    echo "PYTHON=$PYTHON is not a Python $minimum or later that runs." >&2
else
    echo "No Python $minimum or later found on PATH." >&2
    echo "Install one (Debian/Ubuntu: apt-get install python3 python3-venv; macOS: brew install python)" >&2
    echo "or name one: make PYTHON=/path/to/python3.12 ..." >&2
fi
exit 1
