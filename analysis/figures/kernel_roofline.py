"""The kernels of one step under the roofs of L1, L2 and DRAM, by counters.

A kernel is up to three markers at one height, one per memory level whose bytes were counted: the
colour is the level, of markers and slopes alike, the marker the math mode, the area the share of
the kernels' time. Points crowd along the slopes, so the legend carries their rates.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

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
from analysis.figures.style import LEVEL_COLOURS, MARKERS, area_pt2
from analysis.profiles.kernel_labels import shortened
from analysis.profiles.kernel_places import KernelPlace, KernelPlaces, MemoryLevel
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import percent
from bench.records import CacheRoof, MathMode

#: As in the per-op figure: the shortest kernels may lie outside, the longest have names.
_IN_THE_PICTURE_SHARE = 0.005
_NAMES = 10
_NAMES_NARROW = 5
_LETTERS_NARROW = 24
_NAMED_SHARE = 0.01
_ENTRY_IN = 1.7
_EXAMPLES = (0.01, 0.1)


def kernel_roofs(used: UsedCeiling | None) -> Roofs:
    """Return the roofs of a per-kernel figure; a level that was not measured has none."""
    if used is None:
        return Roofs((), (), ())
    return device_roofs(used, tuple(LEVEL_COLOURS), LEVEL_COLOURS)


def missing_levels(used: UsedCeiling | None) -> list[str]:
    """Return why a level has no slope, level by level."""
    if used is None:
        return []
    caches: dict[MemoryLevel, CacheRoof] = {cache.level: cache for cache in used.cache_roofs}
    reasons = []
    levels: tuple[MemoryLevel, ...] = ("L1", "L2")
    for level in levels:
        cache = caches.get(level)
        if cache is None:
            reasons.append(f"{level}: its bandwidth was not measured")
        elif cache.peak_bytes_per_s is None:
            reasons.append(f"{level}: {cache.missing['peak_bytes_per_s']}")
    return reasons


def kernels_in_picture(places: KernelPlaces) -> list[KernelPlace]:
    """Return the kernels that set the axes' limits: all but the shortest, if any others."""
    placed = list(places.placed)
    return [one for one in placed if (one.share or 0.0) >= _IN_THE_PICTURE_SHARE] or placed


def kernel_note(places: KernelPlaces) -> str:
    """Return where the kernels' time went, as far as it is not in the picture."""
    placed = sum(kernel.share or 0.0 for kernel in places.placed)
    without = places.without_flops
    words = (
        f"Placed: {percent(placed)} of the kernels' time. Kernels without FLOP ({len(without)} "
        f"names): {percent(places.without_flops_share)}."
    )
    if places.unknown:
        words += f" FLOP or time not counted: {len(places.unknown)} names."
    return words


def draw_kernel_roofline(
    axes: Axes, places: KernelPlaces, used: UsedCeiling | None, *, math_mode: MathMode
) -> None:
    """Draw the kernels of `places` under the roofs of `used`."""
    placed, roofs = places.placed, kernel_roofs(used)
    limits = kernels_in_picture(places)
    intensities = [value for kernel in limits for value in kernel.intensities.values()]
    rates = [kernel.flops_per_s for kernel in limits if kernel.flops_per_s]
    scale = scale_of(axes, roofs, intensities, rates)
    prepare(axes, scale, "Executed")
    say_above(axes, kernel_note(places))
    draw_roofs(axes, roofs, scale)
    for kernel in placed:
        _draw_kernel(axes, kernel, scale, MARKERS[math_mode].matplotlib)
    if placed:
        spots = [
            spot for index, kernel in enumerate(placed)
            for spot in _spots(kernel, scale, index < (_NAMES_NARROW if scale.narrow else _NAMES))
        ]  # fmt: skip
        Names(axes, spots, FONT_PT - 0.5)
    else:
        say_empty(axes, "no kernel has a place here")
    handles = [*_handles(placed, roofs, MARKERS[math_mode].matplotlib), *roof_handles(roofs)]
    legend_below(axes, handles, _ENTRY_IN)


def _draw_kernel(axes: Axes, kernel: KernelPlace, scale: Scale, marker: str) -> None:
    if kernel.flops_per_s is None:
        return
    height, share = kernel.flops_per_s / scale.unit_flops_per_s, kernel.share or 0.0
    ends = kernel.intensities.values()
    axes.plot([min(ends), max(ends)], [height, height], color="#999999", linewidth=0.6, zorder=3)
    for level, intensity in kernel.intensities.items():
        axes.scatter(
            [intensity],
            [height],
            s=area_pt2(share),
            marker=marker,
            color=LEVEL_COLOURS[level],
            edgecolors="white",
            linewidths=0.5,
            alpha=0.9,
            zorder=5 - min(share, 0.99),
        )


def _spots(kernel: KernelPlace, scale: Scale, named: bool) -> list[Spot]:
    """A spot per level; the name stands at the outermost, where the lines of the others end."""
    share = kernel.share or 0.0
    short = shortened(kernel.name, _LETTERS_NARROW) if scale.narrow else kernel.name
    name = f"{kernel.rank} {short} {percent(share)}"
    height = (kernel.flops_per_s or 0.0) / scale.unit_flops_per_s
    outermost = max(kernel.intensities.values())
    return [
        Spot(
            x=intensity,
            y=height,
            radius_pt=area_pt2(share) ** 0.5 / 2,
            name=name if named and share >= _NAMED_SHARE and intensity == outermost else "",
        )
        for intensity in kernel.intensities.values()
    ]


def _handles(placed: Sequence[KernelPlace], roofs: Roofs, shape: str) -> list[Line2D]:
    """A level's marker and slope are one entry; a level without a slope says so."""
    levels = {level for kernel in placed for level in kernel.intensities}
    rates: dict[str, str] = {roof.level: roof.rate for roof in roofs.sloped}
    handles = [
        Line2D([], [], color=colour, linewidth=1.2 if level in rates else 0.0, marker=shape,
               markersize=6, label=rates.get(level, f"{level}, no roof"))
        for level, colour in LEVEL_COLOURS.items()
        if level in levels or level in rates
    ]  # fmt: skip
    if placed:
        handles += [
            Line2D([], [], linestyle="", marker=shape, color="#CCCCCC",
                   markersize=area_pt2(share) ** 0.5,
                   label=f"{percent(share)} of the kernels' time")
            for share in _EXAMPLES
        ]  # fmt: skip
    return handles
