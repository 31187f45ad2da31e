"""Where a view that goes on is drawn: by rich on a terminal; else, or without it, as plain lines.

A frame is a head and rows of text. Nothing in it is read as markup or as a control sequence: names
come from users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import get_terminal_size
from typing import Any

from django.core.management.base import OutputWrapper

from lockapp.management import terminal

AROUND = 5
"""Lines of a screen that are not rows: the title, the column heads, what is below."""
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown at one moment. ``alarms`` has a number for each row: 0 calm, 1, 2 urgent."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[tuple[str, ...]] = ()
    alarms: Sequence[int] = ()
    below: str = ""

    def lines(self) -> Iterator[str]:
        """Yield it as plain text."""
        yield self.title
        if self.rows:
            yield from terminal.table(self.head, self.rows)
        if self.below:
            yield self.below


Draw = Callable[[Frame], None]


def room(out: OutputWrapper) -> int | None:
    """Return how many rows fit on the screen; None: it has no end."""
    return max(get_terminal_size().lines - AROUND, 1) if out.isatty() else None


@contextmanager
def screen(out: OutputWrapper, *, color: bool = True) -> Iterator[Draw]:
    """Yield a function that shows a frame in place of the last one.

    Args:
        out: where; on a terminal the screen is as it was when the block has ended.
        color: False to do without.
    """
    if out.isatty() and find_spec("rich") is not None:
        with _rich(out, color) as draw:
            yield draw
    else:
        yield _plain(out)


def _plain(out: OutputWrapper) -> Draw:
    in_place = out.isatty()
    start, end = (_HOME, f"{_CLEAR_LINE}\n") if in_place else ("", "\n")
    after = _CLEAR_BELOW if in_place else "\n"

    def draw(frame: Frame) -> None:
        out.write(start + "".join(line + end for line in frame.lines()) + after, ending="")
        out.flush()

    return draw


@contextmanager
def _rich(out: OutputWrapper, color: bool) -> Iterator[Draw]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    styles = ("", "yellow", "bold red")

    def drawn(frame: Frame) -> Any:
        parts: list[Any] = [Text(frame.title, style="bold")]
        if frame.rows:
            table = Table(box=None, pad_edge=False, header_style="cyan")
            for label in frame.head:
                # The last one is the name; the others keep their width.
                last = label == frame.head[-1]
                table.add_column(label, no_wrap=True, overflow="ellipsis" if last else "fold")
            for cells, alarm in zip(frame.rows, frame.alarms, strict=True):
                table.add_row(*map(Text, cells), style=styles[alarm])
            parts.append(table)
        if frame.below:
            parts.append(Text(frame.below, style="dim"))
        return Group(*parts)

    under: Any = out._out  # the wrapper would end each piece of a line with a line feed
    console = Console(file=under, no_color=not color, highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(drawn(frame), refresh=True)
