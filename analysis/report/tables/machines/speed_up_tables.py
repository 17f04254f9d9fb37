"""The tables of one machine beside another: each configuration of both, means, and prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analysis.comparison.machines.across import AcrossMachines
from analysis.comparison.machines.efficiency import Efficiency
from analysis.comparison.machines.prices import Cost, Price
from analysis.comparison.machines.speedups import MachinePair, SharedConfiguration
from analysis.runs.groups import Group
from analysis.runs.quantities import (
    counted,
    interval,
    percent,
    percent_interval,
    plus_minus,
    ratio_digits,
    three_digits,
)
from analysis.statistics import RatioEstimate
from analysis.table import (
    Column,
    RunNumbers,
    Table,
    make_table,
    number,
    text,
    whole,
)
from bench.config import (
    Sample,
    common_sample,
    cost_metric,
    energy_metric,
    rate_column,
    rate_unit,
)


def speed_up_table(pairs: Sequence[MachinePair], numbers: RunNumbers) -> Table:
    """Each machine against each slower one, in the models and precisions that both measured."""
    found = [series for pair in pairs for series in pair.by_series() if series.counted]
    tokens: Column[MachinePair] = whole(
        "seq_len", "tokens a sequence", lambda one: one.shared[0].comparison.a.seq_len
    )
    return make_table(
        "speed-ups",
        "How many times as fast one machine is as another, at the same configurations",
        found,
        text("machine", "machine", lambda one: one.b),
        text("slower_machine", "against", lambda one: one.a),
        text("arch", "model", lambda one: one.shared[0].comparison.a.arch),
        *([tokens] if any(map(tokens.value, found)) else []),
        text("precision", "precision", lambda one: one.shared[0].series[1]),
        whole("configurations", "common batch sizes", lambda one: len(one.counted)),
        number("ratio", "times as fast, mean", lambda one: one.mean and one.mean.ratio),
        number("ratio_low ratio_high", "95 % interval",
               lambda one: _ends(one.mean), interval),
        number("least_ratio largest_ratio", "least to most", lambda one: one.ends, interval),
        text("ran_with", "ran with", lambda one: one.ran_with or None, wraps_em=10),
        text("runs", "runs", lambda one: numbers.listed(one.names)),
    )  # fmt: skip


def _ends(estimate: RatioEstimate | None) -> tuple[float | None, float | None]:
    return (estimate.low, estimate.high) if estimate else (None, None)


class _SpeedUpRow(NamedTuple):
    """A configuration of two machines, or the mean over theirs."""

    pair: MachinePair
    one: SharedConfiguration | None

    @property
    def estimate(self) -> RatioEstimate | None:
        return self.one.comparison.estimate if self.one else self.pair.mean

    @property
    def note(self) -> str | None:
        if self.one is None:
            return f"from {interval(*self.pair.ends)}" if self.pair.ends else None
        roofs = self.one.roofs_differ
        ran_with = f"ran with {self.one.ran_with}" if self.one.ran_with else None
        parts = (self.one.note, ran_with, f"roofs: {roofs}" if roofs else None)
        return "; ".join(filter(None, parts)) or None


def shared_table(
    pairs: Sequence[MachinePair],
    sides: tuple[str, str],
    *,
    name: str,
    title: str,
    numbers: RunNumbers | None = None,
) -> Table:
    """Each configuration of each pair, and the geometric mean where a pair has several.

    `sides` are what headings call the two machines, the one that is held against first; `numbers`
    those of the runs in a report.
    """
    rows = [
        row
        for pair in pairs
        for row in (
            *(_SpeedUpRow(pair, one) for one in pair.shared),
            *([_SpeedUpRow(pair, None)] if len(pair.counted) > 1 else []),
        )
    ]

    sample = common_sample(pair.sample for pair in pairs)
    rate = rate_column(sample)
    rate_keys = f"{rate} {{0}}{rate}_sd {{0}}repeats"

    def runs(row: _SpeedUpRow) -> object:
        names = row.one.names if row.one else ()
        return numbers.listed(names) if numbers else " ".join(names)

    return make_table(
        name,
        title,
        rows,
        text("machine", "machine", lambda row: row.pair.b),
        text("arch differs_in", "model", _model, lambda arch, also: f"{arch} ({also})" if also
             else arch, wraps_em=10),
        text("precision", "precision", lambda row: row.one.series[1] if row.one else None),
        whole("batch_size", "batch",
              lambda row: row.one.comparison.a.batch_size if row.one else None),
        *_of_both(sides, rate_keys, rate_unit(sample), _rate, _mean_sd),
        number("ratio", "times as fast", lambda row: row.estimate and row.estimate.ratio,
               ratio_digits),
        number("ratio_low ratio_high", "95 % interval",
               lambda row: _ends(row.estimate),
               interval),
        text("verdict", "verdict", lambda row: row.one.comparison.word if row.one else None),
        *_of_both(sides, "fraction_of_roof_min {0}fraction_of_roof_max", "of roof",
                  lambda _, side: side.fraction_of_roof or (None, None), percent_interval),
        *_of_both(sides, "mfu", "MFU", lambda _, side: side.mfu, percent),
        *_of_both(sides, energy_metric(sample), f"J/{sample}",
                  lambda _, side: side.energy_j_per_sample, three_digits),
        *_of_both(sides, _cost_keys(sample, ""), "cost of 1e6",
                  lambda _, side: _cost_cells(side.cost), _cost_words),
        *_of_both(sides, _cost_keys(sample, "spot_"), "at spot",
                  lambda _, side: _cost_cells(side.spot_cost), _cost_words),
        number("cost_ratio", "times the cost",
               lambda row: row.one.cost_ratio if row.one else row.pair.cost_ratio),
        text("note", "note", lambda row: row.note, wraps_em=10),
        text("runs", "runs", runs),
        sparse=True,
    )  # fmt: skip


def _cost_keys(sample: Sample, prefix: str) -> str:
    names = (cost_metric(sample), "currency", "price_per_h", "price_date", "price_source")
    return " ".join(f"{{0}}{prefix}{name}" for name in names)


def _model(row: _SpeedUpRow) -> tuple[str, str | None]:
    if row.one is None:
        return f"geometric mean of {len(row.pair.counted)}", None
    return row.one.comparison.b.arch, row.one.comparison.b.distinction or None


def _of_both(
    sides: tuple[str, str],
    keys: str,
    heading: str,
    value: Callable[[Group, Efficiency], Any],
    show: Callable[..., str],
) -> list[Column[_SpeedUpRow]]:
    """A column for the machine, then one for that which it is held against."""

    def column(prefix: str, side: str, of: Callable[[SharedConfiguration], Any]) -> Any:
        named = f"{{0}}{keys}".replace("{0}{0}", "{0}").format(prefix)
        nothing = (None,) * len(named.split()) if " " in named else None
        return number(
            named,
            f"{heading} {side}".strip(),
            lambda row: of(row.one) if row.one else nothing,
            show,
        )

    return [
        column("", sides[1], lambda one: value(one.comparison.b, one.b)),
        column("reference_", sides[0], lambda one: value(one.comparison.a, one.a)),
    ]


def _rate(group: Group, _: Efficiency) -> tuple[float, float | None, int]:
    repeats = group.repeats()
    deviation = repeats.relative_deviation
    mean = repeats.centre
    return mean, None if deviation is None else deviation * mean, repeats.count


def _mean_sd(mean: float, deviation: float | None, count: int) -> str:
    return plus_minus(mean, deviation) + (f" ({count})" if count > 1 else "")


def _cost_cells(cost: Cost | None) -> tuple[object, ...]:
    if cost is None:
        return (None,) * 5
    price = cost.price
    day = price.day.isoformat() if price.day else None
    return cost.per_million_samples, price.currency, price.per_h, day, price.source


def _cost_words(cost: float, currency: str, *_: object) -> str:
    return f"{three_digits(cost)} {currency}"


def against_table(across: AcrossMachines, numbers: RunNumbers) -> Table:
    """Each configuration that a machine shares with the reference."""
    samples = f"{common_sample(pair.sample for pair in across.against)}s"
    return shared_table(
        across.against,
        (across.reference or "", ""),
        name="times-as-fast",
        title=f"How many times as fast as {across.reference} each machine is, "
        f"cost of 1e6 {samples}",
        numbers=numbers,
    )


def prices_table(across: AcrossMachines) -> Table:
    """The prices that costs rest on: of which machine, how much, how old, from where."""
    today = across.prices.today
    found: dict[tuple[str, Price], None] = {}
    for pair in across.pairs:
        for one in pair.shared:
            for label, side in ((pair.a, one.a), (pair.b, one.b)):
                for cost in (side.cost, side.spot_cost):
                    if cost is not None:
                        found[label, cost.price] = None
    return make_table(
        "prices",
        "Prices of machines, given for this report",
        sorted(found, key=lambda row: (row[0], row[1].spot)),
        text("machine", "machine", lambda row: row[0]),
        number("price_per_h currency", "price an hour", lambda row: (row[1].per_h, row[1].currency),
               lambda price, currency: f"{three_digits(price)} {currency}"),
        text("kind", "kind", lambda row: "spot" if row[1].spot else "on demand"),
        text("date", "date", lambda row: row[1].day and row[1].day.isoformat(),
        ),
        whole("age_days old", "age", lambda row: (row[1].age_days(today), row[1].is_old(today)),
              lambda days, old: counted(days, "day") + (", old" if old else "")),
        text("zone", "zone", lambda row: row[1].zone or None),
        text("source", "source", lambda row: row[1].source, wraps_em=12),
        sparse=True,
    )  # fmt: skip
