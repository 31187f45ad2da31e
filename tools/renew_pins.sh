#!/bin/sh
# Writes constraints.txt anew: the newest releases inside pyproject.toml's ranges, with the LTS
# Django that Python 3.11 can run. Look at the diff, run the tests, then commit.
set -eu
python=$("$(dirname "$0")/find_python.sh" 3.11)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    ".[dev,bench]" "django>=5.2,<5.3"
{
    sed -n '/^#/p' constraints.txt
    "$work/venv/bin/python" -m pip freeze --exclude-editable --exclude django-lockapp
} > "$work/pins"
cat "$work/pins" > constraints.txt
git diff --stat -- constraints.txt
