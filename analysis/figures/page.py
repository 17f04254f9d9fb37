"""What every interactive figure shares: its axes, its words, and its markup in a page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go

PIXELS_PER_PT = 96 / 72
#: Smaller markers are hard to hit with a pointer.
_MIN_PIXELS = 7.0
#: Between an axis's ticks and its title.
_STANDOFF_PIXELS = 10
#: Axes that span less than this factor have ticks at 2 and 5 too, and less than that at each digit.
_FEW_DECADES, _PART_OF_A_DECADE = 300, 6


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


def hover_text(lines: Iterable[str]) -> str:
    """Return the lines of a hover text; records are escaped, since Plotly reads tags."""
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def marker_pixels(size_pt: float) -> float:
    """Return a marker's diameter on a page from that on paper."""
    return max(_MIN_PIXELS, PIXELS_PER_PT * size_pt)


def page_axis(title: str, limits: Sequence[float], *, logarithmic: bool) -> dict[str, object]:
    """Return an axis as the figures on paper have it: a light grid, no exponents."""
    low, high = limits
    look = {
        "title": {
            "text": html.escape(title, quote=False),
            "standoff": _STANDOFF_PIXELS,
            "font": {"size": 13},
        },
        "automargin": True,
        "gridcolor": "#E6E6E6",
        "linecolor": "#333333",
    }
    if not logarithmic:
        return {**look, "range": [low, high], "zeroline": False}
    span = high / low
    digits = "D1" if span < _PART_OF_A_DECADE else "D2"
    return {
        **look,
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "dtick": digits if span < _FEW_DECADES else 1,
        "tickformat": ",.10~g",
    }


def page_layout(height_pixels: float, *, title: str = "") -> dict[str, object]:
    """Return the layout that all share: white, with the legend below the axes."""
    return {
        "template": "none",  # Plotly's own adds 7 kB to each figure
        "title": {"text": html.escape(title, quote=False), "font": {"size": 12}, "x": 0.05},
        "plot_bgcolor": "white",
        "paper_bgcolor": "white",
        "font": {"color": "#222222"},
        "height": height_pixels,
        "margin": {"l": 70, "r": 20, "t": 40 if title else 20, "b": 50},
        "legend": {
            "orientation": "h",
            "y": -0.16,
            "yanchor": "top",
            "maxheight": 0.25,
            "itemsizing": "constant",
        },
        "hoverlabel": {"align": "left", "bgcolor": "white"},
    }


def empty_note(words: str) -> dict[str, object]:
    """Return the words that stand where the data would be."""
    centre = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return {**centre, "text": html.escape(words, quote=False), "showarrow": False}
