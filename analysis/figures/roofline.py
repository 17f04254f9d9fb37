"""What all rooflines share: axes that hold roofs and markers, roofs, and what stands under them.

Rates are in GFLOP/s, intensities in FLOP/byte. A line has two points, of which 0 and infinity mean
the edge of the axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from analysis.figures.chart import ENTRY_IN, Axis, Band, Chart, Panel, Series, key, straight
from analysis.words import bytes_rate, flops_rate, three_digits

#: Greys of roofs, one per machine.
ROOF_GREYS = ("#222222", "#5C5C5C", "#808080")


def roof_lines(
    gflops: float,
    gb_per_s: float,
    kind: str,
    names: tuple[str, str],
    end: str,
    group: str,
    colour: str = ROOF_GREYS[0],
) -> tuple[Series, Series]:
    """Return the level line of a roof, from its ridge on, and the slope up to it.

    `names` say in words whose arithmetic and whose memory they are, `end` stands at the level line.
    """
    ridge = gflops / gb_per_s
    rates = flops_rate(1e9 * gflops), bytes_rate(1e9 * gb_per_s)
    at = f"({kind})\nridge at {three_digits(ridge)} FLOP/byte"
    words = [f"{name} {rate} {at}" for name, rate in zip(names, rates, strict=True)]
    look = key(group, colour, line_pt=1.2, dashed=kind == "datasheet")
    level = replace(look, xs=(ridge, math.inf), ys=(gflops, gflops), hover=(words[0],))
    slope = replace(look, xs=(0.0, ridge), ys=(0.0, gflops), hover=(words[1],))
    return replace(level, end_label=(end, rates[0])), replace(slope, slope_label=rates[1])


def legend_of(series: Iterable[Series]) -> list[Series]:
    """Return an entry per group, as a page's legend has it."""
    return [replace(one, size_pt=5.0) for one in {one.group: one for one in series}.values()]


def under_roof(
    gflops: float, marks: Sequence[Series], line: Series | None, hover: str, name: str = ""
) -> Iterator[Series]:
    """Yield the line and the markers of what ran at this rate; the last marker has the name."""
    for part in (*([line] if line else []), *marks):
        count = len(part.xs)
        names = (*[""] * (count - 1), name) if part is marks[-1] else ()
        yield replace(part, ys=(gflops,) * count, hover=(hover,) * count, names=names)


def roofline_chart(
    rate: str,
    roofs: Sequence[Series],
    series: Sequence[Series],
    *,
    held: Iterable[Series] | None = None,
    legend: Iterable[Series],
    shaded: tuple[Series, str] | None = None,
    **look: Any,
) -> Chart:
    """Return the chart of `series` under `roofs`; `rate` says whose FLOP/s they are.

    The axes hold the roofs and the markers of `held`, by default all. Small markers stand above
    large ones, lines below all. What lies above the slope that is `shaded` has the label beside it.
    `look` is of `Panel`: its legend gets the roofs too.
    """
    inside = [*roofs, *(one for one in (series if held is None else held) if one.shape)]
    xs = [x for one in inside for x in one.xs if 0 < x < math.inf]
    ys = [y for one in inside for y in one.ys if y]
    left, right = min(xs, default=1.0) / 6, max(xs, default=100.0) * 3
    bottom, top = min(ys, default=1.0), max(ys, default=100.0)
    right, bottom, top = max(right, 10 * left), min(bottom / 3, top / 10), top * 1.8
    unit, name = (1e3, "TFLOP/s") if top >= 18_000 else (1.0, "GFLOP/s")

    def drawn(one: Series) -> Series:
        ys = tuple(y / unit for y in one.ys)
        if one.shape:
            return replace(one, ys=ys)
        (start, end), (low, high) = one.xs, ys
        if not start:  # where the slope is first seen
            start = max(left, bottom / unit / high * end)
            low = start / end * high
        line = replace(one, xs=(start, right if end == math.inf else end), ys=(low, high))
        return straight(line, log=True)

    below = sorted(series, key=lambda one: -one.size_pt if one.shape else -math.inf)
    bands = []
    if shaded is not None:
        (_, ridge), peak = shaded[0].xs, shaded[0].ys[-1] / unit
        lows = (left / ridge * peak, peak)
        bands = [Band((left, ridge), lows, (peak, peak), "#CFBB83", shaded[1])]
    entries = (*legend, *sorted(legend_of(roofs), key=lambda one: one.group))
    panel = Panel(
        x=Axis(label="Arithmetic intensity (FLOP/byte)", limits=(left, right), scale="log"),
        y=Axis(label=f"{rate} {name}", limits=(bottom / unit, top / unit), scale="log"),
        series=tuple(map(drawn, [*roofs, *below])),
        bands=tuple(bands),
        legend=entries,
        legend_entry_in=max([ENTRY_IN, *(0.07 * len(one.group) for one in entries)]),
        names_on_page=False,  # hovering has them
        **look,
    )
    return Chart((panel,), 6.5, 4.5)
