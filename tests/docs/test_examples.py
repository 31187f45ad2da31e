"""The Python examples of README.md and docs/ run, from top to bottom, on a real server.

Each document is one test and one namespace, as a reader would type it in. A block that only shows a
fragment is left out by a comment above it: `<!-- skip: next "why" -->`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if path.exists() and "```python" in path.read_text(encoding="utf-8")
]


def test_there_is_something_to_run() -> None:
    """A moved folder must not turn the check into nothing."""
    assert DOCUMENTS or not (ROOT / "docs" / "quickstart.md").exists()


PARAMETERS = [
    pytest.param(
        path,
        id=path.relative_to(ROOT).as_posix(),
        # It takes a lock away. What tells the holder who did stays for a minute.
        marks=pytest.mark.keeps_keys if path.name == "stuck.md" else (),
    )
    for path in DOCUMENTS
]


@pytest.mark.parametrize("path", PARAMETERS)
@pytest.mark.django_db(transaction=True)
def test_examples_run(path: Path, redis_locks: Any) -> None:
    """An exception in a block fails with the document's line."""
    document = Document.parse(str(path), PythonCodeBlockParser(), SkipParser())
    document.namespace["__name__"] = f"examples_{path.stem}"
    for example in document.examples():
        example.evaluate()
