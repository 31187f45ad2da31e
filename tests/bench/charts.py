"""Charts as SVG: the same figures give the same bytes, readable on light and on dark ground."""

from __future__ import annotations

import math
import sys
from xml.etree import ElementTree

import pygal

from tests.bench.report import Chart, rounded

# The library's import ends with a finder for map plugins on the import path, of a kind that Python
# 3.12 gave up and earlier ones warn of. Nothing here is a map.
sys.meta_path[:] = [it for it in sys.meta_path if type(it).__module__ != "pygal"]

COLOURS = ("#2f7ed8", "#c9702c", "#3f9a5c", "#9166c4", "#888888", "#b84a62")
WIDTH, HEIGHT = 760, 340
SVG = "{http://www.w3.org/2000/svg}"

STYLE = (
    """
svg { font-family: system-ui, sans-serif; }
text { fill: #24292f; font-size: 12px; }
.title { font-size: 15px; text-anchor: middle; }
.axis.x text { text-anchor: middle; }
.axis.y text { text-anchor: end; }
.text-overlay text { text-anchor: middle; font-size: 11px; }
.background { fill: none; }
.axis .line { stroke: #24292f; stroke-opacity: .5; fill: none; }
.axis .guide.line { stroke-opacity: .15; }
.line-graph .series .line { stroke-width: 2; fill: none; }
.nofill { fill: none; }
.tooltip, .crosshair, desc { display: none; }
"""
    + "".join(
        f".color-{number} {{ fill: {colour}; stroke: {colour}; }}\n"
        for number, colour in enumerate(COLOURS)
    )
    + """.text-overlay text { fill: #24292f; stroke: none; }
@media (prefers-color-scheme: dark) {
  text, .text-overlay text { fill: #d0d7de; }
  .axis .line { stroke: #d0d7de; }
}
"""
)


def draw(chart: Chart) -> str:
    """Return a chart as the text of an SVG file: no scripts, no dates, no versions."""
    kind = pygal.Line if chart.lines else pygal.Bar
    highest = max((it for figures in chart.series.values() for it in figures if it), default=1.0)
    drawn = kind(
        width=WIDTH,
        height=HEIGHT,
        js=[],
        title=chart.title,
        logarithmic=chart.logarithmic,
        show_legend=len(chart.series) > 1,
        legend_at_bottom=True,
        legend_at_bottom_columns=3,
        print_values=True,
        print_values_position="top",
        print_zeroes=False,
        truncate_label=-1,
        margin_right=40,
        value_formatter=lambda value: f"{value:,.6g}",
        zero=1 if chart.logarithmic else 0,
        y_labels=_decades(highest) if chart.logarithmic else None,
        range=(1, 2 * highest) if chart.logarithmic else (0, 1.1 * highest),
        explicit_size=False,
        disable_xml_declaration=True,
    )
    drawn.uuid = chart.name
    drawn.x_labels = chart.labels
    for title, figures in chart.series.items():
        drawn.add(title, figures, formatter=lambda it: "" if it is None else rounded(it))
    drawn.add_xml_filter(_plain)
    return f"{drawn.render(is_unicode=True)}\n"


def _decades(highest: float) -> list[int]:
    return [10**power for power in range(1 + math.ceil(math.log10(max(highest, 1))))]


def _plain(root: ElementTree.Element) -> ElementTree.Element:
    """Drop scripts, comments and what moves; put our own style in the place of the library's."""
    for parent in list(root.iter()):
        for child in list(parent):
            name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
            if not isinstance(child.tag, str) or name in ("script", "desc"):
                parent.remove(child)
            elif name == "style":
                child.text = STYLE
    return root
