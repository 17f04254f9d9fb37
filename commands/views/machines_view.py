"""Two machines of a comparison, as a command shows them: shares, energy, cost, and the mean."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.text import Text

from bench.config import Sample, cost_metric, energy_metric, rate_unit
from commands.views.options import writing
from commands.views.terminal import text_table

if TYPE_CHECKING:
    from analysis.comparison.machines.efficiency import Efficiency
    from analysis.comparison.machines.prices import Cost, Prices
    from analysis.comparison.machines.speedups import MachinePair
    from analysis.table import Table

#: Columns that the table of the comparison has already.
_SHOWN_ALREADY = (
    "machine",
    *map(rate_unit, get_args(Sample)),
    "times as fast",
    "95 % interval",
    "verdict",
    "runs",
)
#: Columns that name a row.
_NAMES = ("model", "precision", "batch")


def machines_table(pair: MachinePair) -> Table:
    """The table of the machines of A and B, whole."""
    from analysis.report.tables.machines.speed_up_tables import shared_table

    title = (
        f"B ({pair.b}) against A ({pair.a}): speed, efficiency, energy, cost of 1e6 {pair.sample}s"
    )
    return shared_table([pair], ("A", "B"), name="machines", title=title)


def machine_lines(pair: MachinePair, prices: Prices) -> list[str]:
    """The mean, what is not known and why, and the prices behind the costs."""
    from analysis.comparison.machines.across import missing_sentences
    from analysis.runs.quantities import interval, ratio_digits, three_digits
    from bench.config import a_sample

    lines = []
    mean, ends = pair.mean, pair.ends
    if mean is not None and ends is not None:
        known = mean.low is not None and mean.high is not None
        span = f" (95 %: {interval(mean.low or 0, mean.high or 0)})" if known else ""
        number, ratio = len(pair.counted), pair.cost_ratio
        lines.append(
            f"B is {ratio_digits(mean.ratio)} times as fast as A{span}"
            + (
                f" in the geometric mean of {number} configurations, from {interval(*ends)}"
                if number > 1
                else ""
            )
            + (
                f"; {a_sample(pair.sample)} costs {three_digits(ratio)} times as much"
                if ratio
                else ""
            )
        )
    lines += [line.rstrip(".") for line in missing_sentences([pair], prices)]
    for label, cost in _costs(pair):
        line = f"price of {label}: {cost.price.words(prices.today)}"
        lines += [line] if line not in lines else []
    return lines


def _costs(pair: MachinePair) -> list[tuple[str, Cost]]:
    return [
        (group.env, cost)
        for one in pair.shared
        for group, side in ((one.comparison.a, one.a), (one.comparison.b, one.b))
        for cost in (side.cost, side.spot_cost)
        if cost is not None
    ]


def print_machines(console: Console, pair: MachinePair, prices: Prices) -> None:
    """Print what the table of the comparison lacks."""
    table = machines_table(pair)
    kept = [
        place
        for place, column in enumerate(table.columns)
        if not column.heading.startswith(_SHOWN_ALREADY)
    ]
    brief = replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )
    columns = brief.visible
    if any(column.heading not in _NAMES for column in columns):
        left = [place for place, column in enumerate(columns) if not column.numeric]
        console.print(text_table([c.heading for c in columns], brief.cells, left=left))
    for line in machine_lines(pair, prices):
        console.print(Text(line))


def machines_markdown(pair: MachinePair, prices: Prices) -> str:
    """The whole table and its lines, to stand below a comparison."""
    from analysis.comparison.shown import without_runs
    from analysis.table import markdown_text

    rows = without_runs(machines_table(pair)).markdown().split("\n", 2)[2]
    lines = [f"- {markdown_text(line)}" for line in machine_lines(pair, prices)]
    return "\n".join(["", rows, *lines, ""])


def write_machines(pair: MachinePair, out: Path) -> None:
    """Write the table beside that of the comparison."""
    table = machines_table(pair)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("csv", table.csv()),
            ("md", table.markdown()),
            ("tex", table.latex()),
        ):
            (out / f"machines.{suffix}").write_text(text, encoding="utf-8", newline="\n")


def machine_facts(pair: MachinePair) -> dict[str, object]:
    """The same for a script, None for what is not known, with the reasons."""
    mean = pair.mean
    return {
        "a": pair.a,
        "b": pair.b,
        "mean_ratio": mean and mean.ratio,
        "mean_ratio_low": mean and mean.low,
        "mean_ratio_high": mean and mean.high,
        "mean_covers": mean and mean.covers,
        "configurations_in_mean": len(pair.counted),
        "cost_ratio": pair.cost_ratio,
        "configurations": [
            {
                "configuration": one.comparison.label,
                "not_in_mean_because": one.note,
                "cost_ratio": one.cost_ratio,
                "a": _side_facts(one.a, one.comparison.a.sample),
                "b": _side_facts(one.b, one.comparison.b.sample),
            }
            for one in pair.shared
        ],
    }


def _side_facts(side: Efficiency, sample: Sample) -> dict[str, object]:
    low, high = side.fraction_of_roof or (None, None)
    return {
        "fraction_of_roof_min": low,
        "fraction_of_roof_max": high,
        "mfu": side.mfu,
        "ceiling_kind": side.ceiling_kind,
        energy_metric(sample): side.energy_j_per_sample,
        "cost": _cost_facts(side.cost, sample),
        "spot_cost": _cost_facts(side.spot_cost, sample),
        "missing": dict(side.missing),
    }


def _cost_facts(cost: Cost | None, sample: Sample) -> dict[str, object] | None:
    if cost is None:
        return None
    price = asdict(cost.price)
    price["day"] = cost.price.day.isoformat() if cost.price.day else None
    return {cost_metric(sample): cost.per_million_samples, "price": price}
