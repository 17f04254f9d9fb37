"""The interactive roofline: hover for every number, click the legend to filter, no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go

from analysis.figures.hover import hover_text
from analysis.figures.plotly_page import DASHES, UNIT_FLOPS_PER_S, layout
from analysis.figures.roofs import FlatRoof, Roofs, collect_roofs
from analysis.figures.style import MARKERS, OTHER_MODELS, ROOF_GREYS, model_colours
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import bytes_rate, three_digits
from bench.records import Ceiling

#: Vertices of an interval, so that hovering finds it anywhere along its length.
_VERTICES = 5
#: Roofs nearer than this factor would write their labels over each other.
_NEAR_ROOFS = 1.4


def interactive_roofline(
    points: Sequence[RooflinePoint],
    *,
    ceilings: Iterable[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> go.Figure:
    """Return the roofline as a Plotly figure, one legend entry per machine, model and math mode.

    `names` maps record ids to the names that hovering shows. Channels as in `draw_roofline`.
    """
    palette = colours or model_colours(point.arch for point in points)
    roofs = collect_roofs(points, ceilings)
    figure = go.Figure()
    figure.add_traces(_roof_traces(roofs, points))
    groups: dict[tuple[str, str, str], list[RooflinePoint]] = {}
    for point in points:
        groups.setdefault((point.env, point.arch, point.math_mode), []).append(point)
    for group in groups.values():
        figure.add_trace(_runs_trace(group, palette.get(group[0].arch, OTHER_MODELS), names or {}))
    rates = [point.attained_flops_per_s for point in points]
    figure.update_layout(**layout(rates, "Attained", "no run has a place here"))
    return figure


def _roof_traces(roofs: Roofs, points: Sequence[RooflinePoint]) -> list[go.Scatter]:
    """One line per compute limit; a machine's lines share one legend entry."""
    ridges = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.flat]
    low = min([*ridges, *(point.intensity_min for point in points)], default=1.0) / 4
    high = max([*ridges, *(point.intensity_max for point in points)], default=1.0) * 4
    traces: list[go.Scatter] = []
    in_legend: set[tuple[str, str]] = set()
    below, label_at = 0.0, high
    for roof in roofs.flat:
        near = roof.flops_per_s < _NEAR_ROOFS * below
        label_at = label_at / 8 if near and label_at == high else high
        below = roof.flops_per_s
        grey = ROOF_GREYS[roofs.machines.index(roof.machine) % len(ROOF_GREYS)]
        trace = _roof_trace(roof, (low, label_at, high), grey)
        trace.showlegend = (roof.machine, roof.kind) not in in_legend
        in_legend.add((roof.machine, roof.kind))
        traces.append(trace)
    return traces


def _roof_trace(roof: FlatRoof, xs: tuple[float, float, float], grey: str) -> go.Scatter:
    """`xs`: where the line starts, where its label stands and where it ends."""
    low, label_at, high = xs
    ridge = roof.flops_per_s / roof.bytes_per_s
    machine = html.escape(roof.machine)
    text = f"{machine} {'/'.join(roof.modes)} {roof.rate}"
    hover = f"<b>{text}</b><br>{bytes_rate(roof.bytes_per_s)} ({roof.kind})<br>ridge at "
    return go.Scatter(
        x=[low, ridge, max(label_at, ridge), high],
        y=[low * roof.bytes_per_s / UNIT_FLOPS_PER_S, *[roof.flops_per_s / UNIT_FLOPS_PER_S] * 3],
        mode="lines+text",
        text=["", "", text, ""],
        textposition="top left",
        textfont={"size": 11, "color": grey},
        line={"color": grey, "width": 1.5, "dash": DASHES[roof.kind]},
        name=f"roof: {machine} ({roof.kind})",
        legendgroup=f"{machine} {roof.kind}",
        hovertemplate=f"{hover}{three_digits(ridge)} FLOP/byte<extra></extra>",
    )


def _runs_trace(
    points: Sequence[RooflinePoint], colour: str, names: Mapping[str, str]
) -> go.Scatter:
    xs: list[float | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    sizes: list[int] = []
    symbols: list[str] = []
    for point in points:
        vertices = _vertices(point)
        symbol = MARKERS[point.math_mode].plotly
        ends = [9, *[0] * (len(vertices) - 2), 9] if len(vertices) > 1 else [10]
        xs += [*vertices, None]
        ys += [point.attained_flops_per_s / UNIT_FLOPS_PER_S] * len(vertices) + [None]
        texts += [hover_text(point, names)] * len(vertices) + [""]
        sizes += [*ends, 0]
        symbols += [symbol if len(vertices) == 1 else f"{symbol}-open"] * (len(vertices) + 1)
    first = points[0]
    return go.Scatter(
        x=xs,
        y=ys,
        text=texts,
        mode="lines+markers",
        line={"color": colour, "width": 2.5},
        marker={"size": sizes, "symbol": symbols, "color": colour, "opacity": 1},
        name=html.escape(f"{first.env} {first.arch} {first.math_mode}"),
        hovertemplate="%{text}<extra></extra>",
    )


def _vertices(point: RooflinePoint) -> list[float]:
    if point.intensity_counted is not None:
        return [point.intensity_counted]
    low, ratio = point.intensity_min, point.intensity_max / point.intensity_min
    return [low * ratio ** (step / (_VERTICES - 1)) for step in range(_VERTICES)]
