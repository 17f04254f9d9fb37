"""The ops of one step under their device's roof: no counter needed.

A marker stands at the FLOP/byte of its eager bytes, which is what an op by itself moves; a line
leads to that of its fused bytes. Filled markers count algorithmic FLOP, open ones elementwise
FLOP. The marker's shape is the phase, its area the share of the ops' time.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.log_axes import (
    FONT_PT,
    legend_below,
    prepare,
    roof_handles,
    say_above,
    say_empty,
    scale_of,
)
from analysis.figures.names import Names, Spot
from analysis.figures.roof_labels import Scale, draw_roofs
from analysis.figures.roofs import Roofs, device_roofs
from analysis.figures.style import OTHER_MODELS, PHASE_MARKERS, area_pt2
from analysis.profiles.op_places import OpPlace, OpPlaces, StepPart
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import percent

#: Ops with less of the time than this may lie outside: a counter's increment would stretch the
#: axes by decades.
_IN_THE_PICTURE_SHARE = 0.005
#: Names: at most so many, of ops with at least this share.
_NAMES = 12
_NAMES_NARROW = 5
_NAMED_SHARE = 0.01
_PARTS: dict[StepPart, str] = {"forward": "fwd", "backward": "bwd"}
_CACHE_SHADE = "#F3EEE0"
_ENTRY_IN = 1.7
#: Shares of time that the legend shows as examples of the area.
_EXAMPLES = (0.01, 0.1)


def op_roofs(used: UsedCeiling | None) -> Roofs:
    """Return the roofs of a per-op figure: compute, DRAM, and the cache before it if measured."""
    if used is None:
        return Roofs((), (), ())
    has_l3 = any(cache.level == "L3" for cache in used.cache_roofs)
    return device_roofs(used, ("L3" if has_l3 else "L2", "DRAM"))


def in_picture(places: OpPlaces) -> list[OpPlace]:
    """Return the ops that set the axes' limits: all but the shortest ones, if any others."""
    placed = list(places.placed)
    return [op for op in placed if op.share >= _IN_THE_PICTURE_SHARE] or placed


def op_note(places: OpPlaces) -> str:
    """Return where the ops' time went, as far as it is not in the picture."""
    placed = sum(op.share for op in places.placed)
    return (
        f"Placed: {percent(placed)} of the ops' time. "
        f"Ops without FLOP (copies, fills): {percent(places.without_flops_share)}. "
        f"Not in the cost model: {percent(places.unmatched_share)}."
    )


def draw_op_roofline(
    axes: Axes, places: OpPlaces, used: UsedCeiling | None, *, colour: str = OTHER_MODELS
) -> None:
    """Draw the ops of `places` under the roof of `used`; `colour` is the model's."""
    placed, roofs = places.placed, op_roofs(used)
    limits = in_picture(places)
    scale = scale_of(
        axes,
        roofs,
        [op.intensity_min for op in limits if op.intensity_min],
        [op.flops_per_s for op in limits if op.flops_per_s],
    )
    prepare(axes, scale, "Attained")
    say_above(axes, op_note(places))
    from_cache = any(op.from_cache for op in limits)
    if used is not None and from_cache:
        _shade_above_memory(axes, used, scale)
    draw_roofs(axes, roofs, scale)
    for op in placed:
        _draw_op(axes, op, scale, colour)
    if placed:
        names = _NAMES_NARROW if scale.narrow else _NAMES
        spots = [_spot(op, scale, rank < names) for rank, op in enumerate(placed)]
        Names(axes, spots, FONT_PT - 0.5)
    else:
        say_empty(axes, "no op has a place here")
    handles: list[Artist] = [*_handles(placed, colour), *roof_handles(roofs)]
    if from_cache:
        handles.append(Patch(color=_CACHE_SHADE, label="faster than DRAM: from a cache"))
    legend_below(axes, handles, _ENTRY_IN)


def _draw_op(axes: Axes, op: OpPlace, scale: Scale, colour: str) -> None:
    if op.intensity_min is None or op.flops_per_s is None:
        return
    height = op.flops_per_s / scale.unit_flops_per_s
    end = op.intensity_max or scale.intensity[1]
    axes.plot([op.intensity_min, end], [height, height], color=colour, linewidth=0.7, alpha=0.45,
              zorder=3)  # fmt: skip
    axes.scatter(
        [op.intensity_min],
        [height],
        s=area_pt2(op.share),
        marker=PHASE_MARKERS[op.part].matplotlib,
        facecolors=colour if op.kind == "algorithmic" else "white",
        edgecolors=colour,
        linewidths=0.9,
        alpha=0.85,
        # The small ones on top of the large.
        zorder=5 - min(op.share, 0.99),
    )


def _spot(op: OpPlace, scale: Scale, named: bool) -> Spot:
    label = f"{op.time.label.replace('convolution', 'conv')} {_PARTS.get(op.part, '')}".rstrip()
    name = f"{label} {percent(op.share)}" if named and op.share >= _NAMED_SHARE else ""
    return Spot(
        x=op.intensity_min or 0.0,
        y=(op.flops_per_s or 0.0) / scale.unit_flops_per_s,
        radius_pt=area_pt2(op.share) ** 0.5 / 2,
        name=name,
    )


def _shade_above_memory(axes: Axes, used: UsedCeiling, scale: Scale) -> None:
    """Where no traffic to DRAM can be fast enough."""
    ridge = used.roof.ridge_flop_per_byte
    xs = [scale.intensity[0], ridge]
    slope = [x * used.roof.peak_bytes_per_s / scale.unit_flops_per_s for x in xs]
    top = used.roof.peak_flops_per_s / scale.unit_flops_per_s
    axes.fill_between(xs, slope, [top, top], color=_CACHE_SHADE, linewidth=0, zorder=0.5)


def _handles(placed: Sequence[OpPlace], colour: str) -> list[Line2D]:
    def marker(shape: str, face: str, label: str, size: float = 5.0) -> Line2D:
        return Line2D([], [], linestyle="", color=colour, marker=shape, markerfacecolor=face,
                      markersize=size, label=label)  # fmt: skip

    parts = {op.part for op in placed}
    kinds = {op.kind for op in placed}
    handles = [
        marker(shape.matplotlib, "white", part)
        for part, shape in PHASE_MARKERS.items()
        if part in parts
    ]
    if "algorithmic" in kinds:
        handles.append(marker("o", colour, "algorithmic FLOP"))
    if "elementwise" in kinds:
        handles.append(marker("o", "white", "elementwise FLOP"))
    if placed:
        handles += [
            marker("o", "#CCCCCC", f"{percent(share)} of the ops' time", area_pt2(share) ** 0.5)
            for share in _EXAMPLES
        ]
        label = "eager (marker) to fused bytes"
        handles.append(Line2D([], [], color=colour, linewidth=0.9, label=label))
    return handles
