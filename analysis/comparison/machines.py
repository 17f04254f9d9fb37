"""How many times as fast one machine is as another, how efficient, and at what cost.

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

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs
from analysis.comparison.pairs import agreeing_pairs
from analysis.comparison.prices import NO_PRICES, Prices
from analysis.comparison.shown import covered
from analysis.runs.frame import Row, group_row, ratio_row
from analysis.runs.groups import Configurations, Group
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from analysis.statistics import mean_ratio
from analysis.table import RunList, grouped
from analysis.words import as_fast_as, counted, interval, three_digits
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

#: The settings that two machines need not share.
MACHINE = ("env", "device", "backend")
#: What may not be known of a side, in words.
_FACTS = {"mfu": "share of roof and peak (MFU)", ENERGY: "energy", "cost": "cost"}


def efficiency_row(group: Group, prices: Prices = NO_PRICES) -> Row:
    """Return what repeats make of their machine, by the names of columns; means over the repeats.

    Their rate, `fraction_of_roof_min` and `_max`, `fraction_of_peak` (model FLOP utilisation:
    attained / peak FLOP/s of the arithmetic that ran), energy and cost; per image those of images,
    and per sample all. Beside these `costs` by `cost` (on demand) and `spot_cost`, and `missing`:
    the reason of each number that is not known.
    """
    points, first = group.points, group.first
    energies = [value for run in group.runs if (value := run.usable(ENERGY)) is not None]
    costs = {"cost": prices.cost(group), "spot_cost": prices.cost(group, spot=True)}
    missing = {name: cost.reason for name, cost in costs.items() if isinstance(cost, Unknown)}
    if not points:
        refusal = first.refusal or "not placed under a roof"
        missing |= {"mfu": refusal, "fraction_of_roof": refusal}
    if not energies:
        missing[energy_metric(group.sample)] = _why_no_energy(first)
    low, high = group.of_the_roof or (None, None)
    row: Row = {
        "fraction_of_roof_min": low,
        "fraction_of_roof_max": high,
        "fraction_of_peak": fmean(one.fraction_of_peak for one in points) if points else None,
        "roof": points[0].ceiling.kind if points else None,
        "costs": {name: cost for name, cost in costs.items() if cost},
        "missing": missing,
    }
    samples: tuple[Sample, Sample] = (group.sample, "sample")
    for sample in samples:
        row |= group_row(group, rate_column(sample))
        row[energy_metric(sample)] = fmean(energies) if energies else None
        for name, cost in row["costs"].items():
            known = {cost_metric(sample): cost.per_million_samples, **cost.price.row}
            row |= {f"{name.removesuffix('cost')}{key}": value for key, value in known.items()}
    return row


def _why_no_energy(run: Run) -> str:
    record = run.record
    if record is None:
        return "imported: its file gives no energy" if run.imported else "no record"
    if record.telemetry is None:
        return record.missing.get("telemetry", "no telemetry")
    return record.telemetry.missing.get("energy_j", "no energy over the window")


@dataclass(frozen=True)
class MachinePair:
    """Two machines by their labels, `b` over `a`, with a row for each configuration they share.

    A row has the `comparison`, B's numbers as `efficiency_row` has them and A's with `reference_`
    before their names, the `ratio` with its ends and `verdict`, and `cost_ratio`: what B costs over
    what A costs on demand, None without both or in two currencies. `series` are the model with its
    tokens and the precision, `ran_with` other settings as they ran: `threads 2 -> 16`. What
    `spilled` out of memory, or is `mixed` of two precisions, enters no mean.
    """

    a: str
    b: str
    rows: tuple[Row, ...]

    @property
    def counted(self) -> list[Row]:
        """The rows that enter a mean."""
        return [row for row in self.rows if not (row["spilled"] or row["mixed"])]

    @property
    def sample(self) -> Sample:
        """What the configurations that enter a mean trained on."""
        return common_sample(row["comparison"].b.sample for row in self.counted)

    @property
    def sides(self) -> list[tuple[str, str, Row]]:
        """Each configuration's sides: machine, prefix of its numbers, row."""
        both = ((self.a, "reference_"), (self.b, ""))
        return [(*side, row) for row in self.rows for side in both]

    def times_as_fast(self, a: str, b: str) -> str | None:
        """Return `B is 1.2 times as fast as A (95 %: ...)` and what a sample costs, by these names.

        None where nothing enters the mean.
        """
        rows, mean = self.counted, mean_row(self.counted)
        if not mean:
            return None
        known = mean["estimate"].interval
        sure = [f"95 %: {interval(*known)}"] if known else []
        where, cost, first = "", "", rows[0]
        if len(rows) > 1:
            ends = interval(mean["least_ratio"], mean["largest_ratio"])
            sure.append(f"geometric mean of {len(rows)} configurations, {ends}")
        else:
            where = f" in {' '.join(first['series'])} batch {first['batch_size']}"
        if mean["cost_ratio"] is not None:
            each, ratio = a_sample(self.sample), three_digits(mean["cost_ratio"])
            cost = f"; {each} costs {ratio} times as much"
        beside = f" ({'; '.join(sure)})" if sure else ""
        return f"{b} is {as_fast_as(mean['ratio'], mean['ratio'])} {a}{beside}{where}{cost}"


def mean_row(rows: Sequence[Row]) -> Row:
    """Return the geometric mean of the ratios of `rows`, each of one weight; empty without rows.

    Its interval has the errors of the repeats, as `mean_ratio` adds them up, and needs one of each
    ratio. It is of these configurations on these machines: that models gain differently widens
    nothing, `least_ratio` and `largest_ratio` show it. `cost_ratio` needs that of each row.
    """
    estimates = [row["comparison"].estimate for row in rows]
    if not estimates:
        return {}
    mean, ratios = mean_ratio(estimates), [one.ratio for one in estimates]
    costs = [row["cost_ratio"] for row in rows]
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
    runs: Configurations,
    prices: Prices = NO_PRICES,
    differing: Collection[str] = MACHINE,
) -> MachinePair:
    """Return the machines of these labels by comparisons of B over A.

    `differing` is what may differ between them. Batches past a cliff of their curve in `runs` show
    a spill of memory and not the machine.
    """

    def shared(one: Comparison) -> Row:
        ours, theirs = (efficiency_row(side, prices) for side in (one.a, one.b))
        costs = [side["costs"].get("cost") for side in (ours, theirs)]
        ratio = None
        if all(costs) and costs[0].price.currency == costs[1].price.currency:
            ratio = costs[1].per_million_samples / costs[0].per_million_samples
        full = [side.env for side in (one.a, one.b) if side.names in runs.spilled]
        spilled = f"memory spilled on {' and '.join(full)}" if full else ""
        mixed = ""
        if one.a.precision != one.b.precision and "precision" not in differing:
            mixed = f"ran in {one.a.precision} and {one.b.precision}"
        precision = " -> ".join(dict.fromkeys((one.a.precision_label, one.b.precision_label)))
        ran_with = one.also_differs({*MACHINE, *OF_PRECISION})
        roofs = dict.fromkeys(side["roof"] for side in (ours, theirs) if side["roof"])
        notes = (
            spilled or mixed,
            f"ran with {ran_with}" if ran_with else "",
            f"roofs: {' -> '.join(roofs)}" if len(roofs) > 1 else "",
        )
        return {
            **theirs,
            **{f"reference_{name}": value for name, value in ours.items()},
            **ratio_row(one.estimate),
            "comparison": one,
            "env": b,
            "precision": precision,
            "series": (one.a.model_and_tokens, precision),
            "ran_with": ran_with,
            "spilled": spilled,
            "mixed": mixed,
            "note": "; ".join(filter(None, notes)) or None,
            "cost_ratio": ratio,
            "verdict": one.word,
            "runs": RunList((*one.a.names, *one.b.names)),
        }

    return MachinePair(a, b, tuple(map(shared, comparisons)))


@dataclass(frozen=True, kw_only=True)
class AcrossMachines:
    """Every two machines with a configuration in common, and those held against `reference`.

    `pairs` have the faster over the slower machine, `against` each machine over the reference;
    both are empty, and the reference is None, where no two share a configuration. `sentences` say
    what the figure and the tables are of, and what is not known; none of one machine.
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
    prices.check_used(runs)
    known = Configurations.of(runs)
    groups = [group for curve in known.curves for group in curve]
    devices = {(group.env, group.device) for group in groups}
    several = {env for env, _ in devices if sum(env == other for other, _ in devices) > 1}
    machines = grouped(
        groups, lambda one: f"{one.env} {one.device}" if one.env in several else one.env
    )

    def pair(a: str, b: str) -> MachinePair:
        ours, theirs = machines[a], machines[b]
        alike = agreeing_pairs(ours, theirs, {*MACHINE, *_unknown(ours, theirs)})
        return pair_machines(a, b, compare_pairs(alike, METRICS[THROUGHPUT]), known, prices)

    pairs = []
    for names in combinations(machines, 2):
        found = pair(*names)
        mean = mean_row(found.counted or found.rows)
        if mean:
            pairs.append(pair(found.b, found.a) if mean["ratio"] < 1 else found)

    def rank(name: str) -> tuple[int, int]:
        """Configurations in common with others; of as many it is slower than more machines."""
        own = [one for one in pairs if name in (one.a, one.b)]
        return sum(len(one.rows) for one in own), sum(one.a == name for one in own)

    if reference is not None and reference not in machines:
        there = ", ".join(sorted(machines)) or "none"
        raise UserError(f"reference={reference!r}: no run is of this machine; there are {there}")
    chosen = reference or max(sorted(machines), key=rank, default="")
    against = tuple(
        one if one.a == chosen else pair(one.b, one.a) for one in pairs if chosen in (one.a, one.b)
    )
    why = "the slower of the two" if len(machines) == 2 else _MOST_IN_COMMON
    opening = _opening(sorted(machines), pairs, against, "asked for" if reference else why)
    return AcrossMachines(
        reference=chosen if against else None,
        pairs=tuple(pairs),
        against=against,
        sentences=[*opening, *missing_sentences(against, prices)],
    )


_MOST_IN_COMMON = "which has most configurations in common with others"


def _opening(
    names: Sequence[str], pairs: Sequence[MachinePair], against: Sequence[MachinePair], why: str
) -> list[str]:
    if len(names) < 2:
        return []
    if not pairs:
        remedy = "measure the same model, precision and batch size on each"
        return [f"{_listed(names)} share no configuration: {remedy}."]
    if not against:
        return ["No machine shares a configuration with the reference that was asked for."]
    reference, comparisons = against[0].a, [row["comparison"] for p in against for row in p.rows]
    alone = [name for name in names if name not in {reference, *(pair.b for pair in against)}]
    nothing = f" Nothing in common with it: {_listed(alone)}." if alone else ""
    return [
        f"The reference is {reference}, {why}: {counted(len(comparisons), 'comparison')}.{nothing}",
        *(f"{line[0].upper()}{line[1:]}." for line in covered(comparisons)),
    ]


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _unknown(one: Sequence[Group], other: Sequence[Group]) -> set[str]:
    """The settings that the ledgers of one side lack: a record lacks those without any effect."""
    if not any(group.first.imported for group in (*one, *other)):
        return set()
    names = [{name for group in side for name in group.first.settings} for side in (one, other)]
    return names[0] ^ names[1]


def missing_sentences(pairs: Sequence[MachinePair], prices: Prices) -> list[str]:
    """Return why shares, energy or costs of `pairs` are not known, by machine."""
    sides = [side for pair in pairs for side in pair.sides]
    reasons: dict[str, dict[str, dict[str, None]]] = {what: {} for what in _FACTS.values()}
    for label, prefix, row in sides:
        for name, why in row[f"{prefix}missing"].items():
            what = _FACTS.get(ENERGY if name.startswith("energy") else name)
            if what:  # the remedy, which follows the reason, stands with the run's own problems
                reasons[what].setdefault(why.partition("; ")[0], {})[label] = None
    if sides and not prices:
        reasons.pop(_FACTS["cost"])
    found = [
        f"No {what} of {'; '.join(f'{_listed(of)} ({why})' for why, of in labels.items())}."
        for what, labels in reasons.items()
        if labels
    ]
    if sides and not prices:
        example = f"--price {sides[0][2]['comparison'].a.env}=0.71/h"
        found.append(f"No cost: it needs the price of an hour, such as {example}.")
    costs = [cost for _, prefix, row in sides for cost in row[f"{prefix}costs"].values()]
    currencies = sorted({cost.price.currency for cost in costs})
    if len(currencies) > 1:
        found.append(f"Costs in {_listed(currencies)} are not set against each other.")
    return found
