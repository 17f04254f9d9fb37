"""A chart as data: panels of axes, series, bands and words, which two renderers draw alike.

`static.draw_chart` draws on paper, `interactive.interactive_chart` on a page for a browser. Sizes
of markers and widths of lines are in points (1/72 in).

A channel has one meaning: colour is the model and the marker the arithmetic in every figure of
runs. Figures of one run's ops and kernels use colours and shapes that mean nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from analysis.presentation.columns import table
from analysis.presentation.table import Column
from analysis.runs.settings import Identified
from bench.config import Sample

#: Charts narrower than this are a column of a page: their panels stand below each other.
NARROW_IN = 5.0
BAND_OPACITY = 0.25
#: Logarithmic axes that span less than this factor get ticks between the powers of ten.
FEW_DECADES = 300

#: Okabe and Ito, Color Universal Design (2008), without yellow, which white paper swallows, and
#: with black last, since axes and text are dark too.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Models past the palette share a grey rather than a colour that means another model.
OTHER_MODELS = "#8C8C8C"
#: Of legend entries that explain a shape.
KEY_GREY = "#555555"
#: Shapes by math mode. Shapes have Plotly's names; `static.py` has Matplotlib's.
SHAPES = {"fp32": "circle", "tf32": "triangle-up", "bf16": "square", "fp16": "diamond",
          "fp8": "triangle-down"}  # fmt: skip


def model_colours(archs: Iterable[str]) -> dict[str, str]:
    """Return a colour per model, by name, so that a model keeps it across figures of a report."""
    names = sorted(set(archs))
    return dict.fromkeys(names, OTHER_MODELS) | dict(zip(names, _PALETTE, strict=False))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`ticks` are all that the axis has, with their names; None where the renderer chooses.

    `limits` are as they are drawn, from left to right and from bottom to top; dates are days since
    1970.
    """

    label: str
    limits: tuple[float, float]
    scale: Literal["linear", "log", "log2", "date"] = "linear"
    ticks: Mapping[float, str] | None = None


@dataclass(frozen=True)
class Marks:
    """Points of one look, joined by a line where it has a width.

    `names` stand beside the points where there is room; `hover` has the lines of words about each.
    `group` is the legend entry on a page, where the last series of a group shows its look.

    Of a roof, both parts of `end_label` stand right of the axes at the height of its last point,
    and `slope_label` along its line. Both need logarithmic axes.
    """

    group: str
    colour: str
    shape: str = ""
    _: KW_ONLY
    xs: tuple[float, ...] = ()
    ys: tuple[float, ...] = ()
    size_pt: float = 4.0
    edge_pt: float = 1.0
    filled: bool = True
    line_pt: float = 0.0
    dashed: bool = False
    opacity: float = 1.0
    names: tuple[str, ...] = ()
    hover: tuple[str, ...] = ()
    end_label: tuple[str, ...] = ()
    slope_label: str = ""


@dataclass(frozen=True)
class Band:
    """What lies between two positions, over the whole height; without a label in no legend."""

    low: float
    high: float
    colour: str
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; later series stand above earlier ones.

    `empty` is said where nothing is drawn. `legend` is that of paper: the looks of series, with
    their words as `group`.
    """

    x: Axis
    y: Axis
    series: tuple[Marks, ...]
    empty: str = ""
    bands: tuple[Band, ...] = ()
    title: str = ""
    legend: tuple[Marks, ...] = ()
    names_on_page: bool = True


@dataclass(frozen=True)
class Chart:
    """Panels of equal size on a page of this size, `columns` of them beside each other."""

    panels: tuple[Panel, ...]
    width_in: float
    height_in: float
    columns: int = 1

    @property
    def is_narrow(self) -> bool:
        """Whether two charts stand beside each other on a page."""
        return self.width_in < NARROW_IN

    @property
    def rows(self) -> int:
        """How many panels stand below each other."""
        return -(-len(self.panels) // self.columns)


def panel_chart(panels: Sequence[Panel]) -> Chart:
    """Return the chart of several panels, as high as they need."""
    columns = min(len(panels), 2)
    return Chart(tuple(panels), 6.5, 2.3 * -(-len(panels) // columns) + 0.5, columns)


def model_key(of: Identified, colours: Mapping[str, str], **look: Any) -> Marks:
    """Return the look of a run or of its repeats: the model's colour, the precision's shape."""
    colour, mode = colours.get(of.arch, OTHER_MODELS), of.precision.removeprefix("amp-")
    # of `amp` it is not known what the device did
    shape = "cross" if mode == "amp" else SHAPES.get(mode, "x")
    return Marks(f"{of.arch} {of.precision}", colour, shape, **look)


def model_legend(series: Iterable[Marks]) -> tuple[Marks, ...]:
    """Return an entry per model and one per precision of series with looks of `model_key`."""
    looks = {tuple(one.group.rsplit(" ", 1)): one for one in series}
    models = {arch: Marks(arch, one.colour, line_pt=2.5) for (arch, _), one in looks.items()}
    precisions = {
        name: Marks(name, KEY_GREY, one.shape, filled=one.filled)
        for (_, name), one in looks.items()
    }
    return tuple(entry for of in (models, precisions) for _, entry in sorted(of.items()))


def hover(
    title: str, row: Mapping[str, Any], chosen: Iterable[Column], sample: Sample = "sample"
) -> str:
    """Return `title` and a line for each of these columns of `row`."""
    found = table("", "", [row], chosen, sample)
    lines = zip(found.visible, found.cells[0], strict=True)
    return "\n".join([title, *(f"{column.heading}: {cell}" for column, cell in lines)])


def rule(
    xs: tuple[float, float],
    ys: tuple[float, float],
    colour: str,
    words: str,
    group: str = "",
    **look: Any,
) -> Marks:
    """Return a thin line between two points that says `words` along its length."""
    return Marks(group, colour, xs=xs, ys=ys, hover=(words,) * 2, **{"line_pt": 0.7, **look})


def log_axis(label: str, values: Collection[float], margin: float = 1.5) -> Axis:
    """Return a logarithmic axis that holds positive values."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label=label, limits=(low / margin, high * margin), scale="log")


def end_labels(panel: Panel, gap: float) -> list[tuple[Marks, float, float]]:
    """Return each series that has an end label, with its height and its label's.

    Heights are shares of the axis from 0 to 1; labels are at least `gap` from each other.
    """
    labelled = sorted((one for one in panel.series if one.end_label), key=lambda one: one.ys[-1])
    low, high = panel.y.limits
    heights = [math.log(one.ys[-1] / low) / math.log(high / low) for one in labelled]
    return list(zip(labelled, heights, spread(heights, gap), strict=True))


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Space ascending heights by at least `gap`, as little as that takes, ending below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max([height, *(last + gap for last in placed[-1:])]))
    limit = 1.0
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed
