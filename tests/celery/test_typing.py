"""A type checker sees the parameters and the result of a locked task, as a user's project does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = Path(__file__).with_name("typed_tasks.py")


@pytest.mark.timeout(300)
def test_a_decorated_task_keeps_its_signature_for_type_checkers(tmp_path: Path) -> None:
    """Every assertion of the file holds, and every error that it expects is there.

    From another directory, without the settings of this repository: lockapp is a package that is
    installed there, and says that it is typed.
    """
    users = tmp_path / "users_tasks.py"
    users.write_text(TYPED.read_text(encoding="utf-8"), encoding="utf-8")
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'users'}"
    environment = {key: value for key, value in os.environ.items() if key != "MYPYPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", cache, users.name],
        cwd=tmp_path, env=environment, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("Success"), done.stdout + done.stderr
