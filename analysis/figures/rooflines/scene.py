"""A roofline as data: roofs, marks and words, which two renderers draw alike.

Heights are FLOP/s, positions FLOP/byte; sizes are in points (1/72 in), areas in square points.
`draw_scene` draws on paper, `interactive_figure` on a page for a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.figures.style import LegendEntry, Marker

#: Columns of the legend are so wide, unless an entry needs more.
ENTRY_IN = 1.15
#: What the horizontal axis shows.
INTENSITY_LABEL = "Arithmetic intensity (FLOP/byte)"


@dataclass(frozen=True)
class Slope:
    """A memory limit: a line through the origin, up to the highest ridge under it.

    `label` stands along the line on paper, "" where the legend names the line by its colour;
    `group` is the legend entry that hides or shows it on a page.
    """

    bytes_per_s: float
    top_flops_per_s: float
    colour: str
    dashed: bool
    label: str
    group: str
    hover: tuple[str, ...]

    @property
    def ridge_flop_per_byte(self) -> float:
        """Where the line ends."""
        return self.top_flops_per_s / self.bytes_per_s


@dataclass(frozen=True)
class FlatRoof:
    """A compute limit, from its ridge on; `label` is in two parts: whose it is, and its rate."""

    flops_per_s: float
    ridge_flop_per_byte: float
    colour: str
    dashed: bool
    label: tuple[str, str]
    group: str
    hover: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A line from a mark to another intensity at the same height."""

    to_flop_per_byte: float
    colour: str
    width_pt: float
    opacity: float
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A marker; `name` is written beside it where there is room, the first mark's first.

    An open marker is white inside; `edge` is its outline, in `colour` if not given.
    """

    intensity_flop_per_byte: float
    flops_per_s: float
    shape: Marker
    colour: str
    filled: bool
    area_pt2: float
    opacity: float
    edge_pt: float
    edge: str | None = None
    line: Line | None = None
    group: str
    hover: tuple[str, ...]
    name: str = ""
    name_colour: str = "#222222"


@dataclass(frozen=True)
class Region:
    """A shaded polygon; `corners` are FLOP/byte and FLOP/s."""

    corners: tuple[tuple[float, float], ...]
    colour: str
    label: str


@dataclass(frozen=True)
class Limits:
    """The ends of both axes: FLOP/byte and FLOP/s."""

    intensity: tuple[float, float]
    flops_per_s: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything that a roofline shows. `rate` says whose FLOP/s the height is.

    `note` stands above the axes; `empty` is said where there is no mark.
    """

    rate: str
    empty: str
    limits: Limits
    slopes: tuple[Slope, ...] = ()
    flat_roofs: tuple[FlatRoof, ...] = ()
    marks: tuple[Mark, ...] = ()
    region: Region | None = None
    legend: tuple[LegendEntry, ...] = ()
    legend_entry_in: float = ENTRY_IN
    name_pt: float = 7.0
    note: str = ""

    @property
    def unit_flops_per_s(self) -> float:
        """The unit of the height: 1e9, or 1e12 where the figure reaches over 18,000 GFLOP/s."""
        return 1e12 if self.limits.flops_per_s[1] >= 1.8e13 else 1e9

    @property
    def rate_label(self) -> str:
        """What the vertical axis shows."""
        return f"{self.rate} {'TFLOP/s' if self.unit_flops_per_s == 1e12 else 'GFLOP/s'}"


def limits_of(
    slopes: Sequence[Slope],
    flat_roofs: Sequence[FlatRoof],
    intensities: Sequence[float],
    rates_flops_per_s: Sequence[float],
) -> Limits:
    """Return limits that hold every FLOP/byte, FLOP/s and ridge, at least a decade each way."""
    positions = [slope.ridge_flop_per_byte for slope in slopes]
    positions += [*(roof.ridge_flop_per_byte for roof in flat_roofs), *intensities]
    heights = [*(roof.flops_per_s for roof in flat_roofs), *rates_flops_per_s]
    top, bottom = max(heights, default=1e11), min(heights, default=1e9)
    low, high = min(positions, default=1.0) / 6, max(positions, default=100.0) * 3
    return Limits((low, max(high, 10 * low)), (min(bottom / 3, top / 10), top * 1.8))


def roof_entries(flat_roofs: Sequence[FlatRoof]) -> list[LegendEntry]:
    """Return a legend entry per kind of roof: measured ones are solid, datasheets' dashed."""
    present = {roof.dashed for roof in flat_roofs}
    return [
        LegendEntry(f"{kind} roof", "#222222", line_pt=1.2, dashed=dashed)
        for dashed, kind in ((False, "measured"), (True, "datasheet"))
        if dashed in present
    ]
