"""Roof lines and the names they carry, kept apart where roofs lie close together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.text import Text

from analysis.figures.roofs import FlatRoof, Roofs, SlopedRoof
from analysis.figures.style import ROOF_GREYS, ROOF_LINES

#: Slopes nearer than this factor would write their labels over each other.
_NEAR_SLOPES = 1.6


@dataclass(frozen=True)
class Scale:
    """The limits of a roofline's axes, the unit its rates are drawn in, and its size on paper."""

    intensity: tuple[float, float]
    flops_per_s: tuple[float, float]
    unit_flops_per_s: float
    font_pt: float
    height_in: float
    narrow: bool  # labels in two lines


class _AlongSlope(Text):
    """A text that keeps the angle of a line of slope 1 in log-log, whatever the axes' shape."""

    def get_rotation(self) -> float:
        """Return degrees on the page, from the axes as they are when the text is drawn."""
        if self.axes is None:
            return 0.0
        x, y = self.get_position()
        (x0, y0), (x1, y1) = self.axes.transData.transform([(x, y), (2 * x, 2 * y)])
        return math.degrees(math.atan2(y1 - y0, x1 - x0))


def draw_roofs(axes: Axes, roofs: Roofs, scale: Scale) -> None:
    """Draw every roof with its label; a machine's short name is added where there are several."""
    heights = [_share(roof.flops_per_s, scale.flops_per_s) for roof in roofs.flat]
    label_heights = spread(heights, _label_share(scale))
    for roof, height, label_height in zip(roofs.flat, heights, label_heights, strict=True):
        grey = grey_of(roofs, roof.machine)
        _flat_line(axes, roof, scale, grey)
        whose = f"{roofs.short_names.get(roof.machine, '')} {'/'.join(roof.modes)}".lstrip()
        _flat_label(axes, (whose, roof.rate), scale, (height, label_height), grey)
    bandwidth, along = 0.0, 0.0
    rates = [*(slope.bytes_per_s for slope in roofs.sloped), math.inf]
    for slope, next_above in zip(roofs.sloped, rates[1:], strict=True):
        grey = slope.colour or grey_of(roofs, slope.machine)
        along = along + 0.25 if slope.bytes_per_s < _NEAR_SLOPES * bandwidth else 0.1
        bandwidth = slope.bytes_per_s
        _sloped_line(axes, slope, scale, grey)
        if slope.colour is not None:  # the legend tells it by its colour
            continue
        # Between two near lines there is no room: below its own, a label crosses none.
        _sloped_label(axes, slope, scale, along, next_above < _NEAR_SLOPES * bandwidth, grey)


def _label_share(scale: Scale) -> float:
    """A label's height as a share of the axes', which take less of a small page."""
    lines, axes_share = (2, 0.6) if scale.narrow else (1, 0.75)
    return 1.3 * lines * scale.font_pt / 72 / (axes_share * scale.height_in)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights apart by at least `gap`, as little as that takes, ending below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    limit = 1.0
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


def grey_of(roofs: Roofs, machine: str) -> str:
    """Return the grey that `machine`'s roofs are drawn in."""
    return ROOF_GREYS[roofs.machines.index(machine) % len(ROOF_GREYS)]


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = (math.log(limit) for limit in limits)
    return (math.log(value) - low) / (high - low)


def _flat_line(axes: Axes, roof: FlatRoof, scale: Scale, grey: str) -> None:
    ridge = roof.flops_per_s / roof.bytes_per_s
    height = roof.flops_per_s / scale.unit_flops_per_s
    axes.plot([ridge, scale.intensity[1]], [height, height], color=grey, linewidth=1.2,
              linestyle=ROOF_LINES[roof.kind], zorder=2)  # fmt: skip


def _flat_label(
    axes: Axes, words: tuple[str, str], scale: Scale, heights: tuple[float, float], grey: str
) -> None:
    """Right of the axes, where no data can be, led to by a thin line."""
    axes.plot([1.0, 1.02], heights, color=grey, linewidth=0.7, transform=axes.transAxes,
              clip_on=False, zorder=2)  # fmt: skip
    text = ("\n" if scale.narrow else " ").join(words)
    axes.text(1.025, heights[1], text, transform=axes.transAxes, ha="left", va="center",
              fontsize=scale.font_pt, color=grey, parse_math=False)  # fmt: skip


def _sloped_line(axes: Axes, roof: SlopedRoof, scale: Scale, grey: str) -> None:
    start, ridge = _visible_start(roof, scale), roof.flops_per_s / roof.bytes_per_s
    rates = [x * roof.bytes_per_s / scale.unit_flops_per_s for x in (start, ridge)]
    axes.plot([start, ridge], rates, color=grey, linewidth=1.2,
              linestyle=ROOF_LINES[roof.kind], zorder=2)  # fmt: skip


def _visible_start(roof: SlopedRoof, scale: Scale) -> float:
    return max(scale.intensity[0], scale.flops_per_s[0] / roof.bytes_per_s)


def _sloped_label(
    axes: Axes, roof: SlopedRoof, scale: Scale, along: float, below: bool, grey: str
) -> None:
    """Beside the line, `along` counted from its visible start to its ridge."""
    start, ridge = _visible_start(roof, scale), roof.flops_per_s / roof.bytes_per_s
    x = start * (ridge / start) ** along
    y = x * roof.bytes_per_s / scale.unit_flops_per_s
    label = _AlongSlope(x, y * (1 / 1.05 if below else 1.05), roof.rate, color=grey,
                        fontsize=scale.font_pt, ha="left", va="top" if below else "bottom",
                        rotation_mode="anchor", parse_math=False)  # fmt: skip
    label.set_transform(axes.transData)
    axes.add_artist(label)
