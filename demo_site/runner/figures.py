"""What was counted, what should have been counted, and whether they agree. No I/O."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the verdict."""

    group: str
    what: str
    expected: str
    actual: int
    right: bool


def exactly(group: str, what: str, expected: int, actual: int) -> Figure:
    """A figure that must be the expected one."""
    return Figure(group, what, str(expected), actual, actual == expected)


def more_than(group: str, what: str, bound: int, actual: int) -> Figure:
    """A figure that must exceed a bound."""
    return Figure(group, what, f"> {bound}", actual, actual > bound)
