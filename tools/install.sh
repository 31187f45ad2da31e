#!/bin/sh
# install.sh VENV EXTRAS PIN_FILE...: makes the virtual environment if it is missing and installs
# lockapp with EXTRAS into it, at the pinned versions. The Makefile decides when that is needed.
set -eu
venv=$1 extras=$2
shift 2
here=$(dirname "$0")

if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
    python=$("$here/find_python.sh" 3.11)
    echo "[1/2] Creating $venv with $("$python" --version) ($python)"
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        echo "This Python cannot make virtual environments: its venv or ensurepip module is missing." >&2
        echo "On Debian or Ubuntu: apt-get install python3-venv. Or name another: make PYTHON=..." >&2
        exit 1
    fi
    # --clear: what an interrupted earlier attempt left would make this one fail.
    "$python" -m venv --clear "$venv"
else
    echo "[1/2] Using $venv ($("$venv/bin/python" --version))"
fi

"$venv/bin/python" "$here/merge_pins.py" "$@" > "$venv/constraints.txt"
echo "[2/2] Installing lockapp[$extras] and $(grep -c . "$venv/constraints.txt") known-good versions (a minute or two the first time)"
"$venv/bin/python" -m pip install --disable-pip-version-check --prefer-binary \
    --constraint "$venv/constraints.txt" --editable ".[$extras]"
