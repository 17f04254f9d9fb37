"""The static roofline: log-log, each run against the roof of the device it ran on.

Colour is the model, the marker the math mode. Without counters a run is a horizontal interval of
intensity with an open marker at each end; a counted run is one filled marker. Roofs are grey,
solid if measured and dashed if from a datasheet, and carry their names and rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from analysis.figures.roof_labels import Scale, draw_roofs
from analysis.figures.roofs import Roofs, collect_roofs
from analysis.figures.style import MARKERS, OTHER_MODELS, ROOF_GREYS, ROOF_LINES, model_colours
from analysis.points import RooflinePoint
from bench.records import Ceiling

_FONT_PT = 7.5
#: More runs than this are drawn thinner and half transparent, so that a crowd shows its density.
_CROWD = 40
#: Room for one legend entry, and for the tick labels above the legend, in inches.
_ENTRY_IN = 1.15
_LEGEND_IN = 0.4
#: Figures narrower than this are a column of a page.
_NARROW_IN = 5.0
#: Axes that span less than this factor get ticks between the powers of ten.
_FEW_DECADES = 300


def draw_roofline(
    axes: Axes,
    points: Sequence[RooflinePoint],
    *,
    ceilings: Sequence[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw `points` and their roofs; `ceilings` adds roofs that no point uses.

    `colours` maps models to colours, to keep them the same in several figures.
    """
    roofs = collect_roofs(points, ceilings)
    palette = colours or model_colours(point.arch for point in points)
    scale = _scale(axes, points, roofs)
    _prepare(axes, scale)
    draw_roofs(axes, roofs, scale)
    for point in points:
        _draw_point(axes, point, scale, palette.get(point.arch, OTHER_MODELS), len(points))
    if not points:
        axes.text(
            0.6, 0.3, "no run has a place here", transform=axes.transAxes,
            ha="center", va="center", fontsize=_FONT_PT + 1,
        )  # fmt: skip
    _draw_legend(axes, points, roofs, palette)


def _scale(axes: Axes, points: Sequence[RooflinePoint], roofs: Roofs) -> Scale:
    """Limits that hold every point and ridge, at least a decade each way."""
    intensities = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.flat]
    intensities += [end for point in points for end in (point.intensity_min, point.intensity_max)]
    intensities += [p.intensity_counted for p in points if p.intensity_counted is not None]
    rates = [roof.flops_per_s for roof in roofs.flat]
    rates += [point.attained_flops_per_s for point in points]
    top, bottom = max(rates, default=1e11), min(rates, default=1e9)
    low, high = min(intensities, default=1.0) / 6, max(intensities, default=100.0) * 3
    width_in, height_in = _size_in(axes)
    return Scale(
        intensity=(low, max(high, 10 * low)),
        flops_per_s=(min(bottom / 3, top / 10), top * 1.8),
        unit_flops_per_s=1e12 if top >= 1e13 else 1e9,
        font_pt=_FONT_PT,
        height_in=height_in,
        narrow=width_in < _NARROW_IN,
    )


def _size_in(axes: Axes) -> tuple[float, float]:
    """Width and height of the page that `axes` is on."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none  # noqa: S101
    width_in, height_in = figure.get_size_inches()
    return float(width_in), float(height_in)


def _prepare(axes: Axes, scale: Scale) -> None:
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
        axis.label.set_fontsize(_FONT_PT + 1)
    axes.tick_params(labelsize=_FONT_PT)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel(f"Attained {'TFLOP/s' if scale.unit_flops_per_s == 1e12 else 'GFLOP/s'}")
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_point(axes: Axes, point: RooflinePoint, scale: Scale, colour: str, count: int) -> None:
    crowded = count > _CROWD
    height = point.attained_flops_per_s / scale.unit_flops_per_s
    counted = point.intensity_counted
    ends = (point.intensity_min, point.intensity_max) if counted is None else (counted,)
    axes.plot(
        ends,
        [height] * len(ends),
        color=colour,
        linewidth=0.9 if crowded else 1.6,
        alpha=0.55 if crowded else 1.0,
        marker=MARKERS[point.math_mode].matplotlib,
        markersize=2.5 if crowded else 4,
        markerfacecolor="white" if counted is None else colour,
        markeredgewidth=0.6 if crowded else 1.0,
        zorder=4,
    )


def _draw_legend(
    axes: Axes, points: Sequence[RooflinePoint], roofs: Roofs, palette: Mapping[str, str]
) -> None:
    """Below the axes, where no data can be."""
    used = {point.arch for point in points}
    handles = [
        Line2D([], [], color=colour, linewidth=2.5, label=arch)
        for arch, colour in palette.items()
        if arch in used
    ]
    handles += [
        Line2D([], [], color="#555555", linestyle="", marker=marker.matplotlib, label=mode,
               markersize=4, markerfacecolor="white")
        for mode, marker in MARKERS.items()
        if mode in {point.math_mode for point in points}
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=ROOF_GREYS[0], linewidth=1.2, linestyle=line, label=f"{kind} roof")
        for kind, line in ROOF_LINES.items()
        if kind in {roof.kind for roof in roofs.flat}
    ]
    if not handles:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None  # as in _size_in  # noqa: S101
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0, -_LEGEND_IN, figure.dpi_scale_trans),
        ncols=max(2, min(len(handles), int(_size_in(axes)[0] / _ENTRY_IN))),
        fontsize=_FONT_PT,
        frameon=False,
        handlelength=1.6,
        columnspacing=1.2,
    )
