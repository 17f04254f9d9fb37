"""The axes that every roofline shares: log-log, units said, a legend where no data can be."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.figures.roof_labels import Scale
from analysis.figures.roofs import Roofs
from analysis.figures.style import ROOF_GREYS, ROOF_LINES

FONT_PT = 7.5
#: Room for one legend entry, and for the tick labels above the legend, in inches.
_ENTRY_IN = 1.15
_LEGEND_IN = 0.4
#: Figures narrower than this are a column of a page.
_NARROW_IN = 5.0
#: Letters of a line above the axes, which take about four fifths of the width.
_CHARACTERS_PER_IN = 15
#: Axes that span less than this factor get ticks between the powers of ten.
_FEW_DECADES = 300


def scale_of(
    axes: Axes, roofs: Roofs, intensities: Sequence[float], rates: Sequence[float]
) -> Scale:
    """Return limits that hold every FLOP/byte, FLOP/s and ridge, at least a decade each way."""
    ridges = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.flat]
    ridges += [roof.flops_per_s / roof.bytes_per_s for roof in roofs.sloped]
    intensities = [*ridges, *intensities]
    rates = [*(roof.flops_per_s for roof in roofs.flat), *rates]
    top, bottom = max(rates, default=1e11), min(rates, default=1e9)
    low, high = min(intensities, default=1.0) / 6, max(intensities, default=100.0) * 3
    width_in, height_in = size_in(axes)
    return Scale(
        intensity=(low, max(high, 10 * low)),
        flops_per_s=(min(bottom / 3, top / 10), top * 1.8),
        unit_flops_per_s=1e12 if top >= 1e13 else 1e9,
        font_pt=FONT_PT,
        height_in=height_in,
        narrow=width_in < _NARROW_IN,
    )


def size_in(axes: Axes) -> tuple[float, float]:
    """Return width and height of the page that `axes` is on."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none  # noqa: S101
    width_in, height_in = figure.get_size_inches()
    return float(width_in), float(height_in)


def prepare(axes: Axes, scale: Scale, rate: str) -> None:
    """Set scales, limits, ticks and labels; `rate` says whose FLOP/s the height is."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    limits = scale.intensity, tuple(rate / scale.unit_flops_per_s for rate in scale.flops_per_s)
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    for axis, (low, high) in zip((axes.xaxis, axes.yaxis), limits, strict=True):
        steps = (1.0, 2.0, 5.0) if high / low < _FEW_DECADES else (1.0,)
        axis.set_major_locator(LogLocator(10, subs=steps, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
        axis.label.set_fontsize(FONT_PT + 1)
    axes.tick_params(labelsize=FONT_PT)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel(f"{rate} {'TFLOP/s' if scale.unit_flops_per_s == 1e12 else 'GFLOP/s'}")
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def say_empty(axes: Axes, words: str) -> None:
    """Write `words` where the data would be, off the roofs' slopes."""
    axes.text(0.97, 0.05, words, transform=axes.transAxes, ha="right", va="bottom",
              fontsize=FONT_PT + 1, parse_math=False)  # fmt: skip


def say_above(axes: Axes, words: str) -> None:
    """Write `words` above the axes, in as many lines as the page's width asks for."""
    lines = textwrap.wrap(words, int(size_in(axes)[0] * _CHARACTERS_PER_IN))
    axes.set_title("\n".join(lines), loc="left", fontsize=FONT_PT, parse_math=False)


def roof_handles(roofs: Roofs) -> list[Line2D]:
    """Return a legend entry per kind of roof."""
    kinds = {roof.kind for roof in roofs.flat}
    return [
        Line2D([], [], color=ROOF_GREYS[0], linewidth=1.2, linestyle=line, label=f"{kind} roof")
        for kind, line in ROOF_LINES.items()
        if kind in kinds
    ]


def legend_below(axes: Axes, handles: Sequence[Artist], entry_in: float = _ENTRY_IN) -> None:
    """Draw the legend below the axes, where no data can be, in columns of `entry_in`."""
    if not handles:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None  # as in size_in  # noqa: S101
    # Long row names push the axes to the right: a centred legend would leave the page there.
    rows_named = axes.yaxis.get_major_locator().__class__ is FixedLocator
    axes.legend(
        handles=handles,
        loc="upper right" if rows_named else "upper center",
        bbox_to_anchor=(1.0 if rows_named else 0.5, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0, -_LEGEND_IN, figure.dpi_scale_trans),
        ncols=max(2, min(len(handles), int(size_in(axes)[0] / entry_in))),
        fontsize=FONT_PT,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )
