"""Names beside their markers, placed when the figure is drawn so that none covers another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform, Transform

#: Directions tried around a marker, in degrees: beside it first.
_ANGLES = (0, 180, 35, 145, -35, -145, 90, -90, 65, 115, -65, -115)
#: Distances from a marker's edge, in points; from the second on a thin line leads to it.
_DISTANCES_PT = (3.0, 10.0, 18.0, 27.0)
#: A name that a line runs under, or that stands nearer to another marker, is read worse than one
#: so many points further away.
_CROSSED_PT = 25.0
_STRAYED_PT = 20.0


@dataclass(frozen=True)
class Spot:
    """A marker in data coordinates, its radius on paper, and its name if it gets one."""

    x: float
    y: float
    radius_pt: float
    name: str = ""
    colour: str = "#222222"


class Names(Artist):
    """Writes the names of `spots`, the first one first; a name without room is left out.

    Neither another name nor a marker, nor a text that the axes already hold, is covered, and of
    their lines as few as there is room for. `placed` holds name and box, in pixels, of what was
    written.
    """

    def __init__(self, axes: Axes, spots: Sequence[Spot], font_pt: float) -> None:
        super().__init__()
        self._spots = spots
        self._font_pt = font_pt
        # texts among the data: no tick, label or title
        self._texts = [
            text
            for text in axes.findobj(Text)
            if text.get_transform().contains_branch(axes.transData)
        ]
        self.placed: list[tuple[str, Bbox]] = []
        self.set_zorder(6)
        self.set_in_layout(False)
        axes.add_artist(self)

    def draw(self, renderer: RendererBase) -> None:
        """Place and draw; where depends on the size that the layout gave the axes."""
        axes = self.axes
        if axes is None or not self.get_visible():
            return
        page = axes.get_window_extent(renderer)
        markers = [_marker_box(axes.transData, spot, renderer) for spot in self._spots]
        lines = [
            line.get_transform().transform_path(line.get_path())
            for line in axes.lines
            if line.get_transform() == axes.transData
        ]
        taken = [text.get_window_extent(renderer) for text in self._texts if text.get_text()]
        self.placed = []
        for spot, marker in zip(self._spots, markers, strict=True):
            if not spot.name or not page.contains(*_centre(marker)):
                continue
            text = self._text(spot)
            size = text.get_window_extent(renderer)
            others = [other for other in markers if other is not marker]
            fitting = [
                (distance_pt + _doubt_pt(box, marker, others, lines), index, box)
                for index, (distance_pt, box) in enumerate(_boxes(marker, size, renderer))
                if _fits(box, page, [*taken, *others])
            ]
            if fitting:
                _, index, box = min(fitting, key=lambda place: place[:2])
                taken.append(box)
                self.placed.append((spot.name, box))
                if index >= len(_ANGLES):
                    self._lead(marker, box, renderer)
                text.set_position((box.x0, box.y0))
                text.draw(renderer)

    def _text(self, spot: Spot) -> Text:
        text = Text(
            0,
            0,
            spot.name,
            fontsize=self._font_pt,
            color=spot.colour,
            parse_math=False,
            ha="left",
            va="bottom",
            transform=IdentityTransform(),
        )
        # Grid and roofs may run under a name: white around the letters keeps it readable.
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        self._adopt(text)
        return text

    def _lead(self, marker: Bbox, box: Bbox, renderer: RendererBase) -> None:
        """Draw a thin line from the marker to the nearest point of its name's box."""
        x, y = _centre(marker)
        near = min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)
        leader = Line2D([x, near[0]], [y, near[1]], color="#777777", linewidth=0.5)
        self._adopt(leader)
        leader.draw(renderer)

    def _adopt(self, artist: Artist) -> None:
        figure = self.get_figure(root=False)
        assert figure is not None  # the axes that this was added to have one  # noqa: S101
        artist.set_figure(figure)


def _marker_box(to_pixels: Transform, spot: Spot, renderer: RendererBase) -> Bbox:
    x, y = to_pixels.transform((spot.x, spot.y))
    radius = renderer.points_to_pixels(spot.radius_pt)
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _boxes(marker: Bbox, size: Bbox, renderer: RendererBase) -> Iterator[tuple[float, Bbox]]:
    """Boxes around the marker, nearest first, each with its distance in points."""
    x, y = _centre(marker)
    width, height = float(size.x1 - size.x0), float(size.y1 - size.y0)
    for distance_pt, angle in itertools.product(_DISTANCES_PT, _ANGLES):
        pixels: Any = renderer.points_to_pixels(distance_pt)
        reach = float(marker.x1 - marker.x0) / 2 + float(pixels)
        across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        left = x + reach * across + width * (across - 1) / 2
        bottom = y + reach * up + height * (up - 1) / 2
        yield distance_pt, Bbox.from_extents(left, bottom, left + width, bottom + height)


def _fits(box: Bbox, page: Bbox, taken: Sequence[Bbox]) -> bool:
    inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
    return inside and not any(box.overlaps(other) for other in taken)


def _doubt_pt(box: Bbox, marker: Bbox, others: Sequence[Bbox], lines: Sequence[Path]) -> float:
    """What makes it hard to say whose name stands in the box, as a distance."""
    crossed = sum(bool(line.intersects_bbox(box, filled=False)) for line in lines)
    own = _gap(box, marker)
    strayed = any(_gap(box, other) < own for other in others)
    return _CROSSED_PT * crossed + _STRAYED_PT * strayed


def _gap(one: Bbox, other: Bbox) -> float:
    """Between the two boxes' nearest edges, 0 where they touch."""
    across = max(one.x0 - other.x1, other.x0 - one.x1, 0.0)
    up = max(one.y0 - other.y1, other.y0 - one.y1, 0.0)
    return math.hypot(across, up)


def _centre(box: Bbox) -> tuple[float, float]:
    return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
