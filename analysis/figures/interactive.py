"""Draws a chart with Plotly, for a page: hover for every number, click the legend to filter.

Text comes from records and is escaped, since Plotly reads tags.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures import chart as data
from analysis.figures.chart import Axis, Band, Chart, Marks, Panel

_PIXELS_PER_PT = 96 / 72
#: Smaller markers are hard to hit with a pointer.
_MIN_PIXELS = 7.0
#: A page's letters are larger than paper's. What is beside the axes is on paper as high as here.
_PIXELS_PER_IN, _BESIDE_PIXELS = 110, 110
#: Between the axes and the legend, and its rows.
_LEGEND_GAP_PIXELS, _LEGEND_ROW_PIXELS = 60, 22
#: The height of a roof's label, in two lines, and its width.
_END_LABEL_PIXELS, _END_LABELS_PIXELS = 30, 105
#: Of a line that says something along its length.
_VERTICES = 5


def figure_html(figure: go.Figure, div_id: str) -> str:
    """Return `figure` as an HTML fragment for a page that has Plotly's script above it."""
    markup: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
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


def interactive_chart(chart: Chart) -> go.Figure:
    """Return `chart` as a Plotly figure, with one legend entry per group of series."""
    plot = _PIXELS_PER_IN * chart.height_in - _BESIDE_PIXELS
    titles = [_text(textwrap.wrap(panel.title, 50)) for panel in chart.panels]
    several = len(chart.panels) > 1
    figure = make_subplots(
        chart.rows,
        chart.columns,
        vertical_spacing=80 / plot if chart.rows > 1 else None,  # for the words at their axes
        subplot_titles=titles if several else None,
    )
    figure.update_annotations(font_size=12)
    for index, panel in enumerate(chart.panels):
        where = {"row": index // chart.columns + 1, "col": index % chart.columns + 1}
        bands = (_band_trace(band, panel) for band in panel.bands)
        for trace in (*bands, *_traces(panel), *_label_traces(panel, plot)):
            figure.add_trace(trace, **where)
        figure.update_xaxes(**_axis(panel.x), **where)
        figure.update_yaxes(**_axis(panel.y), **where)
        if panel.empty:
            centre = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
            figure.add_annotation(text=_text([panel.empty]), **centre)
    last = {trace.name: index for index, trace in enumerate(figure.data)}
    for index, trace in enumerate(figure.data):
        trace.showlegend = bool(trace.name) and last[trace.name] == index
    series = [marks for panel in chart.panels for marks in panel.series]
    # the entries of the legend take about so much of a page of usual width
    entries = sum(52 + 7 * len(group) for group in {marks.group for marks in series if marks.group})
    legend_rows = -(-entries // (430 if chart.is_narrow else 760))
    title = "" if several else _text([chart.panels[0].title])
    figure.update_layout(
        template="none",  # Plotly's own adds 7 kB to each figure
        title={"text": title, "font": {"size": 12}, "x": 0.05},
        plot_bgcolor="white",
        paper_bgcolor="white",
        font={"color": "#222222"},
        height=plot + _LEGEND_GAP_PIXELS + _LEGEND_ROW_PIXELS * legend_rows,
        margin={
            **{"l": 70, "b": 50, "t": 40 if several or title else 20},
            "r": _END_LABELS_PIXELS if any(marks.end_label for marks in series) else 20,
        },
        legend={
            **{"orientation": "h", "itemsizing": "constant", "maxheight": 0.5},
            **{"y": -_LEGEND_GAP_PIXELS / plot, "yanchor": "top"},
        },
        hoverlabel={"align": "left", "bgcolor": "white"},
    )
    return figure


def _text(lines: Iterable[str]) -> str:
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def _axis(axis: Axis) -> dict[str, Any]:
    """Return an axis as the figures on paper have it: a light grid, no exponents."""
    low, high = axis.limits
    title = {"text": _text([axis.label]), "font": {"size": 13}, "standoff": 10}
    lines = {"gridcolor": "#E6E6E6", "linecolor": "#333333", "zeroline": False}
    found = {"title": title, "automargin": True, **lines, "range": _xs(axis.limits, axis)}
    if axis.scale == "date":
        found["type"] = "date"
    elif axis.scale != "linear":
        found |= {"type": "log", "range": [math.log10(low), math.log10(high)]}
        found["tickformat"] = ",.10~g"
    if axis.ticks is not None:
        names = [_text(name.split("\n")) for name in axis.ticks.values()]
        found |= {"tickvals": list(axis.ticks), "ticktext": names}
    elif axis.scale.startswith("log"):
        digits = "D1" if high / low < 6 else "D2"  # part of a decade: ticks at each digit
        found["dtick"] = digits if high / low < data.FEW_DECADES else 1
    return found


def _xs(values: Sequence[float], axis: Axis) -> list[float]:
    """Days as Plotly counts them, in milliseconds; of another axis the values."""
    return [86_400_000 * value for value in values] if axis.scale == "date" else list(values)


def _traces(panel: Panel) -> Iterator[go.Scatter]:
    """One trace for all series of one look: a page of many traces is slow."""
    looks: dict[Marks, list[Marks]] = {}
    for marks in panel.series:
        look = replace(marks, xs=(), ys=(), names=(), hover=(), size_pt=0)
        looks.setdefault(replace(look, end_label=(), slope_label=""), []).append(marks)
    for look, series in looks.items():
        points = [point for marks in series for point in _points(marks, panel)]
        xs, ys, sizes, names, hovers = zip(*points, strict=True)
        named = panel.names_on_page and any(names)
        drawn = {"lines": look.line_pt, "markers": look.shape, "text": named}
        trace = go.Scatter(
            x=xs,
            y=ys,
            mode="+".join(part for part, there in drawn.items() if there),
            opacity=look.opacity,
            line={
                "color": look.colour,
                "width": _PIXELS_PER_PT * look.line_pt,
                "dash": "dash" if look.dashed else "solid",
            },
            name=_text([look.group]),
            legendgroup=_text([look.group]),
            hoverinfo="skip",
        )
        if look.shape:
            symbol = look.shape + ("" if look.filled else "-open")
            edge = {"width": _PIXELS_PER_PT * look.edge_pt, "color": look.colour}
            trace.marker = {"size": sizes, "symbol": symbol, "color": look.colour, "line": edge}
        if any(hovers):
            words = {"hovertext": hovers, "hovertemplate": "%{hovertext}<extra></extra>"}
            trace.update(hoverinfo=None, **words)
        if named:
            font = {"size": 10, "color": "#444444"}
            trace.update(text=names, textposition="top left", textfont=font)
        yield trace


def _points(marks: Marks, panel: Panel) -> Iterator[tuple[Any, ...]]:
    """Position, size, name and words of each point, and what ends a line."""
    size = _PIXELS_PER_PT * marks.size_pt
    if not marks.line_pt:  # a line is found by hovering at its vertices, however small they are
        size = max(_MIN_PIXELS, size)
    xs, ys, words = _xs(marks.xs, panel.x), list(marks.ys), marks.hover
    if words and not marks.shape and len(xs) == 2:  # found along its length
        xs, ys = _between(xs, panel.x), _between(ys, panel.y)
        words = words[:1] * _VERTICES
    for x, y, name, said in zip_longest(xs, ys, marks.names, words):
        yield (x, y, size, _text([name or ""]), _text((said or "").split("\n")))
    if marks.line_pt:
        yield (None, None, 0, "", "")


def _between(ends: Sequence[float], axis: Axis) -> list[float]:
    space = np.geomspace if axis.scale.startswith("log") else np.linspace
    return [float(value) for value in space(ends[0], ends[1], _VERTICES)]


def _label_traces(panel: Panel, plot_pixels: float) -> Iterator[go.Scatter]:
    """The labels of roofs, right of the axes; they are hidden with their roofs."""
    low, high = panel.y.limits
    for marks, _, share in data.end_labels(panel, _END_LABEL_PIXELS / plot_pixels):
        yield go.Scatter(
            x=[panel.x.limits[1]],
            y=[low * (high / low) ** share],
            mode="text",
            text=[_text(marks.end_label)],
            textposition="middle right",
            textfont={"size": 11, "color": marks.colour},
            cliponaxis=False,
            hoverinfo="skip",
            legendgroup=_text([marks.group]),
        )


def _band_trace(band: Band, panel: Panel) -> go.Scatter:
    return go.Scatter(
        x=_xs((band.low, band.low, band.high, band.high), panel.x),
        y=[*panel.y.limits, *reversed(panel.y.limits)],
        mode="none",
        fill="toself",
        fillcolor=band.colour,
        opacity=data.BAND_OPACITY,
        hoverinfo="skip",
        name=_text([band.label]),
        legendgroup=_text([band.label]),
    )
