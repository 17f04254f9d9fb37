"""The roofline of one step by its kernels, under the roofs of its device.

A kernel is up to three markers at one height, one per memory level whose bytes were counted: the
colour is the level, of markers and slopes alike, the marker the math mode, its area the share of
the time. A kernel of whose FLOP some were not counted is an arrow: at least so high. Points crowd
along the slopes, so the legend carries their rates.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from analysis.figures.rooflines.device_roofs import (
    LEGEND_ENTRY_IN,
    MIN_NAMED_SHARE,
    MIN_SHARE_FOR_LIMITS,
    area_entries,
    device_roofs,
    level_rates,
)
from analysis.figures.rooflines.scene import (
    Line,
    Mark,
    Scene,
    limits_of,
    roof_entries,
)
from analysis.figures.style import AT_LEAST, LEVEL_COLOURS, MARKERS, LegendEntry, Marker, area_pt2
from analysis.profiles.kernel_places import KernelPlace, KernelPlaces
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, percent, three_digits
from bench.records import MathMode

_MAX_NAMED = 10
_HOVER_CHARACTERS = 90


def kernel_scene(places: KernelPlaces, used: UsedCeiling | None, *, math_mode: MathMode) -> Scene:
    """Return the scene of a profile's kernels under the roofs of `used`.

    A memory level that was not measured has no slope.
    """
    slopes, flat_roofs = device_roofs(used, tuple(LEVEL_COLOURS), LEVEL_COLOURS)
    placed, shape = list(places.placed), MARKERS[math_mode]
    shown = [one for one in placed if (one.share or 0.0) >= MIN_SHARE_FOR_LIMITS] or placed
    return Scene(
        rate="Executed",
        empty="no kernel has a place here",
        limits=limits_of(
            slopes,
            flat_roofs,
            [value for kernel in shown for value in kernel.intensities.values()],
            [kernel.flops_per_s for kernel in shown if kernel.flops_per_s],
        ),
        slopes=slopes,
        flat_roofs=flat_roofs,
        marks=tuple(
            mark
            for rank, kernel in enumerate(placed)
            for mark in _kernel_marks(kernel, shape, rank)
        ),
        legend=(*_kernel_entries(placed, used, shape), *roof_entries(flat_roofs)),
        legend_entry_in=LEGEND_ENTRY_IN,
        note=_kernel_note(places),
    )


def _kernel_note(places: KernelPlaces) -> str:
    """Where the kernels' time went, as far as it is not in the picture."""
    placed = sum(kernel.share or 0.0 for kernel in places.placed)
    words = (
        f"Placed: {percent(placed)} of the kernels' time. Kernels without FLOP "
        f"({len(places.without_flops)} names): {percent(places.without_flops_share)}."
    )
    if places.unknown:
        words += f" FLOP or time not counted: {len(places.unknown)} names."
    if any(kernel.at_least for kernel in places.placed):
        words += " Arrows: at least so high."
    return words


def _kernel_marks(kernel: KernelPlace, shape: Marker, rank: int) -> list[Mark]:
    """A mark per level, joined by a line; the name stands at the outermost."""
    share = kernel.share or 0.0
    named = rank < _MAX_NAMED and share >= MIN_NAMED_SHARE
    name = f"{kernel.rank} {kernel.name} {percent(share)}" if named else ""
    innermost, outermost = min(kernel.intensities.values()), max(kernel.intensities.values())
    line = Line(outermost, "#999999", 0.6, 1.0)
    return [
        Mark(
            intensity_flop_per_byte=intensity,
            flops_per_s=kernel.flops_per_s or 0.0,
            shape=AT_LEAST if kernel.at_least else shape,
            colour=LEVEL_COLOURS[level],
            filled=True,
            area_pt2=area_pt2(share),
            opacity=0.9,
            edge_pt=0.5,
            edge="white",
            line=line if intensity == innermost else None,
            group=f"FLOP per {level} byte",
            hover=_kernel_hover(kernel),
            name=name if intensity == outermost else "",
        )
        for level, intensity in kernel.intensities.items()
    ]


def _kernel_hover(kernel: KernelPlace) -> tuple[str, ...]:
    totals, counts = kernel.totals, kernel.intensities.items()
    counted = ", ".join(f"{level} {three_digits(value)}" for level, value in counts)
    least, tensor = "at least " if kernel.at_least else "", ""
    if totals.tensor_flops is not None and totals.flops:
        tensor = f", {percent(totals.tensor_flops / totals.flops)} on tensor cores"
    return (
        f"{kernel.rank}. {kernel.name}",
        f"{totals.launches} launches, {three_digits(1e3 * (totals.duration_s or 0.0))} ms, "
        f"{percent(kernel.share or 0.0)} of the kernels' time",
        f"executed {least}{flops_rate(kernel.flops_per_s or 0.0)}{tensor}",
        f"FLOP/byte: {least}{counted}",
        *textwrap.wrap(totals.name, _HOVER_CHARACTERS),
    )


def _kernel_entries(
    placed: Sequence[KernelPlace], used: UsedCeiling | None, shape: Marker
) -> list[LegendEntry]:
    """A level's marker and slope are one entry; a level without a slope says so."""
    counted = {level for kernel in placed for level in kernel.intensities}
    rates = level_rates(used) if used else {}
    entries = []
    for level, colour in LEVEL_COLOURS.items():
        if level in rates:
            label = f"{level} {bytes_rate(rates[level])}"
            entries.append(LegendEntry(label, colour, shape, size_pt=6, line_pt=1.2))
        elif level in counted:
            entries.append(LegendEntry(f"{level}, no roof", colour, shape, size_pt=6))
    return [*entries, *area_entries(shape, "#CCCCCC", "kernels")] if placed else entries
