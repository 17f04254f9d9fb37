"""Rooflines: axes that hold roofs and markers, roofs, what stands under them; that of runs.

Rates are in GFLOP/s, intensities in FLOP/byte. A line has two points, of which 0 and infinity mean
the edge of the axes. Roofs are grey, solid if measured and dashed if from a datasheet.

Of a run the colour is the model, the marker the math mode, its size the batch size. Without
counters it is a horizontal interval of intensity with an open marker at each end; a counted run is
one filled marker. The line of an imported run is dashed: its FLOP are modelled too. Where there are
several machines, their short names stand at their roofs and their runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.chart import (
    KEY_GREY,
    OTHER_MODELS,
    SHAPES,
    Axis,
    Chart,
    Marks,
    Panel,
    hover,
    model_colours,
)
from analysis.figures.interactive import interactive_chart
from analysis.figures.static import draw_chart, draw_panel
from analysis.presentation.columns import C, Row
from analysis.presentation.table import grouped
from analysis.presentation.words import bytes_rate, flops_rate, three_digits
from analysis.profiles import shortened
from analysis.runs.run import MODELLED, Run
from bench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

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
) -> tuple[Marks, Marks]:
    """Return the level line of a roof, from its ridge on, and the slope up to it.

    `names` say in words whose arithmetic and whose memory they are, `end` stands at the level line.
    """
    ridge = gflops / gb_per_s
    rates = flops_rate(1e9 * gflops), bytes_rate(1e9 * gb_per_s)
    at = f"({kind})\nridge at {three_digits(ridge)} FLOP/byte"
    words = [f"{name} {rate} {at}" for name, rate in zip(names, rates, strict=True)]
    look = Marks(group, colour, line_pt=1.2, dashed=kind == "datasheet")
    level = replace(look, xs=(ridge, math.inf), ys=(gflops, gflops), hover=(words[0],) * 2)
    slope = replace(look, xs=(0.0, ridge), ys=(0.0, gflops), hover=(words[1],) * 2)
    return replace(level, end_label=(end, rates[0])), replace(slope, slope_label=rates[1])


def legend_of(series: Iterable[Marks]) -> list[Marks]:
    """Return an entry per group, as a page's legend has it."""
    return [replace(one, size_pt=5.0) for one in {one.group: one for one in series}.values()]


def under_roof(
    gflops: float, marks: Sequence[Marks], line: Marks | None, hover: str, name: str = ""
) -> Iterator[Marks]:
    """Yield the line and the markers of what ran at this rate; the last marker has the name."""
    if line:
        yield replace(line, ys=(gflops, gflops))
    for mark in marks:
        count = len(mark.xs)
        names = (*[""] * (count - 1), name) if mark is marks[-1] else ()
        yield replace(mark, ys=(gflops,) * count, hover=(hover,) * count, names=names)


def roofline_chart(
    rate: str,
    roofs: Sequence[Marks],
    series: Sequence[Marks],
    *,
    held: Iterable[Marks] | None = None,
    legend: Iterable[Marks],
    **look: Any,
) -> Chart:
    """Return the chart of `series` under `roofs`; `rate` says whose FLOP/s they are.

    The axes hold the roofs and the markers of `held`, by default all. Small markers stand above
    large ones, lines below all. `look` is of `Panel`: its legend gets the roofs too.
    """
    inside = [*roofs, *(one for one in (series if held is None else held) if one.shape)]
    xs = [x for one in inside for x in one.xs if 0 < x < math.inf]
    ys = [y for one in inside for y in one.ys if y]
    left, right = min(xs, default=1.0) / 6, max(xs, default=100.0) * 3
    bottom, top = min(ys, default=1.0), max(ys, default=100.0)
    right, bottom, top = max(right, 10 * left), min(bottom / 3, top / 10), top * 1.8
    unit, name = (1e3, "TFLOP/s") if top >= 18_000 else (1.0, "GFLOP/s")

    def drawn(one: Marks) -> Marks:
        ys = tuple(y / unit for y in one.ys)
        if one.shape:
            return replace(one, ys=ys)
        (start, end), (low, high) = one.xs, ys
        if not start:  # where the slope is first seen
            start = max(left, bottom / unit / high * end)
            low = start / end * high
        return replace(one, xs=(start, right if end == math.inf else end), ys=(low, high))

    below = sorted(series, key=lambda one: -one.size_pt if one.shape else -math.inf)
    panel = Panel(
        x=Axis(label="Arithmetic intensity (FLOP/byte)", limits=(left, right), scale="log"),
        y=Axis(label=f"{rate} {name}", limits=(bottom / unit, top / unit), scale="log"),
        series=tuple(map(drawn, [*roofs, *below])),
        legend=(*legend, *sorted(legend_of(roofs), key=lambda one: one.group)),
        names_on_page=False,  # hovering has them
        **look,
    )
    return Chart((panel,), 6.5, 4.5)


# Of runs

#: What a table must have for its rows to be drawn, of the columns of `pull_points`.
_COLUMNS = (
    *("env", "device", "arch", "precision_ran", "math_mode_ran", "batch_size", "run_id"),
    *("bound", "bound_sure", "imported", "intensity_min", "intensity_max", "intensity_counted"),
    *("attained_gflops", "peak_gflops", "peak_gb_per_s", "ceiling_kind", "ceiling_source"),
    *("fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak"),
)
#: What hovering shows of a run: every number that its row has.
_SHOWN = (C.run, C.work, C.source_file, C.attained_gflops, C.intensity_counted, C.intensity,
          C.traffic_amplification, C.executed_per_algorithmic_flop, C.not_counted_because,
          C.attainable_gflops, C.fraction_of_roof, C.fraction_of_peak, C.step_ms, C.arithmetic_ms,
          C.traffic_ms, C.data_wait_share, C.bound, C.bound_because)  # fmt: skip
#: What it shows where runs are so many that their words would be most of a page.
_SHOWN_OF_MANY, _MANY = (C.run, C.attained_gflops, C.intensity, C.fraction_of_roof, C.bound), 1000
#: More runs than this are drawn thinner and half transparent, so that a crowd shows its density.
_CROWD = 40
#: Batch sizes that the legend names, spread over those that are there.
_NAMED_SIZES = 4


def plot_roofline(
    points: pd.DataFrame | Sequence[Run], *, interactive: bool = False
) -> Figure | go.Figure:
    """Draw runs under the roofs of their machines, and return the figure, which a notebook shows.

    `points` is a table of `pull_points()`, or rows chosen from one, also read again from a file; or
    placed runs, such as `pull_records().runs()`. Runs without a place are left out. Colour is the
    model, the marker the arithmetic, its size the batch size; without counters a run is an interval
    of intensity. The figure is Matplotlib's, `interactive` makes it Plotly's, where hovering shows
    the numbers of a run. Raises `UserError` for a table that lacks a column.

    To draw on axes of your own, use `draw_roofline`.
    """
    chart = run_chart(points)
    return interactive_chart(chart) if interactive else draw_chart(chart)


def draw_roofline(axes: Axes, points: pd.DataFrame | Sequence[Run]) -> None:
    """Draw `points`, as in `plot_roofline`, on `axes`."""
    draw_panel(axes, run_chart(points).panels[0])


def run_chart(
    points: pd.DataFrame | Sequence[Run], *, colours: Mapping[str, str] | None = None
) -> Chart:
    """Return the roofline of `points`, which are as in `plot_roofline`.

    `colours` maps models to colours, to keep them the same in several figures.
    """
    if isinstance(points, Sequence):
        rows = [run.row for run in points if run.point]
    else:
        rows = _rows_of(points)
    machines = list(dict.fromkeys(row["env"] for row in rows))
    numbers = {name: f"M{number}" for number, name in enumerate(machines, 1)}
    short = numbers if len(machines) > 1 else dict.fromkeys(machines, "")
    palette = colours or model_colours(row["arch"] for row in rows)
    series = [mark for row in rows for mark in _series(row, palette, short, len(rows))]
    return roofline_chart(
        "Attained",
        list(_roof_series(rows, short)),
        series,
        empty="" if rows else "no run has a place here",
        legend=_legend(rows, palette),
    )


def _rows_of(table: pd.DataFrame) -> list[Row]:
    """The rows that have a place; raises `UserError` for what cannot be drawn."""
    if missing := [name for name in _COLUMNS if name not in table]:
        raise UserError(
            f"points: the table has no column {missing[0]}; give one of pull_points(), or "
            "placed runs, such as pull_records().runs()"
        )
    placed = table[table["peak_gflops"].notna() & table["attained_gflops"].notna()].astype(object)
    known = placed.where(placed.notna(), None).fillna({"env": "unknown", "device": "unknown"})
    known = known.assign(run=known["run_id"], work=known["imported"].map({True: MODELLED}))
    rows: list[Row] = known.to_dict("records")
    if unknown := {row["math_mode_ran"] for row in rows} - SHAPES.keys():
        raise UserError(
            f"points: math_mode_ran={unknown.pop()!r}: a marker has one of {', '.join(SHAPES)}"
        )
    return rows


def _size_pt(batch_size: float) -> float:
    """The diameter of a marker: each doubling of the batch adds the same."""
    return 2.2 + 0.6 * math.log2(batch_size)


def _series(
    row: Row, palette: Mapping[str, str], short: Mapping[str, str], drawn: int
) -> Iterator[Marks]:
    """A marker of counted bytes, or one at each end of an interval with a line between them.

    So many runs are `drawn`.
    """
    mode, machine, crowded = row["math_mode_ran"], short[row["env"]], drawn > _CROWD
    title = f"{row['env']} {row['arch']} {row['precision_ran']} ({mode}) batch {row['batch_size']}"
    roof = f"roof: {row['device']}, {row['ceiling_kind']}, {row['ceiling_source']}"
    words = hover(title, row, _SHOWN if drawn <= _MANY else _SHOWN_OF_MANY)
    words = "\n".join([words, *([roof] if drawn <= _MANY else []), *row.get("under_the_roof", ())])
    counted, ends = row["intensity_counted"], (row["intensity_min"], row["intensity_max"])
    scale = 0.6 if crowded else 1.0
    imported = ["imported"] if row["imported"] else []
    mark = Marks(
        " ".join(filter(None, [machine, row["arch"], mode, *imported])),
        palette.get(row["arch"], OTHER_MODELS),
        SHAPES[mode],
        xs=ends if counted is None else (counted,),
        size_pt=scale * _size_pt(row["batch_size"]),
        edge_pt=scale,
        filled=counted is not None,
        opacity=0.55 if crowded else 1.0,
    )
    line = replace(mark, xs=ends, shape="", line_pt=1.6 * scale, dashed=bool(row["imported"]))
    between, name = line if counted is None else None, "" if crowded else machine
    return under_roof(row["attained_gflops"], [mark], between, words, name)


def _roof_series(rows: Iterable[Row], short: Mapping[str, str]) -> Iterator[Marks]:
    """A level line per roof, and a slope per machine, bandwidth and kind, up to the highest."""
    names = ("env", "peak_gb_per_s", "ceiling_kind", "peak_gflops")
    roofs = grouped(rows, lambda row: tuple(row[name] for name in names))
    greys = dict(zip(short, cycle(ROOF_GREYS), strict=False))
    by_height = sorted(roofs, key=itemgetter(3))
    highest = {roof[:3]: roof for roof in by_height}
    for roof in by_height:
        machine, gb_per_s, kind, gflops = roof
        mode = "/".join(dict.fromkeys(row["math_mode_ran"] for row in roofs[roof]))
        sheet, of = ", datasheet" if kind == "datasheet" else "", short[machine]
        level, slope = roof_lines(
            gflops,
            gb_per_s,
            kind,
            names=(f"{machine} {mode}", machine),
            end=f"{of} {mode}".lstrip(),
            group=f"{of}: {shortened(machine, 28)}{sheet}" if of else f"{kind} roof",
            colour=greys[machine],
        )
        yield level
        if roof in highest.values():
            yield slope


def _legend(rows: Sequence[Row], palette: Mapping[str, str]) -> Iterator[Marks]:
    archs, modes = {row["arch"] for row in rows}, {row["math_mode_ran"] for row in rows}
    yield from (Marks(arch, palette[arch], line_pt=2.5) for arch in palette if arch in archs)
    for mode in (mode for mode in SHAPES if mode in modes):
        yield Marks(mode, KEY_GREY, SHAPES[mode], filled=False)
    sizes = sorted({row["batch_size"] for row in rows})
    step = max(1.0, (len(sizes) - 1) / (_NAMED_SIZES - 1))
    for size in (sizes[round(index * step)] for index in range(min(len(sizes), _NAMED_SIZES))):
        yield Marks(f"batch {size}", KEY_GREY, "circle", filled=False, size_pt=_size_pt(size))
    counted = {row["intensity_counted"] is not None for row in rows if not row["imported"]}
    if True in counted:
        yield Marks("bytes counted", KEY_GREY, "circle")
    if counted == {True, False}:
        yield Marks("bytes modelled", KEY_GREY, "circle", filled=False, line_pt=1.6)
    if any(row["imported"] for row in rows):
        yield Marks(
            "imported, modelled", KEY_GREY, "circle", filled=False, line_pt=1.2, dashed=True
        )
