"""The page of the last run: written between two marks, with its charts beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.bench.charts import draw
from tests.bench.report import Section, markdown

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"
FOLDER = "performance"  # beside the page
BEGIN = "<!-- From here on written by `make bench ARGS=--write`. -->\n"
END = "<!-- Up to here. -->\n"


def compose(text: str, sections: Sequence[Section], machine: str, form: str) -> str:
    """Return the page's text with this run in the place of the last one.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no marks to write between")
    targets = [target for section in sections for target in section.targets]
    reached = sum(target.reached for target in targets)
    parts = [f"Machine: {machine}.", f"{form} {reached} of {len(targets)} targets reached.\n"]
    body = "\n\n".join(parts) + "\n" + "\n".join(markdown(it, FOLDER) for it in sections)
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def write(sections: Sequence[Section], machine: str, form: str, page: Path = PAGE) -> None:
    """Write the page and its charts; charts of measurements that are gone go as well."""
    text = compose(page.read_text(encoding="utf-8"), sections, machine, form)
    folder = page.parent / FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for section in sections:
        for chart in section.charts:
            (folder / f"{chart.name}.svg").write_text(draw(chart), encoding="utf-8")
    page.write_text(text, encoding="utf-8")


def charts_of(text: str) -> list[str]:
    """Return the names of the chart files that a page shows."""
    return re.findall(rf"\({FOLDER}/([\w-]+\.svg)\)", text)
