"""What the runner shows: steps (with a spinner on a terminal, plain when piped) and figures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from demo_site.runner.children import ChildFailed
from demo_site.runner.figures import Figure

PIPED_WIDTH = 110
Update = Callable[[str], None]


class Screen:
    """Standard output, as a person or a log reads it."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=PIPED_WIDTH)

    def say(self, text: str = "") -> None:
        """Print a line; square brackets are styles."""
        self.console.print(text)

    def remark(self, text: str) -> None:
        """Print something by the way, as it is."""
        self.console.print(f"[dim]      {escape(text)}[/]")

    @contextmanager
    def step(self, title: str) -> Iterator[Update]:
        """Show what goes on, then how long it took; yields a function that shows how far it is."""
        began = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(f"{title} …") as status:
                yield lambda text: status.update(f"{title} … [dim]{escape(text)}[/]")
        else:
            self.say(f"{title} ...")
            yield lambda text: None
        self.say(f"[green]done[/]  {title} [dim]({time.monotonic() - began:.1f} s)[/]")

    def addresses(self, rows: dict[str, str]) -> None:
        """Show where everything is."""
        grid = Table.grid(padding=(0, 2))
        for label, value in rows.items():
            grid.add_row(f"[bold]{label}[/]", escape(value))
        self.console.print(Panel(grid, title="The shop is open", expand=False))

    def figures(self, figures: list[Figure]) -> None:
        """Show each figure with its verdict."""
        table = Table(title="The race", title_justify="left", expand=not self.console.is_terminal)
        table.add_column("What was measured")
        table.add_column("Expected", justify="right")
        table.add_column("Actual", justify="right")
        table.add_column("Verdict")
        group = None
        for figure in figures:
            if group not in (None, figure.group):
                table.add_section()
            if group != figure.group:
                table.add_row(f"[bold]{escape(figure.group)}[/]")
            group = figure.group
            verdict = "[green]right[/]" if figure.right else "[bold red]WRONG[/]"
            table.add_row(f"  {escape(figure.what)}", figure.expected, str(figure.actual), verdict)
        self.console.print(table)

    def failure(self, error: ChildFailed) -> None:
        """Show which process failed and the end of its log."""
        self.console.print(f"[bold red]{escape(str(error))}.[/] The end of its log:")
        self.console.print(Panel(escape(error.tail) or "(empty)", title=error.child.log.name))
