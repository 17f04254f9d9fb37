"""Draws a scene with Plotly, for a page: hover for every number, click the legend to filter."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go

from analysis.figures.page import (
    empty_note,
    hover_text,
    marker_pixels,
    page_axis,
    page_layout,
)
from analysis.figures.rooflines.drawn_point import DrawnPoint
from analysis.figures.rooflines.run_scene import run_scene
from analysis.figures.rooflines.scene import INTENSITY_LABEL, FlatRoof, Line, Mark, Scene, Slope
from analysis.runs.points import RooflinePoint
from bench.records import Ceiling

#: Room for a table below it on the first screen of a report.
_HEIGHT_PIXELS = 460
#: Vertices of a line, so that hovering finds it anywhere along its length.
_VERTICES = 5
#: Flat roofs nearer than this factor would write their labels over each other.
_NEAR_ROOFS = 1.4


def interactive_roofline(
    points: Sequence[RooflinePoint | DrawnPoint],
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
        texts += [*[hover_text(mark.hover)] * len(vertices), ""]
        sizes += [marker_pixels(mark.area_pt2**0.5), *[0] * more]
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
        line=_line(lines[0]) if lines else None,
        marker=marker,
        name=html.escape(first.group, quote=False),
        hovertemplate="%{text}<extra></extra>",
    )


def _line(line: Line) -> dict[str, object]:
    dash = "dash" if line.dashed else "solid"
    return {"color": line.colour, "width": line.width_pt, "dash": dash}


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
        traces[-1].texttemplate = ["", html.escape(" ".join(roof.label), quote=False), ""]
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
        name=html.escape(roof.group, quote=False),
        legendgroup=html.escape(roof.group, quote=False),
        text=[hover_text(roof.hover)] * len(xs),
        hovertemplate="%{text}<extra></extra>",
    )


def _layout(scene: Scene) -> dict[str, object]:
    rates = [rate / scene.unit_flops_per_s for rate in scene.limits.flops_per_s]
    return {
        **page_layout(_HEIGHT_PIXELS, title=scene.note),
        "xaxis": page_axis(INTENSITY_LABEL, scene.limits.intensity, logarithmic=True),
        "yaxis": page_axis(scene.rate_label, rates, logarithmic=True),
        "annotations": [] if scene.marks else [empty_note(scene.empty)],
    }
