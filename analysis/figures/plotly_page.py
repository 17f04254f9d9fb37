"""What every interactive roofline shares: its axes, its roofs, and its way onto a page."""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.figures.roofs import Roofs
from analysis.figures.style import ROOF_GREYS
from analysis.runs.quantities import bytes_rate, three_digits

UNIT_FLOPS_PER_S = 1e9
DASHES = {"measured": "solid", "datasheet": "dash"}


def figure_html(figure: go.Figure, div_id: str, *, with_script: bool) -> str:
    """Return `figure` as an HTML fragment.

    Plotly's script (about 5 MB) is in it if asked for: once on a page, with the first figure.
    """
    markup: str = figure.to_html(
        full_html=False,
        include_plotlyjs=with_script,
        div_id=div_id,
        config={
            "displaylogo": False,
            "responsive": True,
            # plotly.js 4 offers to send the data to its maker's server unless told not to.
            "showSendToCloud": False,
            "modeBarButtonsToRemove": ["select2d", "lasso2d"],
        },
    )
    return markup


def layout(rates_flops_per_s: Sequence[float], rate: str, empty: str) -> dict[str, object]:
    """Return the layout; `rate` says whose FLOP/s the height is, `empty` what to say of none."""
    rates = rates_flops_per_s
    few_decades = not rates or max(rates) < 100 * min(rates)
    axis = {"type": "log", "gridcolor": "#E6E6E6", "linecolor": "#333333", "dtick": 1}
    note = {"text": empty, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return {
        "xaxis": {**axis, "title": "Arithmetic intensity (FLOP/byte)"},
        "yaxis": {
            **axis,
            "title": f"{rate} GFLOP/s",
            "tickformat": ",.10~g",
            "dtick": "D2" if few_decades else 1,
        },
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
        "font": {"color": "#222222"},
        "height": 640,
        "margin": {"l": 70, "r": 20, "t": 20, "b": 60},
        "legend": {"orientation": "h", "y": -0.14, "yanchor": "top", "maxheight": 0.25},
        "hoverlabel": {"align": "left", "bgcolor": "white"},
        "annotations": [] if rates else [note],
    }


def device_roof_traces(roofs: Roofs, intensities: Sequence[float]) -> list[go.Scatter]:
    """Return one device's roofs as lines across `intensities`."""
    ridges = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.sloped]
    ends = [*ridges, *intensities]
    low, high = min(ends, default=1.0) / 4, max(ends, default=1.0) * 4
    traces = []
    for slope, ridge in zip(roofs.sloped, ridges, strict=True):
        words = f"{slope.level} roof {bytes_rate(slope.bytes_per_s)} ({slope.kind})"
        xs, ys = [low, ridge], [low * slope.bytes_per_s, slope.flops_per_s]
        traces.append(_line(xs, ys, words, slope.colour or ROOF_GREYS[0], DASHES[slope.kind]))
        corner = f"ridge at {three_digits(ridge)} FLOP/byte"
        traces[-1].hovertemplate = f"{words}<br>{corner}<extra></extra>"
    for flat in roofs.flat:
        words = html.escape(f"{flat.machine} {'/'.join(flat.modes)} {flat.rate} ({flat.kind})")
        xs, ys = [min(ridges), high], [flat.flops_per_s] * 2
        traces.append(_line(xs, ys, words, ROOF_GREYS[0], DASHES[flat.kind]))
    return traces


def _line(
    xs: Sequence[float], ys_flops_per_s: Sequence[float], words: str, colour: str, dash: str
) -> go.Scatter:
    return go.Scatter(
        x=list(xs),
        y=[y / UNIT_FLOPS_PER_S for y in ys_flops_per_s],
        mode="lines",
        line={"color": colour, "width": 1.5, "dash": dash},
        name=words,
        hovertemplate=f"{words}<extra></extra>",
    )
