"""The static roofline: log-log, each run against the roof of the machine it ran on.

Colour is the model, the marker the math mode. Without counters a run is a horizontal interval of
intensity with an open marker at each end; a counted run is one filled marker. Roofs are grey,
solid if measured and dashed if from a datasheet, and carry their names and rates. Where there are
several machines, their short names stand at their roofs and their runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figures.log_axes import legend_below, prepare, roof_handles, say_empty, scale_of
from analysis.figures.roof_labels import Scale, draw_roofs, grey_of
from analysis.figures.roofs import Roofs, collect_roofs
from analysis.figures.style import MARKERS, OTHER_MODELS, model_colours
from analysis.runs.points import RooflinePoint
from bench.records import Ceiling

#: More runs than this are drawn thinner and half transparent, so that a crowd shows its density.
_CROWD = 40
#: What an open and a filled marker say, where both may be met.
_FILLS: tuple[tuple[bool, Literal["", "-"], str, str], ...] = (
    (True, "", "#555555", "bytes counted"),
    (False, "-", "white", "bytes modelled"),
)


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
    intensities = [end for point in points for end in (point.intensity_min, point.intensity_max)]
    intensities += [p.intensity_counted for p in points if p.intensity_counted is not None]
    scale = scale_of(axes, roofs, intensities, [point.attained_flops_per_s for point in points])
    prepare(axes, scale, "Attained")
    draw_roofs(axes, roofs, scale)
    for point in points:
        colour = palette.get(point.arch, OTHER_MODELS)
        _draw_point(axes, point, scale, colour, len(points))
        if len(points) <= _CROWD and (machine := roofs.short_names.get(point.env)):
            _name_machine(axes, point, scale, colour, machine)
    if not points:
        say_empty(axes, "no run has a place here")
    _draw_legend(axes, points, roofs, palette)


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


def _name_machine(
    axes: Axes, point: RooflinePoint, scale: Scale, colour: str, machine: str
) -> None:
    """Write the machine right of the run's last marker."""
    counted = point.intensity_counted
    end = point.intensity_max if counted is None else counted
    axes.annotate(machine, (end, point.attained_flops_per_s / scale.unit_flops_per_s),
                  xytext=(4, 0), textcoords="offset points", va="center", color=colour,
                  fontsize=scale.font_pt - 2, zorder=5)  # fmt: skip


def _draw_legend(
    axes: Axes, points: Sequence[RooflinePoint], roofs: Roofs, palette: Mapping[str, str]
) -> None:
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
    counted = {point.intensity_counted is not None for point in points}
    handles += [
        Line2D([], [], color="#555555", linestyle=line, linewidth=1.6, marker="o", markersize=4,
               markerfacecolor=face, label=label)
        for is_counted, line, face, label in _FILLS
        if is_counted in counted and True in counted
    ]  # fmt: skip
    handles += roof_handles(roofs)
    handles += [
        Line2D([], [], color=grey_of(roofs, machine), linewidth=1.2, label=f"{short}: {machine}")
        for machine, short in roofs.short_names.items()
    ]
    legend_below(axes, handles)
