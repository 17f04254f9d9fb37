"""Charts with a row per machine, model or configuration: speeds, variability, real data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from analysis.figures.charts.chart import Axis, Chart, Panel, Series
from analysis.figures.charts.measured_words import group_hover
from analysis.figures.style import (
    MARKERS,
    OTHER_MODELS,
    LegendEntry,
    Marker,
    model_colours,
    precision_marker,
)
from analysis.findings.differences import Scatter
from analysis.runs.groups import Group, fastest
from analysis.runs.quantities import counted, percent
from bench.config import common_sample, rate_unit

#: Rows that a page holds.
MAX_ROWS = 45
#: Room for a legend entry.
ENTRY_IN = 1.6
_WIDTH_IN = 6.5
_SIZE_PT = 4.5
_CIRCLE, _BAR = MARKERS["fp32"], Marker("|", "line-ns")
_GREY, _POOLED = "#555555", "#0072B2"
_DATA = ("images from disk", "synthetic")


def row_chart(
    names: Sequence[str],
    hidden: int,
    series: Sequence[Series],
    x: Axis,
    legend: Sequence[LegendEntry],
    legend_entry_in: float = 1.15,
) -> Chart:
    """Return a chart with a row per name, from the top; `hidden` rows more have no room."""
    panel = Panel(
        x=x,
        y=Axis(
            label="",
            limits=(max(len(names), 1) - 0.3, -0.9),
            ticks=tuple(range(len(names))),
            names=tuple(names),
        ),
        series=tuple(series),
        empty="no run has this",
        title=f"and {hidden} more rows in the tables" if hidden else "",
        legend=tuple(legend) if names else (),
        legend_entry_in=legend_entry_in,
    )
    return Chart((panel,), _WIDTH_IN, 1.3 + 0.19 * max(2, len(names)))


def models_chart(groups: Sequence[Group], *, colours: Mapping[str, str] | None = None) -> Chart:
    """Return each machine's and model's fastest batch: samples/s, a marker per precision.

    Beside each marker stands its batch size.
    """
    best = fastest(groups)
    palette = colours or model_colours(group.arch for group in best.values())
    places = list(dict.fromkeys((env, model) for env, model, _ in sorted(best)))
    rows = {place: row for row, place in enumerate(places[:MAX_ROWS])}
    looks: dict[tuple[str, str], list[tuple[int, Group]]] = {}
    for (env, model, precision), group in best.items():
        if (env, model) in rows:
            looks.setdefault((group.arch, precision), []).append((rows[env, model], group))
    series = tuple(
        Series(
            xs=tuple(group.samples_per_s for _, group in found),
            ys=tuple(row for row, _ in found),
            colour=palette.get(arch, OTHER_MODELS),
            shape=precision_marker(precision),
            size_pt=_SIZE_PT,
            names=tuple(f"{group.batch_size}" for _, group in found),
            hover=tuple(group_hover(group) for _, group in found),
            group=f"{arch} {precision}",
        )
        for (arch, precision), found in looks.items()
    )
    precisions = sorted({precision for _, _, precision in best})
    legend = tuple(
        LegendEntry(name, _GREY, precision_marker(name), size_pt=_SIZE_PT) for name in precisions
    )
    names = [f"{env}  {model}" for env, model in rows]
    return row_chart(names, len(places) - len(rows), series, _rate_axis(best.values()), legend)


def variability_chart(scatters: Sequence[Scatter]) -> Chart:
    """Return the deviation between repeats: a dot per configuration, a bar pooled by machine."""
    dots, bars, values = [], [], []
    for row, scatter in enumerate(scatters):
        shares = [100 * (group.repeats().relative_deviation or 0.0) for group in scatter.groups]
        dots.append(
            Series(
                xs=tuple(shares),
                ys=(row,) * len(shares),
                colour=_GREY,
                shape=_CIRCLE,
                size_pt=3.5,
                opacity=0.5,
                hover=tuple(
                    group_hover(group, f"SD between repeats {percent(share / 100)}")
                    for share, group in zip(shares, scatter.groups, strict=True)
                ),
                group="one configuration",
            )
        )
        words = (
            f"SD between repeats {percent(scatter.deviation)}, pooled over "
            f"{counted(len(scatter.groups), 'configuration')} "
            f"({scatter.degrees} degrees of freedom)"
        )
        bars.append(
            Series(
                xs=(100 * scatter.deviation,),
                ys=(row,),
                colour=_POOLED,
                shape=_BAR,
                size_pt=13.0,
                edge_pt=2.2,
                hover=((scatter.label, words),),
                group="pooled",
            )
        )
        values += [share for share in shares if share > 0]
    legend = (
        LegendEntry("one configuration", _GREY, _CIRCLE, size_pt=3.5),
        LegendEntry("pooled", _POOLED, _BAR, size_pt=10, edge_pt=2.2),
    )
    names = [scatter.label for scatter in scatters]
    axis = _log_axis("SD between repeats (%)", values)
    return row_chart(names, 0, (*dots, *bars), axis, legend, ENTRY_IN)


def real_synthetic_chart(
    pairs: Sequence[tuple[Group, Group]], *, colours: Mapping[str, str] | None = None
) -> Chart:
    """Return pairs (real, synthetic) of one configuration: filled and open, joined by a line."""
    palette = colours or model_colours(real.arch for real, _ in pairs)
    series: list[Series] = []
    for row, pair in enumerate(pairs[:MAX_ROWS]):
        colour = palette.get(pair[0].arch, OTHER_MODELS)
        rates = tuple(group.samples_per_s for group in pair)
        series.append(Series(xs=rates, ys=(row, row), colour=colour, line_pt=1.2))
        series += [
            Series(
                xs=(rate,),
                ys=(row,),
                colour=colour,
                shape=_CIRCLE,
                size_pt=_SIZE_PT,
                filled=name == "images from disk",
                hover=(group_hover(group, name),),
                group=name,
            )
            for name, rate, group in zip(_DATA, rates, pair, strict=True)
        ]
    legend = tuple(
        LegendEntry(name, _GREY, _CIRCLE, face, _SIZE_PT)
        for name, face in zip(_DATA, (None, "white"), strict=True)
    )
    axis = _rate_axis([group for pair in pairs for group in pair])
    names = [real.label for real, _ in pairs[:MAX_ROWS]]
    return row_chart(names, len(pairs) - len(names), series, axis, legend, ENTRY_IN)


def _rate_axis(groups: Collection[Group]) -> Axis:
    unit = rate_unit(common_sample(group.sample for group in groups))
    return _log_axis(unit.capitalize(), [group.samples_per_s for group in groups])


def _log_axis(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values, default=1.0), max(values, default=10.0)
    return Axis(label=label, limits=(low / 1.5, high * 1.5), scale="log")
