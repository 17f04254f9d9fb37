"""Draws a chart with Plotly, for a page: hover for every number, click the legend to filter."""

from __future__ import annotations

import html
import textwrap
from itertools import zip_longest

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figures.charts.chart import Axis, Band, Chart, Series
from analysis.figures.page import (
    PIXELS_PER_PT,
    empty_note,
    hover_text,
    marker_pixels,
    page_axis,
    page_layout,
)

#: A page's letters are larger than paper's. What is beside the axes is on paper as high as here.
_PIXELS_PER_IN = 110
_BESIDE_PIXELS = 110
#: Between panels below each other, for the words at their axes.
_GAP_PIXELS = 80
#: Between the axes and the legend, for the same words.
_LEGEND_GAP_PIXELS = 50
#: A row of the legend, its room on a page of usual width, and what an entry takes of it.
_LEGEND_ROW_PIXELS, _LEGEND_PIXELS, _NARROW_LEGEND_PIXELS = 22, 760, 430
_ENTRY_PIXELS, _LETTER_PIXELS = 52, 7
#: Letters of a line above one of two panels.
_TITLE_LETTERS = 50


def interactive_chart(chart: Chart) -> go.Figure:
    """Return `chart` as a Plotly figure, with one legend entry per group of series."""
    plot = _PIXELS_PER_IN * chart.height_in - _BESIDE_PIXELS
    height = plot + _LEGEND_GAP_PIXELS + _legend_pixels(chart)
    several = len(chart.panels) > 1
    figure = make_subplots(
        chart.rows,
        chart.columns,
        vertical_spacing=_GAP_PIXELS / plot if chart.rows > 1 else None,
        subplot_titles=[_title(panel.title) for panel in chart.panels] if several else None,
    )
    title = "" if several else chart.panels[0].title
    figure.update_layout(**page_layout(height, title=title))
    figure.update_layout(legend={"y": -_LEGEND_GAP_PIXELS / plot, "maxheight": 0.5})
    figure.update_annotations(font_size=12)
    named: set[str] = set()
    for place, panel in enumerate(chart.panels):
        where = {"row": place // chart.columns + 1, "col": place % chart.columns + 1}
        traces = [_band_trace(panel.band)] if panel.band else []
        for trace in (*traces, *map(_trace, panel.series)):
            trace.showlegend = bool(trace.name) and trace.name not in named
            named.add(trace.name)
            figure.add_trace(trace, **where)
        figure.update_xaxes(**_axis(panel.x), **where)
        figure.update_yaxes(**_axis(panel.y), **where)
        if not panel.series:
            figure.add_annotation(empty_note(panel.empty))
    if several:
        figure.update_layout(margin_t=40)
    return figure


def _title(words: str) -> str:
    """The words above one of two panels, in lines that end before the other one's."""
    return hover_text(textwrap.wrap(words, _TITLE_LETTERS))


def _legend_pixels(chart: Chart) -> int:
    """The height of the legend, about."""
    groups = {series.group for panel in chart.panels for series in panel.series if series.group}
    needed = sum(_ENTRY_PIXELS + _LETTER_PIXELS * len(group) for group in groups)
    room = _NARROW_LEGEND_PIXELS if chart.is_narrow else _LEGEND_PIXELS
    return _LEGEND_ROW_PIXELS * -(-needed // room)


def _axis(axis: Axis) -> dict[str, object]:
    found = page_axis(axis.label, axis.limits, logarithmic=axis.scale != "linear")
    if axis.ticks is None:
        return found
    names = axis.names or [f"{tick:g}" for tick in axis.ticks]
    ticks = {"tickvals": axis.ticks, "ticktext": [html.escape(name, quote=False) for name in names]}
    return {key: value for key, value in found.items() if key != "dtick"} | ticks


def _trace(series: Series) -> go.Scatter:
    drawn = {"lines": series.line_pt, "markers": series.shape, "text": series.names}
    trace = go.Scatter(
        x=series.xs,
        y=series.ys,
        mode="+".join(part for part, there in drawn.items() if there),
        opacity=series.opacity,
        line={
            "color": series.colour,
            "width": PIXELS_PER_PT * series.line_pt,
            "dash": "dash" if series.dashed else "solid",
        },
        name=html.escape(series.group, quote=False),
        legendgroup=html.escape(series.group, quote=False),
    )
    if series.shape is not None:
        symbol = series.shape.plotly + ("" if series.filled else "-open")
        edge = {"width": PIXELS_PER_PT * series.edge_pt, "color": series.colour}
        # a line is found by hovering at its vertices, however small their markers are
        size = PIXELS_PER_PT * series.size_pt
        size = size if series.line_pt else marker_pixels(series.size_pt)
        trace.marker = {"size": size, "symbol": symbol, "color": series.colour, "line": edge}
    if series.hover:
        trace.hovertext = [hover_text(lines) for lines in series.hover]
        trace.hovertemplate = "%{hovertext}<extra></extra>"
    else:
        trace.hoverinfo = "skip"
    if series.names:
        trace.text = [html.escape(name, quote=False) for name in series.names]
        trace.textposition = "top left" if series.names_end_there else "top center"
        trace.textfont = {"size": 10, "color": "#444444"}
    if any(low is not None for low in series.lows):
        bars = list(zip_longest(series.ys, series.lows, series.highs))
        trace.error_y = {
            "symmetric": False,
            "array": [None if high is None else high - y for y, _, high in bars],
            "arrayminus": [None if low is None else y - low for y, low, _ in bars],
            "color": series.colour,
            "thickness": 1.2,
            "width": 3,
        }
    return trace


def _band_trace(band: Band) -> go.Scatter:
    return go.Scatter(
        x=[*band.xs, *reversed(band.xs)],
        y=[*band.lows, *reversed(band.highs)],
        mode="none",
        fill="toself",
        fillcolor=band.colour,
        opacity=0.25,
        hoverinfo="skip",
        name=html.escape(band.label, quote=False),
        legendgroup=html.escape(band.label, quote=False),
    )
