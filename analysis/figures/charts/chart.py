"""A chart as data: panels of axes, series and words, which two renderers draw alike.

Sizes of markers and widths of lines are in points (1/72 in). `draw_chart` draws on paper,
`interactive_chart` on a page for a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.figures.style import LegendEntry, Marker

#: Height of one of several panels.
_PANEL_IN = 2.3
#: Charts narrower than this have their panels below each other.
_NARROW_IN = 5.0
#: Vertices of a rule, so that hovering finds it along its length.
_RULE_VERTICES = 9


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`ticks` are all that the axis has, None where the renderer chooses; `names` are theirs.

    `limits` are as they are drawn, from left to right and from bottom to top.
    """

    label: str
    limits: tuple[float, float]
    scale: Literal["linear", "log", "log2"] = "linear"
    ticks: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one look, joined by a line where it has a width.

    `lows` and `highs` are the ends of a bar through each point, `names` stand above the points,
    `hover` has the lines of words about each. `group` is the legend entry on a page.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    colour: str
    shape: Marker | None = None
    size_pt: float = 4.0
    edge_pt: float = 1.0
    filled: bool = True
    line_pt: float = 0.0
    dashed: bool = False
    opacity: float = 1.0
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()
    names: tuple[str, ...] = ()
    names_end_there: bool = False
    hover: tuple[tuple[str, ...], ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Band:
    """What lies between two lines over the same positions."""

    xs: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    colour: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; later series stand above earlier ones, `empty` where there are none."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    empty: str
    band: Band | None = None
    title: str = ""
    legend: tuple[LegendEntry, ...] = ()
    legend_entry_in: float = 1.15


@dataclass(frozen=True)
class Chart:
    """Panels of equal size on a page of this size."""

    panels: tuple[Panel, ...]
    width_in: float
    height_in: float

    @property
    def is_narrow(self) -> bool:
        """Whether two charts stand beside each other on a page."""
        return self.width_in < _NARROW_IN

    @property
    def columns(self) -> int:
        """How many panels stand beside each other."""
        return 1 if self.is_narrow or len(self.panels) == 1 else 2

    @property
    def rows(self) -> int:
        """How many panels stand below each other."""
        return -(-len(self.panels) // self.columns)


def panel_chart(panels: Sequence[Panel], width_in: float = 6.5) -> Chart:
    """Return the chart of several panels, as high as they need."""
    rows = Chart(tuple(panels), width_in, 0.0).rows
    return Chart(tuple(panels), width_in, _PANEL_IN * rows + 0.5)


def rule(
    *,
    x: float | None = None,
    y: float | None = None,
    limits: tuple[float, float],
    colour: str,
    words: str,
    dashed: bool = False,
) -> Series:
    """Return a line at `x`, or at `y`, from one of the other axis's `limits` to the other."""
    along = tuple(float(place) for place in np.linspace(*limits, _RULE_VERTICES))
    return Series(
        xs=along if x is None else (x,) * len(along),
        ys=along if y is None else (y,) * len(along),
        colour=colour,
        line_pt=0.9 if dashed else 0.7,
        dashed=dashed,
        hover=((words,),) * len(along),
    )
