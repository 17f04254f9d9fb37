"""The rooflines of one step: by its ops and by its kernels, under the roofs of its device.

Ops need no counter: a marker stands at the FLOP/byte of its eager bytes, which is what an op by
itself moves; a line leads to that of its fused bytes. Filled markers count algorithmic FLOP, open
ones elementwise FLOP. The marker's shape is the phase.

A kernel is up to three markers at one height, one per memory level whose bytes were counted: the
colour is the level, of markers and slopes alike, the shape the math mode. A kernel of whose FLOP
some were not counted is an arrow: at least so high. Points crowd along the slopes, so the legend
carries their rates.

The area of a marker is its share of the time.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.figures.chart import OTHER_MODELS, SHAPES, Chart, Marks, hover
from analysis.figures.roofline import legend_of, roof_lines, roofline_chart, under_roof
from analysis.presentation.columns import C
from analysis.presentation.words import percent
from analysis.profiles import KernelPlace, MemoryLevel, OpPlace, Places, time_share
from analysis.roofs import UsedCeiling
from bench.records import MathMode

#: Phases of a step: forth, back, and the step that adds; with their short names.
_PHASES = {
    "forward": ("triangle-right", " fwd"),
    "backward": ("triangle-left", " bwd"),
    "optimizer": ("cross", ""),
    "whole step": ("x", ""),
}
#: Memory levels from the arithmetic outwards, darker with distance; roofs and markers alike.
LEVEL_COLOURS: Mapping[MemoryLevel, str] = {"L1": "#B79FDB", "L2": "#7E57B5", "DRAM": "#3B1070"}
#: Ops and kernels with less of the time than this may lie outside: a counter's increment would
#: stretch the axes by decades.
_MIN_SHARE_FOR_AXES = 0.005
#: Those with less of the time have no name, nor those after so many.
_MIN_NAMED_SHARE, _MAX_NAMED = 0.01, 12
_OF_OP = (C.calls, C.time_ms, C.time_share, C.gflop, C.elementwise_gflop, C.attained_gflops,
          C.intensity, C.eager_gb_per_s, C.remark)  # fmt: skip
_OF_KERNEL = (C.launches, C.duration_ms, C.time_share, C.executed_gflop, C.tensor_gflop,
              C.executed_gflops, C.intensity_l1, C.intensity_l2, C.intensity_dram, C.dram_gb_per_s,
              C.name)  # fmt: skip


def size_pt(share: float) -> float:
    """Return the diameter of a marker whose area is a share of time, large enough to see."""
    return float(max(9.0, 500.0 * share) ** 0.5)


def op_chart(
    places: Places[OpPlace], used: UsedCeiling | None, *, colour: str = OTHER_MODELS
) -> Chart:
    """Return the roofline of a profile's ops; `colour` is the model's.

    Roofs are those of `used`: compute, DRAM, and the cache before it if it was measured.
    """
    has_l3 = used is not None and any(cache.level == "L3" for cache in used.cache_roofs)
    roofs = list(_device_roofs(used, ("L3" if has_l3 else "L2", "DRAM")))
    return _chart(
        "Attained",
        "op",
        roofs,
        [_op(index, op, colour) for index, op in enumerate(places.placed)],
        [Marks("eager to fused bytes", colour, line_pt=0.9)],
        title=(
            f"Placed: {percent(time_share(places.placed))} of the ops' time. "
            f"Ops without FLOP (copies, fills): {percent(time_share(places.without_flops))}. "
            f"Not in the cost model: {percent(time_share(places.unknown))}."
        ),
    )


def kernel_chart(
    places: Places[KernelPlace], used: UsedCeiling | None, *, math_mode: MathMode
) -> Chart:
    """Return the roofline of a profile's kernels under the roofs of `used`.

    A memory level that was not measured has no slope.
    """
    shape, placed = SHAPES[math_mode], places.placed
    words = (
        f"Placed: {percent(time_share(placed))} of the kernels' time. Kernels without FLOP "
        f"({len(places.without_flops)} names): {percent(time_share(places.without_flops))}."
    )
    if places.unknown:
        words += f" FLOP or time not counted: {len(places.unknown)} names."
    if any(kernel.at_least for kernel in placed):
        words += " Arrows: at least so high."
    return _chart(
        "Executed",
        "kernel",
        list(_device_roofs(used, tuple(LEVEL_COLOURS), LEVEL_COLOURS)),
        [_kernel(index, kernel, shape) for index, kernel in enumerate(placed)],
        title=words,
    )


def _chart(
    rate: str,
    noun: str,
    roofs: Sequence[Marks],
    rows: Sequence[tuple[float, list[Marks]]],
    legend: Sequence[Marks] = (),
    **look: Any,
) -> Chart:
    """The axes hold the marks of those whose share was large enough, or all if none was."""
    drawn = [mark for _, marks in rows for mark in marks]
    held = [mark for share, marks in rows for mark in marks if share >= _MIN_SHARE_FOR_AXES]
    areas = (  # examples
        Marks(f"{percent(share)} of the {noun}s' time", "#CCCCCC", "circle", size_pt=size_pt(share))
        for share in (0.01, 0.1)
    )
    return roofline_chart(
        rate,
        roofs,
        drawn,
        held=held or drawn,
        empty="" if drawn else f"no {noun} has a place here",
        legend=[*legend_of(one for one in drawn if one.shape), *areas, *legend] if drawn else (),
        **look,
    )


def _placed(
    index: int,
    of: OpPlace | KernelPlace,
    name: str,
    hover: str,
    marks: Sequence[Marks],
    line: Marks,
) -> tuple[float, list[Marks]]:
    """The share of the time of an op or a kernel, and its markers; the longest have names."""
    share = of.share or 0.0
    shown = index < _MAX_NAMED and share >= _MIN_NAMED_SHARE
    sized = [replace(mark, size_pt=size_pt(share)) for mark in marks]
    words = f"{name} {percent(share)}" if shown else ""
    return share, list(under_roof((of.flops_per_s or 0.0) / 1e9, sized, line, hover, words))


def _op(index: int, op: OpPlace, colour: str) -> tuple[float, list[Marks]]:
    """An op from its eager to its fused bytes, to the edge if a fused one moves none."""
    start, (shape, phase) = op.intensity_min or 0.0, _PHASES[op.part]
    group, ends = f"{op.part}, {op.kind} FLOP", (start, op.intensity_max or math.inf)
    mark = Marks(group, colour, shape, xs=(start,), filled=op.kind == "algorithmic", opacity=0.85)
    return _placed(
        index,
        op,
        op.time.label.replace("convolution", "conv") + phase,
        hover(f"{op.rank}. {op.time.label} ({op.time.op}), {op.part}", op.row, _OF_OP),
        [mark],
        Marks(group, colour, line_pt=0.7, opacity=0.45, xs=ends),
    )


def _kernel(index: int, kernel: KernelPlace, shape: str) -> tuple[float, list[Marks]]:
    """A kernel with a marker per level, from the innermost bytes to the outermost."""
    at_least = ": its rate and its FLOP/byte are at least" if kernel.at_least else ""
    shape = "arrow-up" if kernel.at_least else shape
    whole_name = {"name": "\n".join(textwrap.wrap(kernel.totals.name, 90))}
    row = {**kernel.row, **kernel.rates, **whole_name}
    marks = [
        Marks(f"FLOP per {level} byte", LEVEL_COLOURS[level], shape, xs=(x,),
            edge_pt=0.5, opacity=0.9)
        for level, x in sorted(kernel.intensities.items(), key=lambda item: item[1])
    ]  # fmt: skip
    return _placed(
        index,
        kernel,
        f"{kernel.rank} {kernel.name}",
        hover(f"{kernel.rank}. {kernel.name}{at_least}", row, _OF_KERNEL),
        marks,
        Marks(marks[0].group, "#999999", line_pt=0.6, xs=marks[0].xs + marks[-1].xs),
    )


def _device_roofs(
    used: UsedCeiling | None,
    levels: Sequence[MemoryLevel],
    colours: Mapping[MemoryLevel, str] | None = None,
) -> Iterator[Marks]:
    """A slope for each of `levels` that was measured, then the compute limit.

    `DRAM` must be among the levels. The compute limit begins where the steepest slope meets it. A
    slope has its colour of `colours` instead of a label.
    """
    if used is None:
        return
    one, peak = used.ceiling, used.roof.peak_flops_per_s / 1e9
    rates: dict[MemoryLevel, float] = {"DRAM": used.roof.peak_bytes_per_s}
    for cache in used.cache_roofs:
        if cache.level in levels and cache.peak_bytes_per_s is not None:
            rates[cache.level] = cache.peak_bytes_per_s
    for level, rate in sorted(rates.items(), key=lambda level: level[1]):
        names = (f"{one.device} {one.math_mode}", f"{level} roof")
        top, slope = roof_lines(
            peak, rate / 1e9, one.kind, names, one.math_mode, f"{one.kind} roof"
        )
        label = f"{level} {slope.slope_label}"
        if colours:
            yield replace(slope, colour=colours[level], group=label, slope_label="")
        else:
            yield replace(slope, slope_label=label)
    yield top
