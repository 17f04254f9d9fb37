"""Names beside their markers, placed when the figure is drawn so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

#: Directions tried around a marker, in degrees: beside it first.
_ANGLES = (0, 180, 35, 145, -35, -145, 90, -90, 65, 115, -65, -115)


class Spot(NamedTuple):
    """A marker in data coordinates, its radius on paper, and its name if it gets one."""

    x: float
    y: float
    radius_pt: float
    name: str = ""


class Names(Artist):
    """Writes the names of `spots`, the first one first; a name without room is left out.

    A name covers no other name, no marker, no line and no text that the axes hold among the data.
    `placed` holds name and box, in pixels, of what was written.
    """

    def __init__(self, axes: Axes, spots: Sequence[Spot]) -> None:
        super().__init__()
        self._spots = spots
        self.placed: list[tuple[str, Bbox]] = []
        self.set_zorder(6)
        self.set_in_layout(False)
        axes.add_artist(self)

    def draw(self, renderer: RendererBase) -> None:
        """Place and draw; where depends on the size that the layout gave the axes."""
        axes, pixels_per_pt = self.axes, cast("float", renderer.points_to_pixels(1.0))
        assert axes is not None  # drawn on them  # noqa: S101
        data, page = axes.transData, axes.get_window_extent(renderer)
        markers = []
        for spot in self._spots:
            (x, y), radius = data.transform((spot.x, spot.y)), pixels_per_pt * spot.radius_pt
            markers.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
        among_data = [
            text for text in axes.texts if text.get_text() and text.get_transform() == data
        ]
        taken = [*markers, *(text.get_window_extent(renderer) for text in among_data)]
        lines = [
            data.transform_path(line.get_path())
            for line in axes.lines
            if line.get_linestyle() != "None" and line.get_transform() == data
        ]
        self.placed = []
        for spot, marker in zip(self._spots, markers, strict=True):
            if not spot.name or not page.contains((marker.x0 + marker.x1) / 2, marker.y0):
                continue
            look = {"ha": "left", "va": "bottom", "color": "#222222", "parse_math": False}
            text = Text(0, 0, spot.name, fontsize=6, transform=IdentityTransform(), **look)  # type: ignore[arg-type]
            # Grid and roofs may run under a name: white around the letters keeps it readable.
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
            text.set_figure(axes.figure)
            covered = [box for box in taken if box is not marker]
            for box in _boxes(marker, text.get_window_extent(renderer), 3 * pixels_per_pt):
                inside = page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1)
                crossed = any(line.intersects_bbox(box, filled=False) for line in lines)
                if inside and not crossed and not box.count_overlaps(covered):
                    taken.append(box)
                    self.placed.append((spot.name, box))
                    text.set_position((box.x0, box.y0))
                    text.draw(renderer)
                    break


def _boxes(marker: Bbox, size: Bbox, distance: float) -> Iterator[Bbox]:
    """Where a text of that size may stand around the marker, this far from its edge."""
    x, y = (marker.x0 + marker.x1) / 2, (marker.y0 + marker.y1) / 2
    reach = (marker.x1 - marker.x0) / 2 + distance
    for angle in _ANGLES:
        across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        left = x + reach * across + size.width * (across - 1) / 2
        bottom = y + reach * up + size.height * (up - 1) / 2
        yield Bbox.from_bounds(left, bottom, size.width, size.height)
