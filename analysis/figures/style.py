"""One meaning per channel, the same in every figure: colour = model, marker = math mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

#: Okabe and Ito, Color Universal Design (2008), without yellow, which white paper swallows, and
#: with black last, since axes and text are dark too.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Models past the palette share a grey rather than a colour that means another model.
OTHER_MODELS = "#8C8C8C"
#: Greys of roofs, one per device.
ROOF_GREYS = ("#222222", "#5C5C5C", "#808080")
#: Lines of roofs by where they come from.
ROOF_LINES: Mapping[str, Literal["-", "--"]] = {"measured": "-", "datasheet": "--"}


@dataclass(frozen=True)
class Marker:
    """One shape in the two libraries' names."""

    matplotlib: str
    plotly: str


MARKERS: Mapping[str, Marker] = {
    "fp32": Marker("o", "circle"),
    "tf32": Marker("^", "triangle-up"),
    "bf16": Marker("s", "square"),
    "fp16": Marker("D", "diamond"),
}


def model_colours(archs: Iterable[str]) -> dict[str, str]:
    """Return a colour per model, by name, so that a model keeps it across figures of a report."""
    names = sorted(set(archs))
    colours = dict.fromkeys(names, OTHER_MODELS)
    colours.update(zip(names, _PALETTE, strict=False))
    return colours
