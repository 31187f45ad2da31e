"""docs/reference/celery-semantics.md: what people wrote above the mark, and below it the table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.celery.semantics.table import GROUPS, SCOPES, Event

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "celery-semantics.md"
MARK = "<!-- From here on written by `python -m tests.celery.semantics --write`. -->\n"
COLUMNS = ("event", "lock", "place in the queue", "body runs", "task state", "result")
TIMES = ("never", "once", "twice")


def page() -> str:
    """Return the whole page."""
    written = PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK
    return written + "\n" + "\n".join(_section(scope) for scope in SCOPES)


def _section(scope: str) -> str:
    parts = [f"## Scope `{scope}`\n"]
    for group, events in GROUPS.items():
        rows = [_row(event, scope) for event in events if event.cell(scope)]
        if rows:
            columns = COLUMNS if scope != "running" else (COLUMNS[0], COLUMNS[1], *COLUMNS[3:])
            head = [_line(columns), _line(["---"] * len(columns)).replace(" ", "")]
            parts += [f"### {group}\n", "\n".join([*head, *rows]) + "\n"]
    return "\n".join(parts)


def _row(event: Event, scope: str) -> str:
    cell = event.cell(scope)
    assert cell is not None
    place = [cell.place.words] if cell.place else []
    outcome = [TIMES[cell.runs], f"`{cell.state}`", cell.result.words]
    return _line([event.words, cell.lock.words, *place, *outcome])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
