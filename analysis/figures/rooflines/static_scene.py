"""Draws a scene with Matplotlib, for paper: log-log, labels at the roofs, the legend below."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon
from matplotlib.text import Text

from analysis.figures.axes import (
    FONT_PT,
    legend_below,
    legend_handle,
    log_ticks,
    plain,
    say_above,
    say_empty,
    size_in,
)
from analysis.figures.rooflines.drawn_point import DrawnPoint
from analysis.figures.rooflines.label_places import Names, Spot
from analysis.figures.rooflines.run_scene import run_scene
from analysis.figures.rooflines.scene import (
    INTENSITY_LABEL,
    FlatRoof,
    Mark,
    Scene,
    Slope,
)
from analysis.profiles.kernel_places import shortened
from analysis.runs.points import RooflinePoint
from bench.records import Ceiling

#: Figures narrower than this are a column of a page: fewer and shorter names, labels in two lines.
_NARROW_IN = 5.0
_MAX_NAMES_NARROW = 5
_MAX_LETTERS_NARROW = 32
#: Slopes nearer than this factor would write their labels over each other.
_NEAR_SLOPES = 1.6
_LARGEST_PT2 = 500.0


class _AlongSlope(Text):
    """A text that keeps the angle of a line of slope 1 in log-log, whatever the axes' shape."""

    def get_rotation(self) -> float:
        """Return degrees on the page, from the axes as they are when the text is drawn."""
        if self.axes is None:
            return 0.0
        x, y = self.get_position()
        (x0, y0), (x1, y1) = self.axes.transData.transform([(x, y), (2 * x, 2 * y)])
        return math.degrees(math.atan2(y1 - y0, x1 - x0))


def draw_roofline(
    axes: Axes,
    points: Sequence[RooflinePoint | DrawnPoint],
    *,
    ceilings: Iterable[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw the scene of `points` on `axes`; the arguments are those of `run_scene`."""
    draw_scene(axes, run_scene(points, ceilings=ceilings, colours=colours))


def draw_scene(axes: Axes, scene: Scene) -> None:
    """Draw `scene` on `axes`, which keep the scene's limits."""
    _prepare(axes, scene)
    unit = scene.unit_flops_per_s
    if scene.region is not None:
        corners = [(x, y / unit) for x, y in scene.region.corners]
        axes.add_patch(Polygon(corners, color=scene.region.colour, linewidth=0, zorder=0.5))
    _draw_flat_roofs(axes, scene)
    _draw_slopes(axes, scene)
    for mark in scene.marks:
        _draw_mark(axes, mark, unit)
    if scene.marks:
        Names(axes, _spots(scene, narrow=_is_narrow(axes)), scene.name_pt)
    else:
        say_empty(axes, scene.empty)
    handles: list[Artist] = [legend_handle(entry) for entry in scene.legend]
    if scene.region is not None:
        handles.append(Patch(color=scene.region.colour, label=scene.region.label))
    legend_below(axes, handles, scene.legend_entry_in)


def _prepare(axes: Axes, scene: Scene) -> None:
    low, high = (rate / scene.unit_flops_per_s for rate in scene.limits.flops_per_s)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*scene.limits.intensity)
    axes.set_ylim(low, high)
    log_ticks(axes.xaxis, *scene.limits.intensity)
    log_ticks(axes.yaxis, low, high)
    plain(axes)
    axes.set_xlabel(INTENSITY_LABEL, fontsize=FONT_PT + 1)
    axes.set_ylabel(scene.rate_label, fontsize=FONT_PT + 1)
    if scene.note:
        say_above(axes, scene.note)


def _is_narrow(axes: Axes) -> bool:
    return size_in(axes)[0] < _NARROW_IN


def _draw_mark(axes: Axes, mark: Mark, unit_flops_per_s: float) -> None:
    x, y, line = mark.intensity_flop_per_byte, mark.flops_per_s / unit_flops_per_s, mark.line
    if line is not None:
        axes.plot(
            [x, line.to_flop_per_byte],
            [y, y],
            color=line.colour,
            linewidth=line.width_pt,
            linestyle="--" if line.dashed else "-",
            alpha=line.opacity,
            zorder=3,
        )
    axes.plot(
        [x],
        [y],
        linestyle="",
        marker=mark.shape.matplotlib,
        markersize=mark.area_pt2**0.5,
        color=mark.colour,
        markerfacecolor=mark.colour if mark.filled else "white",
        markeredgecolor=mark.edge or mark.colour,
        markeredgewidth=mark.edge_pt,
        alpha=mark.opacity,
        zorder=5 - min(mark.area_pt2 / _LARGEST_PT2, 0.99),  # the small ones on top of the large
    )


def _spots(scene: Scene, *, narrow: bool) -> list[Spot]:
    """A spot per mark; on a narrow page the first few keep their names, shortened."""
    named, spots = 0, []
    for mark in scene.marks:
        named += bool(mark.name)
        name = mark.name
        if narrow:
            name = shortened(name, _MAX_LETTERS_NARROW) if named <= _MAX_NAMES_NARROW else ""
        x, y = mark.intensity_flop_per_byte, mark.flops_per_s / scene.unit_flops_per_s
        spots.append(Spot(x, y, mark.area_pt2**0.5 / 2, name, mark.name_colour))
    return spots


def _draw_flat_roofs(axes: Axes, scene: Scene) -> None:
    """Flat roofs, with their labels right of the axes, where no data can be."""
    narrow = _is_narrow(axes)
    heights = [_share(roof.flops_per_s, scene.limits.flops_per_s) for roof in scene.flat_roofs]
    # A label's height as a share of the axes', which take less of a small page.
    lines, axes_share = (2, 0.6) if narrow else (1, 0.75)
    gap = 1.3 * lines * FONT_PT / 72 / (axes_share * size_in(axes)[1])
    for roof, height, label_height in zip(
        scene.flat_roofs, heights, spread(heights, gap), strict=True
    ):
        rate = roof.flops_per_s / scene.unit_flops_per_s
        _roof_line(axes, roof, (roof.ridge_flop_per_byte, scene.limits.intensity[1]), (rate, rate))
        leader = Line2D([1.0, 1.02], [height, label_height], color=roof.colour, linewidth=0.7)
        leader.set(transform=axes.transAxes, clip_on=False, zorder=2)
        axes.add_line(leader)
        axes.text(
            1.025,
            label_height,
            ("\n" if narrow else " ").join(roof.label),
            transform=axes.transAxes,
            ha="left",
            va="center",
            fontsize=FONT_PT,
            color=roof.colour,
            parse_math=False,
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Space ascending heights by at least `gap`, as little as that takes, ending below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    limit = 1.0
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = (math.log(limit) for limit in limits)
    return (math.log(value) - low) / (high - low)


def _roof_line(
    axes: Axes, roof: FlatRoof | Slope, xs: tuple[float, float], ys: tuple[float, float]
) -> None:
    style = "--" if roof.dashed else "-"
    axes.plot(xs, ys, color=roof.colour, linewidth=1.2, linestyle=style, zorder=2)


def _draw_slopes(axes: Axes, scene: Scene) -> None:
    """Slopes from the edge of the axes to their ridges, with their labels."""
    unit, slower = scene.unit_flops_per_s, 0.0
    rates = [*(slope.bytes_per_s for slope in scene.slopes), math.inf]
    along = 0.0  # where a label starts, from 0 at the visible start of its line to 1 at the ridge
    for slope, faster in zip(scene.slopes, rates[1:], strict=True):
        low = scene.limits.flops_per_s[0] / slope.bytes_per_s
        start, ridge = max(scene.limits.intensity[0], low), slope.ridge_flop_per_byte
        heights = (start * slope.bytes_per_s / unit, ridge * slope.bytes_per_s / unit)
        _roof_line(axes, slope, (start, ridge), heights)
        along = along + 0.25 if slope.bytes_per_s < _NEAR_SLOPES * slower else 0.1
        slower = slope.bytes_per_s
        if slope.label:
            # Between two near lines there is no room: below its own, a label crosses none.
            below = faster < _NEAR_SLOPES * slope.bytes_per_s
            _slope_label(axes, slope, start * (ridge / start) ** along, unit, below=below)


def _slope_label(
    axes: Axes, slope: Slope, x: float, unit_flops_per_s: float, *, below: bool
) -> None:
    y = x * slope.bytes_per_s / unit_flops_per_s
    label = _AlongSlope(
        x,
        y / 1.05 if below else y * 1.05,
        slope.label,
        color=slope.colour,
        fontsize=FONT_PT,
        ha="left",
        va="top" if below else "bottom",
        rotation_mode="anchor",
        parse_math=False,
    )
    label.set_transform(axes.transData)
    axes.add_artist(label)
