"""What a measurement shows: a table, targets that are reached or missed, charts. No measuring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """One figure of this run beside what it should be; ``at_least`` turns the comparison."""

    what: str
    figure: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure is good enough; a figure that could not be taken is not."""
        if math.isnan(self.figure):
            return False
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def verdict(self) -> str:
        """One word."""
        return "reached" if self.reached else "missed"

    @property
    def aim(self) -> str:
        """The limit, as the tables show it."""
        return f"{'≥' if self.at_least else '≤'} {exact(self.limit)}{self.unit}"

    @property
    def shown(self) -> str:
        """The figure, with the digits that tell it from its limit."""
        whole = isinstance(self.figure, int)
        return f"{self.figure:,}" if whole else f"{between(self.figure, self.limit)}{self.unit}"


@dataclass(frozen=True)
class Chart:
    """A chart as data: ``series`` has a figure, or None, for each of the ``labels``."""

    name: str  # of its file
    title: str
    labels: tuple[str, ...]
    series: dict[str, tuple[float | None, ...]]
    lines: bool = False  # else bars
    logarithmic: bool = False


@dataclass(frozen=True)
class Section:
    """The outcome of one measurement."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    targets: tuple[Target, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = field(default=())


def exact(figure: float) -> str:
    """Return a limit as it was written down."""
    return f"{figure:,.10g}" if figure < 1000 else f"{figure:,.0f}"


def rounded(figure: float, digits: int = 3) -> str:
    """Return a figure with ``digits`` significant digits, and all digits before the point."""
    if math.isnan(figure):
        return "–"
    if figure == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(figure))))
    return f"{figure:,.{places}f}"


def between(figure: float, limit: float) -> str:
    """Return a figure so rounded that it never looks like its limit without being it."""
    for digits in range(3, 10):
        text = rounded(figure, digits)
        if figure == limit or text != rounded(limit, digits):
            return text
    return text


def show(console: Console, section: Section) -> None:
    """Print one section."""
    table = Table(title=section.title, title_justify="left")
    for number, head in enumerate(section.heads):
        table.add_column(head, justify="right" if number else "left")
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for note in section.notes:
        console.print(f"[dim]{note.replace('*', '')}[/dim]")
    for target in section.targets:
        colour = "green" if target.reached else "red"
        console.print(
            f"  [{colour}]{target.verdict:7}[/{colour}] "
            f"{target.what}: {target.shown} (aim: {target.aim})"
        )
    console.print()


def markdown(section: Section, folder: str) -> str:
    """Return one section as Markdown; its charts lie in ``folder``."""
    parts = [f"### {section.title}", _table(section.heads, section.rows)]
    parts += section.notes
    if section.targets:
        parts.append(_targets(section.targets))
    parts += [f"![{chart.title}]({folder}/{chart.name}.svg)" for chart in section.charts]
    return "\n\n".join(parts) + "\n"


def _targets(targets: Sequence[Target]) -> str:
    return _table(
        ("target", "this run", "aim", ""),
        [
            (it.what, it.shown, it.aim, it.verdict if it.reached else f"**{it.verdict}**")
            for it in targets
        ],
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))
