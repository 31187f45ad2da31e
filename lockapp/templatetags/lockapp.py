"""How the pages about locks write durations and names."""

from __future__ import annotations

from django import template

from lockapp.dashboard import snapshot

register = template.Library()


@register.filter
def duration(seconds: float) -> str:
    """Return a length of time as people read it: ``12 s``, ``3 min 5 s``, ``2 h``."""
    return snapshot.duration(seconds)


@register.filter
def printable(text: str) -> str:
    """Spell out what is not printable."""
    return snapshot.printable(text)
