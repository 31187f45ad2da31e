"""What users install is complete: built from this tree, read, and (soak) used in an empty place."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Beside Python: scripts, pages, styles, translations in both forms, the typing marker.
SHIPPED = {".py", ".lua", ".html", ".txt", ".css", ".js", ".svg", ".po", ".mo", ".typed", ".json"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the present tree."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = target.glob("django_lockapp-*.whl")
    return built


def source_files() -> set[str]:
    """Every file below lockapp that is part of the product."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "lockapp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (path.suffix in SHIPPED)
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    """A Lua script, a template or a compiled translation that is left out breaks only at users."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == source_files()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Installed without any extra and without the checkout: it imports, and every script loads."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str) -> str:
        result = subprocess.run(
            [str(python), *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    constraints = str(ROOT / "constraints.txt")
    run("-m", "pip", "install", "--quiet", "--constraint", constraints, str(wheel))
    count = len(list((ROOT / "lockapp").rglob("*.lua")))
    script = (
        "import lockapp, importlib.resources as r; "
        "root = r.files('lockapp'); "
        "walk = lambda p: sum(map(walk, p.iterdir())) if p.is_dir() else p.name.endswith('.lua'); "
        "assert 'site-packages' in lockapp.__file__, lockapp.__file__; "
        "print(lockapp.__version__, walk(root))"
    )
    assert run("-c", script).split()[1:] == [str(count)]
