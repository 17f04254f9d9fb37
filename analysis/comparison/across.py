"""Two machines: how many times as fast one is as the other, how efficient, and at what cost.

Like is held against like: two groups of repeats form a pair where the settings that ran agree, or
were asked for alike, with the same model, batch size and size of image or sequence. A pair whose
precisions ran differently, or in which a batch spilled out of the memory of one machine, is shown
with that note and enters no mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, geometric_mean

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs, covered
from analysis.comparison.machines import NO_PRICES, Price, Prices, machine_names
from analysis.comparison.pairs import agreeing_pairs
from analysis.presentation.columns import Row
from analysis.presentation.table import RunList, grouped
from analysis.presentation.words import as_fast_as, counted, interval, three_digits
from analysis.runs.groups import Group, Runs, group_row, ratio_row
from analysis.runs.points import SHARES_OF_PEAK
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from bench.config import (
    ENERGY,
    THROUGHPUT,
    Sample,
    a_sample,
    common_sample,
    cost_metric,
    energy_metric,
    rate_column,
)
from bench.errors import Unknown, UserError
from bench.records import RunRecord
from bench.statistics.ratios import mean_ratio

#: The settings that two machines need not share.
MACHINE = ("env", "device", "backend")


def efficiency_row(group: Group, prices: Prices = NO_PRICES) -> Row:
    """Return what repeats make of their machine, by the names of columns; means over the repeats.

    Their rate, both ends of their share of the roof, `mfu_required` and others of the peak,
    energy and cost; per image those of images, and per sample all. Beside these `costs` on demand
    and at `spot_cost`, and `missing`: the reason of each number that is not known.
    """
    points, first = group.points, group.first
    energies = [value for run in group.runs if (value := run.usable(ENERGY)) is not None]
    known = {"cost": prices.cost(group), "spot_cost": prices.cost(group, spot=True)}
    missing = {name: cost.reason for name, cost in known.items() if isinstance(cost, Unknown)}
    if not points:
        missing |= dict.fromkeys(("mfu", "fraction_of_roof"), first.refusal or "not placed")
    if not energies:
        missing[energy_metric(group.sample)] = _why_no_energy(first.record)
    low, high = group.of_the_roof or (None, None)
    costs = {name: cost for name, cost in known.items() if cost}
    row: Row = {
        "fraction_of_roof_min": low,
        "fraction_of_roof_max": high,
        **{name: _mean(getattr(point, name) for point in points) for name in SHARES_OF_PEAK},
        "roof": points[0].ceiling.kind if points else None,
        "costs": costs,
        "missing": missing,
    }
    samples: tuple[Sample, Sample] = (group.sample, "sample")
    for sample in samples:
        row |= group_row(group, rate_column(sample))
        row[energy_metric(sample)] = fmean(energies) if energies else None
        for name, cost in costs.items():
            values = {cost_metric(sample): cost.per_million_samples, **cost.price.row}
            row |= {f"{name.removesuffix('cost')}{key}": value for key, value in values.items()}
    return row


def _mean(values: Iterable[float | None]) -> float | None:
    known = [*values]
    numbers = [value for value in known if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(known) else None


def _why_no_energy(record: RunRecord | None) -> str:
    if record is None:
        return "its file gives no energy"
    if record.telemetry is None:
        return record.missing.get("telemetry", "no telemetry")
    return record.telemetry.missing.get("energy_j", "no energy over the window")


@dataclass(frozen=True)
class MachinePair:
    """Two machines by their labels, `b` over `a`, with a row for each configuration they share.

    A row has the `comparison`, B's numbers as `efficiency_row` has them and A's with `reference_`
    before their names, the `ratio` with its ends and `verdict`, and `cost_ratio`: what B costs over
    what A costs on demand, None without both or in two currencies. `series` are the model with its
    tokens and the precision, `ran_with` other settings as they ran: `threads 2 -> 16`.
    """

    a: str
    b: str
    rows: tuple[Row, ...]

    @property
    def counted(self) -> list[Row]:
        """The rows that enter a mean: without a spill, of one precision."""
        return [row for row in self.rows if not (row["spilled"] or row["mixed"])]

    @property
    def sample(self) -> Sample:
        """What the configurations that enter a mean trained on."""
        return common_sample(row["comparison"].b.sample for row in self.counted)

    def times_as_fast(self, a: str, b: str) -> str | None:
        """Return `B is 1.2 times as fast as A (95 %: ...)` and what a sample costs, by these names.

        None where nothing enters the mean.
        """
        rows = self.counted
        if not (mean := mean_row(rows)):
            return None
        span = mean["estimate"].interval
        beside = [f"95 %: {interval(*span)}"] if span else []
        where = f" in {' '.join(rows[0]['series'])} batch {rows[0]['batch_size']}"
        if len(rows) > 1:
            ends = interval(mean["least_ratio"], mean["largest_ratio"])
            where = ""
            beside.append(f"geometric mean of {len(rows)} configurations, {ends}")
        sure = f" ({'; '.join(beside)})" if beside else ""
        said = f"{b} is {as_fast_as(mean['ratio'], mean['ratio'])} {a}{sure}{where}"
        if mean["cost_ratio"] is None:
            return said
        costs = three_digits(mean["cost_ratio"])
        return f"{said}; {a_sample(self.sample)} costs {costs} times as much"


def mean_row(rows: Sequence[Row]) -> Row:
    """Return the geometric mean of the ratios of `rows`, each of one weight; empty without rows.

    Its interval has the errors of the repeats and needs one of each ratio. It is of these
    configurations on these machines: that models gain differently widens nothing, `least_ratio` and
    `largest_ratio` show it. `cost_ratio` needs that of each row.
    """
    if not rows:
        return {}
    mean = mean_ratio([row["comparison"].estimate for row in rows])
    ratios, costs = [row["ratio"] for row in rows], [row["cost_ratio"] for row in rows]
    return {
        "configurations": len(rows),
        "estimate": mean,
        **ratio_row(mean),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "cost_ratio": None if None in costs else geometric_mean(costs),
    }


def pair_machines(
    a: str,
    b: str,
    comparisons: Iterable[Comparison],
    spilled: Collection[tuple[str, ...]],
    prices: Prices = NO_PRICES,
    differing: Collection[str] = MACHINE,
) -> MachinePair:
    """Return the machines of these labels by comparisons of B over A.

    `differing` is what may differ between them, `spilled` are the runs of batches that show a spill
    of memory and not the machine.
    """

    def shared(of: Comparison) -> Row:
        ours, theirs = (efficiency_row(side, prices) for side in (of.a, of.b))
        costs, ratio = [side["costs"].get("cost") for side in (ours, theirs)], None
        if all(costs) and costs[0].price.currency == costs[1].price.currency:
            ratio = costs[1].per_million_samples / costs[0].per_million_samples
        full = [side.env for side in (of.a, of.b) if side.names in spilled]
        spill = f"memory spilled on {' and '.join(full)}" if full else ""
        mixed = ""
        if of.a.precision != of.b.precision and "precision" not in differing:
            mixed = f"ran in {of.a.precision} and {of.b.precision}"
        precision = " -> ".join(dict.fromkeys((of.a.precision_label, of.b.precision_label)))
        ran_with = of.also_differs({*MACHINE, *OF_PRECISION})
        roofs = dict.fromkeys(side["roof"] for side in (ours, theirs) if side["roof"])
        notes = (
            spill or mixed,
            f"ran with {ran_with}" if ran_with else "",
            f"roofs: {' -> '.join(roofs)}" if len(roofs) > 1 else "",
        )
        return {
            **theirs,
            **{f"reference_{name}": value for name, value in ours.items()},
            **ratio_row(of.estimate),
            "comparison": of,
            "env": b,
            "precision": precision,
            "series": (of.a.model_and_tokens, precision),
            "ran_with": ran_with,
            "spilled": spill,
            "mixed": mixed,
            "note": "; ".join(filter(None, notes)) or None,
            "cost_ratio": ratio,
            "verdict": of.word,
            "runs": RunList((*of.a.names, *of.b.names)),
        }

    return MachinePair(a, b, tuple(map(shared, comparisons)))


@dataclass(frozen=True, kw_only=True)
class AcrossMachines:
    """Every two machines with a configuration in common, and those held against `reference`.

    `pairs` have the faster over the slower machine, `against` each machine over the reference;
    both are empty, and the reference is None, where no two share a configuration. `sentences` say
    what the figure and the tables are of; none of one machine.
    """

    reference: str | None
    pairs: tuple[MachinePair, ...]
    against: tuple[MachinePair, ...]
    sentences: list[str]


def across_machines(
    runs: Sequence[Run], prices: Prices = NO_PRICES, reference: str | None = None
) -> AcrossMachines:
    """Hold the machines of `runs` against each other.

    A label under which several devices ran is several machines, each with its device's name.
    p-values are corrected (Holm) for the configurations of a pair. Without `reference` it is the
    machine with most configurations in common, of several the slowest. Raises `UserError` for a
    reference that is not there, and for the price of such a machine.
    """
    prices.check_names(name for run in runs for name in machine_names(run))
    configurations = Runs.of(runs)
    groups = [group for curve in configurations.curves for group in curve]
    devices = grouped({(group.env, group.device) for group in groups}, lambda pair: pair[0])
    machines = grouped(
        groups,
        lambda group: f"{group.env} {group.device}" if len(devices[group.env]) > 1 else group.env,
    )

    def pair(a: str, b: str) -> MachinePair:
        ours, theirs = machines[a], machines[b]
        alike = agreeing_pairs(ours, theirs, {*MACHINE, *_unknown(ours, theirs)})
        compared = compare_pairs(alike, METRICS[THROUGHPUT])
        return pair_machines(a, b, compared, configurations.spilled, prices)

    pairs = [shared for names in combinations(machines, 2) if (shared := pair(*names)).rows]
    slower = [mean_row(shared.counted or shared.rows)["ratio"] < 1 for shared in pairs]
    pairs = [pair(p.b, p.a) if turned else p for p, turned in zip(pairs, slower, strict=True)]

    def rank(name: str) -> tuple[int, int]:
        """Runs in common with others; of as many it is slower than more machines."""
        own = [shared for shared in pairs if name in (shared.a, shared.b)]
        return sum(len(shared.rows) for shared in own), sum(shared.a == name for shared in own)

    if reference is not None and reference not in machines:
        there = ", ".join(sorted(machines)) or "none"
        raise UserError(f"reference={reference!r}: no run is of this machine; there are {there}")
    chosen = reference or max(sorted(machines), key=rank, default="")
    against = tuple(
        shared if shared.a == chosen else pair(shared.b, shared.a)
        for shared in pairs
        if chosen in (shared.a, shared.b)
    )
    sentences: list[str] = []
    if len(machines) > 1:
        comparisons = [row["comparison"] for shared in against for row in shared.rows]
        why = "which was asked for" if reference else "the slowest of those with most in common"
        sentences.append(
            f"The reference is {chosen}, {why}: {counted(len(comparisons), 'comparison')}."
        )
        if alone := sorted({*machines} - {chosen, *(shared.b for shared in against)}):
            remedy = "measure the same model, precision and batch size on each"
            sentences.append(f"Nothing in common with it: {_listed(alone)}; {remedy}.")
        sentences += [f"{line[:1].upper()}{line[1:]}." for line in covered(comparisons)]
    return AcrossMachines(
        reference=chosen if against else None,
        pairs=tuple(pairs),
        against=against,
        sentences=sentences,
    )


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _unknown(one: Sequence[Group], other: Sequence[Group]) -> set[str]:
    """The settings that the ledgers of one side lack: a record lacks those without any effect."""
    if not any(group.first.imported for group in (*one, *other)):
        return set()
    names = [{name for group in side for name in group.first.settings} for side in (one, other)]
    return names[0] ^ names[1]


def used_prices(pairs: Iterable[MachinePair]) -> list[tuple[str, Price]]:
    """Return the prices that costs of `pairs` rest on, each after the label of its machine."""
    used: dict[tuple[str, Price], None] = {}
    for pair in pairs:
        for label, prefix in ((pair.a, "reference_"), (pair.b, "")):
            costs = (cost for row in pair.rows for cost in row[f"{prefix}costs"].values())
            used |= dict.fromkeys((label, cost.price) for cost in costs)
    return list(used)
