"""The roofline of one step by its ops, under the roofs of its device.

Ops need no counter: a marker stands at the FLOP/byte of its eager bytes, which is what an op by
itself moves; a line leads to that of its fused bytes. Filled markers count algorithmic FLOP, open
ones elementwise FLOP. The marker's shape is the phase, its area the share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.figures.rooflines.device_roofs import (
    LEGEND_ENTRY_IN,
    MIN_NAMED_SHARE,
    MIN_SHARE_FOR_LIMITS,
    area_entries,
    device_roofs,
)
from analysis.figures.rooflines.scene import (
    Line,
    Mark,
    Region,
    Scene,
    limits_of,
    roof_entries,
)
from analysis.figures.style import MARKERS, OTHER_MODELS, PHASE_MARKERS, LegendEntry, area_pt2
from analysis.profiles.op_places import OpPlace, OpPlaces, StepPart
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, interval, percent, three_digits

_MAX_NAMED = 12
_PHASES: dict[StepPart, str] = {"forward": "fwd", "backward": "bwd"}
_CACHE_SHADE = "#F3EEE0"


def op_scene(places: OpPlaces, used: UsedCeiling | None, *, colour: str = OTHER_MODELS) -> Scene:
    """Return the scene of a profile's ops under the roof of `used`; `colour` is the model's.

    Roofs are compute, DRAM, and the cache before it if it was measured.
    """
    has_l3 = used is not None and any(cache.level == "L3" for cache in used.cache_roofs)
    slopes, flat_roofs = device_roofs(used, ("L3" if has_l3 else "L2", "DRAM"))
    placed = list(places.placed)
    shown = [op for op in placed if op.share >= MIN_SHARE_FOR_LIMITS] or placed
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
        legend_entry_in=LEGEND_ENTRY_IN,
        note=(
            f"Placed: {percent(sum(op.share for op in placed))} of the ops' time. "
            f"Ops without FLOP (copies, fills): {percent(places.without_flops_share)}. "
            f"Not in the cost model: {percent(places.unmatched_share)}."
        ),
    )


def _op_mark(op: OpPlace, colour: str, rank: int, edge_flop_per_byte: float) -> Mark:
    """The line leads from eager to fused bytes, to the edge if a fused op moves none."""
    label = f"{op.time.label.replace('convolution', 'conv')} {_PHASES.get(op.part, '')}".rstrip()
    named = rank < _MAX_NAMED and op.share >= MIN_NAMED_SHARE
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
        entries += area_entries(circle, colour, "ops")
        entries.append(LegendEntry("eager (marker) to fused bytes", colour, line_pt=0.9))
    return entries
