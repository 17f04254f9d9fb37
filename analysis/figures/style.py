"""One meaning per channel: colour = model and marker = math mode in every figure of runs.

In the roofline a marker's size is the batch size. Inside one run, whose model, math mode and batch
size are one, an op's marker is its phase, a kernel's colour the memory level, in colours and shapes
that mean nothing in a figure of runs, and a marker's area a share of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analysis.profiles.kernel_places import MemoryLevel
from analysis.profiles.op_places import StepPart

#: Okabe and Ito, Color Universal Design (2008), without yellow, which white paper swallows, and
#: with black last, since axes and text are dark too.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Models past the palette share a grey rather than a colour that means another model.
OTHER_MODELS = "#8C8C8C"
#: Greys of roofs, one per machine.
ROOF_GREYS = ("#222222", "#5C5C5C", "#808080")


@dataclass(frozen=True)
class Marker:
    """One shape in the two libraries' names."""

    matplotlib: str
    plotly: str


@dataclass(frozen=True)
class LegendEntry:
    """What a line, a marker or both mean, on paper; `face` is the marker's, if not `colour`."""

    label: str
    colour: str
    shape: Marker | None = None
    face: str | None = None
    size_pt: float = 4.0
    edge_pt: float = 1.0
    line_pt: float = 0.0
    dashed: bool = False


MARKERS: Mapping[str, Marker] = {
    "fp32": Marker("o", "circle"),
    "tf32": Marker("^", "triangle-up"),
    "bf16": Marker("s", "square"),
    "fp16": Marker("D", "diamond"),
}
#: Of what is known to be at least so high.
AT_LEAST = Marker(r"$\uparrow$", "arrow-up")
#: Shapes of an op's phase: forth, back, and the step that adds.
PHASE_MARKERS: Mapping[StepPart, Marker] = {
    "forward": Marker(">", "triangle-right"),
    "backward": Marker("<", "triangle-left"),
    "optimizer": Marker("P", "cross"),
    "whole step": Marker("X", "x"),
}
#: Memory levels from the arithmetic outwards, darker with distance; roofs and markers alike.
LEVEL_COLOURS: Mapping[MemoryLevel, str] = {"L1": "#B79FDB", "L2": "#7E57B5", "DRAM": "#3B1070"}

_LARGEST_PT2 = 500.0
_SMALLEST_PT2 = 9.0


def area_pt2(share: float) -> float:
    """Return the area of a marker for a share of time, in square points, large enough to see."""
    return max(_SMALLEST_PT2, _LARGEST_PT2 * share)


def model_colours(archs: Iterable[str]) -> dict[str, str]:
    """Return a colour per model, by name, so that a model keeps it across figures of a report."""
    names = sorted(set(archs))
    colours = dict.fromkeys(names, OTHER_MODELS)
    colours.update(zip(names, _PALETTE, strict=False))
    return colours


#: A marker of a run whose math mode is not recorded: amp is what a device made of it.
_AMP, _OTHER_PRECISION = Marker("P", "cross"), Marker("X", "x")


def precision_marker(precision: str) -> Marker:
    """Return the shape of the precision that ran, as the roofline has it."""
    mode = precision.removeprefix("amp-")
    return _AMP if mode == "amp" else MARKERS.get(mode, _OTHER_PRECISION)
