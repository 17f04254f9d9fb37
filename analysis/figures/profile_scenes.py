"""The rooflines of one step, by its ops and by its kernels, under the roofs of its device.

Ops need no counter: a marker stands at the FLOP/byte of its eager bytes, which is what an op by
itself moves; a line leads to that of its fused bytes. Filled markers count algorithmic FLOP, open
ones elementwise FLOP. The marker's shape is the phase.

A kernel is up to three markers at one height, one per memory level whose bytes were counted: the
colour is the level, of markers and slopes alike, the marker the math mode. Points crowd along the
slopes, so the legend carries their rates.

The area of a marker is its share of the time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from analysis.figures.scene import (
    FlatRoof,
    LegendEntry,
    Line,
    Mark,
    Region,
    Scene,
    Slope,
    limits_of,
    roof_entries,
)
from analysis.figures.style import (
    LEVEL_COLOURS,
    MARKERS,
    OTHER_MODELS,
    PHASE_MARKERS,
    ROOF_GREYS,
    Marker,
    area_pt2,
)
from analysis.profiles.kernel_places import KernelPlace, KernelPlaces, MemoryLevel
from analysis.profiles.op_places import OpPlace, OpPlaces, StepPart
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, interval, percent, three_digits
from bench.records import MathMode

#: Ops and kernels with less of the time than this may lie outside: a counter's increment would
#: stretch the axes by decades.
_MIN_SHARE_FOR_LIMITS = 0.005
#: At most so many have names, of those with at least this share.
_MAX_NAMED_OPS = 12
_MAX_NAMED_KERNELS = 10
_MIN_NAMED_SHARE = 0.01
_PHASES: dict[StepPart, str] = {"forward": "fwd", "backward": "bwd"}
_CACHE_SHADE = "#F3EEE0"
_ENTRY_IN = 1.7
#: Shares of time that the legend shows as examples of the area.
_EXAMPLE_SHARES = (0.01, 0.1)
_HOVER_CHARACTERS = 90


def op_scene(places: OpPlaces, used: UsedCeiling | None, *, colour: str = OTHER_MODELS) -> Scene:
    """Return the scene of a profile's ops under the roof of `used`; `colour` is the model's.

    Roofs are compute, DRAM, and the cache before it if it was measured.
    """
    has_l3 = used is not None and any(cache.level == "L3" for cache in used.cache_roofs)
    slopes, flat_roofs = _device_roofs(used, ("L3" if has_l3 else "L2", "DRAM"))
    placed = list(places.placed)
    shown = [op for op in placed if op.share >= _MIN_SHARE_FOR_LIMITS] or placed
    limits = limits_of(
        slopes,
        flat_roofs,
        [op.intensity_min for op in shown if op.intensity_min],
        [op.flops_per_s for op in shown if op.flops_per_s],
    )
    region = None
    if used is not None and any(op.from_cache for op in shown):
        region = _above_memory(used, limits.intensity[0])
    return Scene(
        rate="Attained",
        empty="no op has a place here",
        limits=limits,
        slopes=slopes,
        flat_roofs=flat_roofs,
        marks=tuple(
            _op_mark(op, colour, rank, limits.intensity[1]) for rank, op in enumerate(placed)
        ),
        region=region,
        legend=(*_op_entries(placed, colour), *roof_entries(flat_roofs)),
        legend_entry_in=_ENTRY_IN,
        note=(
            f"Placed: {percent(sum(op.share for op in placed))} of the ops' time. "
            f"Ops without FLOP (copies, fills): {percent(places.without_flops_share)}. "
            f"Not in the cost model: {percent(places.unmatched_share)}."
        ),
    )


def kernel_scene(places: KernelPlaces, used: UsedCeiling | None, *, math_mode: MathMode) -> Scene:
    """Return the scene of a profile's kernels under the roofs of `used`.

    A memory level that was not measured has no slope.
    """
    slopes, flat_roofs = _device_roofs(used, tuple(LEVEL_COLOURS), LEVEL_COLOURS)
    placed, shape = list(places.placed), MARKERS[math_mode]
    shown = [one for one in placed if (one.share or 0.0) >= _MIN_SHARE_FOR_LIMITS] or placed
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
        legend_entry_in=_ENTRY_IN,
        note=_kernel_note(places),
    )


def missing_levels(used: UsedCeiling | None) -> list[str]:
    """Return why a memory level has no slope in the scene of kernels, level by level."""
    caches = {cache.level: cache for cache in used.cache_roofs} if used else {}
    reasons = []
    for level in ("L1", "L2") if used else ():
        if level not in caches:
            reasons.append(f"{level}: its bandwidth was not measured")
        elif caches[level].peak_bytes_per_s is None:
            reasons.append(f"{level}: {caches[level].missing['peak_bytes_per_s']}")
    return reasons


def _rates(used: UsedCeiling) -> dict[MemoryLevel, float]:
    """Bytes/s of each memory level that is known."""
    rates: dict[MemoryLevel, float] = {"DRAM": used.roof.peak_bytes_per_s}
    caches = ((cache.level, cache.peak_bytes_per_s) for cache in used.cache_roofs)
    return rates | {level: rate for level, rate in caches if rate is not None}


def _device_roofs(
    used: UsedCeiling | None,
    levels: Sequence[MemoryLevel],
    colours: Mapping[MemoryLevel, str] | None = None,
) -> tuple[tuple[Slope, ...], tuple[FlatRoof, ...]]:
    """One device's compute limit and a slope for those of `levels` that were measured.

    `DRAM` must be among the levels. A slope has its colour of `colours` instead of a label.
    """
    if used is None:
        return (), ()
    peak, kind, mode = used.roof.peak_flops_per_s, used.ceiling.kind, used.ceiling.math_mode
    rates, dashed = _rates(used), used.ceiling.kind == "datasheet"
    slopes = []
    for level in sorted((one for one in levels if one in rates), key=lambda one: rates[one]):
        rate = bytes_rate(rates[level])
        group = f"{level} roof {rate} ({kind})"
        ridge = f"ridge at {three_digits(peak / rates[level])} FLOP/byte"
        colour, name = ROOF_GREYS[0], f"{level} {rate}"
        if colours:
            colour, name = colours[level], ""
        slopes.append(Slope(rates[level], peak, colour, dashed, name, group, (group, ridge)))
    words = f"{used.ceiling.device} {mode} {flops_rate(peak)} ({kind})"
    corner = slopes[-1].ridge_flop_per_byte  # where the steepest slope meets it
    label = (mode, flops_rate(peak))
    return tuple(slopes), (FlatRoof(peak, corner, ROOF_GREYS[0], dashed, label, words, (words,)),)


def _op_mark(op: OpPlace, colour: str, rank: int, edge_flop_per_byte: float) -> Mark:
    """The line leads from eager to fused bytes, to the edge if a fused op moves none."""
    label = f"{op.time.label.replace('convolution', 'conv')} {_PHASES.get(op.part, '')}".rstrip()
    named = rank < _MAX_NAMED_OPS and op.share >= _MIN_NAMED_SHARE
    return Mark(
        intensity_flop_per_byte=op.intensity_min or 0.0,
        flops_per_s=op.flops_per_s or 0.0,
        shape=PHASE_MARKERS[op.part],
        colour=colour,
        filled=op.kind == "algorithmic",
        area_pt2=area_pt2(op.share),
        opacity=0.85,
        edge_pt=0.9,
        line=Line(op.intensity_max or edge_flop_per_byte, colour, 0.7, 0.45),
        group=f"{op.part}, {op.kind} FLOP",
        hover=_op_hover(op),
        name=f"{label} {percent(op.share)}" if named else "",
    )


def _op_hover(op: OpPlace) -> tuple[str, ...]:
    time, start = op.time, op.intensity_min or 0.0
    fused = "no byte of its own if fused" if op.intensity_max is None else "eager to fused bytes"
    flops = time.flops or time.elementwise_flops or 0
    eager_rate = (time.eager_bytes or 0) / time.time_s
    return (
        f"{op.rank}. {time.label} ({time.op}), {op.part}",
        f"{time.calls} calls, {three_digits(1e3 * time.time_s)} ms, "
        f"{percent(op.share)} of the ops' time",
        f"{three_digits(flops / 1e9)} GFLOP {op.kind}, attained {flops_rate(op.flops_per_s or 0)}",
        f"intensity {interval(start, op.intensity_max or start)} FLOP/byte ({fused})",
        f"its eager bytes at {bytes_rate(eager_rate)}"
        + (": faster than DRAM, so partly from a cache" if op.from_cache else ""),
    )


def _above_memory(used: UsedCeiling, low_flop_per_byte: float) -> Region:
    """Where no traffic to DRAM can be fast enough."""
    roof, top = used.roof, used.roof.peak_flops_per_s
    corners = (
        (low_flop_per_byte, low_flop_per_byte * roof.peak_bytes_per_s),
        (roof.ridge_flop_per_byte, top),
        (low_flop_per_byte, top),
    )
    return Region(corners, _CACHE_SHADE, "faster than DRAM: from a cache")


def _op_entries(placed: Sequence[OpPlace], colour: str) -> list[LegendEntry]:
    parts, kinds = {op.part for op in placed}, {op.kind for op in placed}
    circle = MARKERS["fp32"]
    entries = [
        LegendEntry(part, colour, shape, "white", 5)
        for part, shape in PHASE_MARKERS.items()
        if part in parts
    ]
    for kind, face in (("algorithmic", None), ("elementwise", "white")):
        if kind in kinds:
            entries.append(LegendEntry(f"{kind} FLOP", colour, circle, face, 5))
    if placed:
        entries += _area_entries(circle, colour, "ops")
        entries.append(LegendEntry("eager (marker) to fused bytes", colour, line_pt=0.9))
    return entries


def _area_entries(shape: Marker, edge: str, whose: str) -> Iterable[LegendEntry]:
    for share in _EXAMPLE_SHARES:
        label = f"{percent(share)} of the {whose}' time"
        yield LegendEntry(label, edge, shape, "#CCCCCC", area_pt2(share) ** 0.5)


def _kernel_note(places: KernelPlaces) -> str:
    """Where the kernels' time went, as far as it is not in the picture."""
    placed = sum(kernel.share or 0.0 for kernel in places.placed)
    words = (
        f"Placed: {percent(placed)} of the kernels' time. Kernels without FLOP "
        f"({len(places.without_flops)} names): {percent(places.without_flops_share)}."
    )
    if places.unknown:
        words += f" FLOP or time not counted: {len(places.unknown)} names."
    return words


def _kernel_marks(kernel: KernelPlace, shape: Marker, rank: int) -> list[Mark]:
    """A mark per level, joined by a line; the name stands at the outermost."""
    share = kernel.share or 0.0
    named = rank < _MAX_NAMED_KERNELS and share >= _MIN_NAMED_SHARE
    name = f"{kernel.rank} {kernel.name} {percent(share)}" if named else ""
    innermost, outermost = min(kernel.intensities.values()), max(kernel.intensities.values())
    line = Line(outermost, "#999999", 0.6, 1.0)
    return [
        Mark(
            intensity_flop_per_byte=intensity,
            flops_per_s=kernel.flops_per_s or 0.0,
            shape=shape,
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
    tensor = ""
    if totals.tensor_flops is not None and totals.flops:
        tensor = f", {percent(totals.tensor_flops / totals.flops)} on tensor cores"
    return (
        f"{kernel.rank}. {kernel.name}",
        f"{totals.launches} launches, {three_digits(1e3 * (totals.duration_s or 0.0))} ms, "
        f"{percent(kernel.share or 0.0)} of the kernels' time",
        f"executed {flops_rate(kernel.flops_per_s or 0.0)}{tensor}",
        f"FLOP/byte: {counted}",
        *textwrap.wrap(totals.name, _HOVER_CHARACTERS),
    )


def _kernel_entries(
    placed: Sequence[KernelPlace], used: UsedCeiling | None, shape: Marker
) -> list[LegendEntry]:
    """A level's marker and slope are one entry; a level without a slope says so."""
    counted = {level for kernel in placed for level in kernel.intensities}
    rates = _rates(used) if used else {}
    entries = []
    for level, colour in LEVEL_COLOURS.items():
        if level in rates:
            label = f"{level} {bytes_rate(rates[level])}"
            entries.append(LegendEntry(label, colour, shape, size_pt=6, line_pt=1.2))
        elif level in counted:
            entries.append(LegendEntry(f"{level}, no roof", colour, shape, size_pt=6))
    return [*entries, *_area_entries(shape, "#CCCCCC", "kernels")] if placed else entries
