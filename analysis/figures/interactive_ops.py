"""The interactive per-op roofline: every op with all its numbers on hover."""

from __future__ import annotations

import html

import plotly.graph_objects as go

from analysis.figures.op_roofline import in_picture, op_roofs
from analysis.figures.plotly_page import UNIT_FLOPS_PER_S, device_roof_traces, layout
from analysis.figures.style import OTHER_MODELS, PHASE_MARKERS, area_pt2
from analysis.profiles.op_places import FlopKind, OpPlace, OpPlaces, StepPart
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, interval, percent, three_digits

_PIXELS_PER_PT = 96 / 72
#: Of a fused op that moves no byte: the line goes on to here, times the eager end.
_FAR = 1000.0


def interactive_op_roofline(
    places: OpPlaces, used: UsedCeiling | None, *, colour: str = OTHER_MODELS
) -> go.Figure:
    """Return the per-op roofline as a Plotly figure; channels as in `draw_op_roofline`."""
    shown = [op.intensity_min for op in in_picture(places) if op.intensity_min]
    figure = go.Figure()
    figure.add_traces(device_roof_traces(op_roofs(used), shown))
    groups: dict[tuple[StepPart, FlopKind], list[OpPlace]] = {}
    for op in places.placed:
        assert op.kind is not None  # it is placed  # noqa: S101
        groups.setdefault((op.part, op.kind), []).append(op)
    for (part, kind), ops in groups.items():
        figure.add_trace(_trace(part, kind, ops, colour))
    rates = [op.flops_per_s for op in in_picture(places) if op.flops_per_s]
    figure.update_layout(**layout(rates, "Attained", "no op has a place here"))
    return figure


def _trace(part: StepPart, kind: FlopKind, ops: list[OpPlace], colour: str) -> go.Scatter:
    symbol = PHASE_MARKERS[part].plotly
    starts = [op.intensity_min or 0.0 for op in ops]
    ends = [op.intensity_max or _FAR * start for op, start in zip(ops, starts, strict=True)]
    return go.Scatter(
        x=starts,
        y=[(op.flops_per_s or 0.0) / UNIT_FLOPS_PER_S for op in ops],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [end - start for start, end in zip(starts, ends, strict=True)],
            "arrayminus": [0.0] * len(ops),
            "thickness": 1,
            "width": 0,
            "color": colour,
        },
        mode="markers",
        marker={
            "symbol": symbol if kind == "algorithmic" else f"{symbol}-open",
            "size": [_PIXELS_PER_PT * area_pt2(op.share) ** 0.5 for op in ops],
            "color": colour,
            "opacity": 0.85,
        },
        text=[_hover(op) for op in ops],
        name=f"{part}, {kind} FLOP",
        hovertemplate="%{text}<extra></extra>",
    )


def _hover(op: OpPlace) -> str:
    time, start = op.time, op.intensity_min or 0.0
    fused = "no byte of its own if fused" if op.intensity_max is None else "eager to fused bytes"
    flops = time.flops or time.elementwise_flops or 0
    eager_rate = (time.eager_bytes or 0) / time.time_s
    lines = [
        f"{op.rank}. {time.label} ({time.op}), {op.part}",
        f"{time.calls} calls, {three_digits(1e3 * time.time_s)} ms, "
        f"{percent(op.share)} of the ops' time",
        f"{three_digits(flops / 1e9)} GFLOP {op.kind}, attained {flops_rate(op.flops_per_s or 0)}",
        f"intensity {interval(start, op.intensity_max or start)} FLOP/byte ({fused})",
        f"its eager bytes at {bytes_rate(eager_rate)}"
        + (": faster than DRAM, so partly from a cache" if op.from_cache else ""),
    ]
    return "<br>".join(html.escape(line, quote=False) for line in lines)
