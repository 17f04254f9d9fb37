"""The interactive per-kernel roofline: whole kernel names and every counter on hover."""

from __future__ import annotations

import html
import textwrap

import plotly.graph_objects as go

from analysis.figures.kernel_roofline import kernel_roofs, kernels_in_picture
from analysis.figures.plotly_page import UNIT_FLOPS_PER_S, device_roof_traces, layout
from analysis.figures.style import LEVEL_COLOURS, MARKERS, area_pt2
from analysis.profiles.kernel_places import KernelPlace, KernelPlaces, MemoryLevel
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import flops_rate, percent, three_digits
from bench.records import MathMode

_PIXELS_PER_PT = 96 / 72
_LINE_LETTERS = 90


def interactive_kernel_roofline(
    places: KernelPlaces, used: UsedCeiling | None, *, math_mode: MathMode
) -> go.Figure:
    """Return the per-kernel roofline as a Plotly figure; channels as in `draw_kernel_roofline`."""
    limits = kernels_in_picture(places)
    shown = [value for kernel in limits for value in kernel.intensities.values()]
    figure = go.Figure()
    figure.add_traces(device_roof_traces(kernel_roofs(used), shown))
    for level in LEVEL_COLOURS:
        kernels = [kernel for kernel in places.placed if level in kernel.intensities]
        if kernels:
            figure.add_trace(_trace(level, kernels, MARKERS[math_mode].plotly))
    rates = [kernel.flops_per_s for kernel in limits if kernel.flops_per_s]
    figure.update_layout(**layout(rates, "Executed", "no kernel has a place here"))
    return figure


def _trace(level: MemoryLevel, kernels: list[KernelPlace], symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[kernel.intensities[level] for kernel in kernels],
        y=[(kernel.flops_per_s or 0.0) / UNIT_FLOPS_PER_S for kernel in kernels],
        mode="markers",
        marker={
            "symbol": symbol,
            "size": [_PIXELS_PER_PT * area_pt2(kernel.share or 0.0) ** 0.5 for kernel in kernels],
            "color": LEVEL_COLOURS[level],
            "opacity": 0.85,
            "line": {"color": "white", "width": 0.5},
        },
        text=[_hover(kernel) for kernel in kernels],
        name=f"FLOP per {level} byte",
        hovertemplate="%{text}<extra></extra>",
    )


def _hover(kernel: KernelPlace) -> str:
    totals = kernel.totals
    counted = ", ".join(
        f"{level} {three_digits(value)}" for level, value in kernel.intensities.items()
    )
    tensor = "" if totals.tensor_flops is None or not totals.flops else (
        f", {percent(totals.tensor_flops / totals.flops)} on tensor cores"
    )  # fmt: skip
    lines = [
        f"{kernel.rank}. {kernel.name}",
        f"{totals.launches} launches, {three_digits(1e3 * (totals.duration_s or 0.0))} ms, "
        f"{percent(kernel.share or 0.0)} of the kernels' time",
        f"executed {flops_rate(kernel.flops_per_s or 0.0)}{tensor}",
        f"FLOP/byte: {counted}",
        *textwrap.wrap(totals.name, _LINE_LETTERS),
    ]
    return "<br>".join(html.escape(line, quote=False) for line in lines)
