"""Draws a scene with Plotly, for a page: hover for every number, click the legend to filter."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go

from analysis.figures.rooflines.run_scene import run_scene
from analysis.figures.rooflines.scene import INTENSITY_LABEL, FlatRoof, Mark, Scene, Slope
from analysis.runs.points import RooflinePoint
from bench.records import Ceiling

_PIXELS_PER_PT = 96 / 72
#: Room for a table below it on the first screen of a report.
_HEIGHT_PIXELS = 460
#: Smaller markers are hard to hit with a pointer.
_MIN_PIXELS = 7.0
#: Vertices of a line, so that hovering finds it anywhere along its length.
_VERTICES = 5
#: Axes that span less than this factor have ticks at 2 and 5 too.
_FEW_DECADES = 300
#: Flat roofs nearer than this factor would write their labels over each other.
_NEAR_ROOFS = 1.4


def interactive_roofline(
    points: Sequence[RooflinePoint],
    *,
    ceilings: Iterable[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> go.Figure:
    """Return the scene of `points` as a Plotly figure; the arguments are those of `run_scene`."""
    scene = run_scene(points, ceilings=ceilings, colours=colours, names=names)
    return interactive_figure(scene)


def interactive_figure(scene: Scene) -> go.Figure:
    """Return `scene` as a Plotly figure, with one legend entry per group."""
    figure = go.Figure()
    if scene.region is not None:
        xs, ys = zip(*scene.region.corners, strict=True)
        figure.add_trace(
            go.Scatter(
                x=xs,
                y=[y / scene.unit_flops_per_s for y in ys],
                mode="none",
                fill="toself",
                fillcolor=scene.region.colour,
                hoverinfo="skip",
                name=scene.region.label,
            )
        )
    figure.add_traces(_roof_traces(scene))
    groups: dict[str, list[Mark]] = {}
    for mark in scene.marks:
        groups.setdefault(mark.group, []).append(mark)
    figure.add_traces([_marks_trace(marks, scene.unit_flops_per_s) for marks in groups.values()])
    figure.update_layout(**_layout(scene))
    return figure


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
            # plotly.js 4 offers to send the data to its maker's server by default.
            "showSendToCloud": False,
            "modeBarButtonsToRemove": ["select2d", "lasso2d"],
        },
    )
    return markup


def _marks_trace(marks: Sequence[Mark], unit_flops_per_s: float) -> go.Scatter:
    """The marks of one group as one trace; None ends a mark's line."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    sizes: list[float] = []
    symbols: list[str] = []
    for mark in marks:
        vertices = _vertices(mark)
        more = len(vertices)  # those of the line, and the None that ends it
        symbol = mark.shape.plotly if mark.filled else f"{mark.shape.plotly}-open"
        xs += [*vertices, None]
        ys += [*[mark.flops_per_s / unit_flops_per_s] * len(vertices), None]
        texts += [*[_text(mark.hover)] * len(vertices), ""]
        sizes += [max(_MIN_PIXELS, _PIXELS_PER_PT * mark.area_pt2**0.5), *[0] * more]
        symbols += [symbol] * (more + 1)
    first = marks[0]
    marker = {"size": sizes, "symbol": symbols, "color": first.colour, "opacity": first.opacity}
    if first.edge:
        marker["line"] = {"color": first.edge, "width": first.edge_pt}
    lines = [mark.line for mark in marks if mark.line]
    return go.Scatter(
        x=xs,
        y=ys,
        text=texts,
        mode="lines+markers" if lines else "markers",
        line={"color": lines[0].colour, "width": lines[0].width_pt} if lines else None,
        marker=marker,
        name=html.escape(first.group),
        hovertemplate="%{text}<extra></extra>",
    )


def _vertices(mark: Mark) -> list[float]:
    """Where the mark stands, and what makes its line be found by hovering anywhere along it."""
    low = mark.intensity_flop_per_byte
    if mark.line is None:
        return [low]
    ratio = mark.line.to_flop_per_byte / low
    return [low * ratio ** (step / (_VERTICES - 1)) for step in range(_VERTICES)]


def _roof_traces(scene: Scene) -> list[go.Scatter]:
    """One line per roof; those of a group share a legend entry."""
    low, high = scene.limits.intensity
    traces = []
    for slope in scene.slopes:
        start, ridge = min(low, slope.ridge_flop_per_byte / 10), slope.ridge_flop_per_byte
        rates = [start * slope.bytes_per_s, slope.top_flops_per_s]
        traces.append(_roof_trace(slope, [start, ridge], rates, scene))
    lower, label_at = 0.0, high
    heights = [*(roof.flops_per_s for roof in scene.flat_roofs), math.inf]
    for roof, above in zip(scene.flat_roofs, heights[1:], strict=True):
        near_below = roof.flops_per_s < _NEAR_ROOFS * lower
        near_above = above < _NEAR_ROOFS * roof.flops_per_s
        lower = roof.flops_per_s
        label_at = (
            max(label_at / 8, roof.ridge_flop_per_byte) if near_below and near_above else high
        )
        xs = [roof.ridge_flop_per_byte, label_at, high]
        traces.append(_roof_trace(roof, xs, [roof.flops_per_s] * 3, scene))
        traces[-1].mode = "lines+text"
        traces[-1].texttemplate = ["", html.escape(" ".join(roof.label)), ""]
        under = near_above and not near_below
        traces[-1].textposition = "bottom left" if under else "top left"
        traces[-1].textfont = {"size": 11, "color": roof.colour}
    named: set[str] = set()
    for trace in traces:
        trace.showlegend = trace.name not in named
        named.add(trace.name)
    return traces


def _roof_trace(
    roof: Slope | FlatRoof, xs: Sequence[float], rates_flops_per_s: Sequence[float], scene: Scene
) -> go.Scatter:
    return go.Scatter(
        x=list(xs),
        y=[rate / scene.unit_flops_per_s for rate in rates_flops_per_s],
        mode="lines",
        line={"color": roof.colour, "width": 1.5, "dash": "dash" if roof.dashed else "solid"},
        name=html.escape(roof.group),
        legendgroup=html.escape(roof.group),
        text=[_text(roof.hover)] * len(xs),
        hovertemplate="%{text}<extra></extra>",
    )


def _text(lines: Iterable[str]) -> str:
    """Lines of a hover text; records are escaped, since Plotly reads tags."""
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def _layout(scene: Scene) -> dict[str, object]:
    rates = [rate / scene.unit_flops_per_s for rate in scene.limits.flops_per_s]
    note = {"showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return {
        "xaxis": _axis(INTENSITY_LABEL, scene.limits.intensity),
        "yaxis": {**_axis(scene.rate_label, rates), "tickformat": ",.10~g"},
        "title": {"text": html.escape(scene.note), "font": {"size": 12}, "x": 0.05},
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
        "font": {"color": "#222222"},
        "height": _HEIGHT_PIXELS,
        "margin": {"l": 70, "r": 20, "t": 40 if scene.note else 20, "b": 50},
        "legend": {
            "orientation": "h",
            "y": -0.16,
            "yanchor": "top",
            "maxheight": 0.25,
            "itemsizing": "constant",
        },
        "hoverlabel": {"align": "left", "bgcolor": "white"},
        "annotations": [] if scene.marks else [{**note, "text": html.escape(scene.empty)}],
    }


def _axis(title: str, limits: Sequence[float]) -> dict[str, object]:
    low, high = limits
    return {
        "type": "log",
        "title": title,
        "range": [math.log10(low), math.log10(high)],
        "dtick": "D2" if high / low < _FEW_DECADES else 1,
        "gridcolor": "#E6E6E6",
        "linecolor": "#333333",
    }
