"""What a report says of several machines: against which one they are held, and why some are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from analysis.comparison.judgement import Comparison
from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.comparison.machines.speedups import (
    MachinePair,
    choose_reference,
    machine_names,
    machine_pairs,
    shared_configurations,
    spilled_batches,
)
from analysis.comparison.shown import covered
from analysis.runs.quantities import counted
from analysis.runs.run import Run
from bench.config import Sample, energy_metric

_WHAT = {
    "mfu": "share of roof and peak (MFU)",
    **{energy_metric(sample): "energy" for sample in get_args(Sample)},
    "cost": "cost",
}


@dataclass(frozen=True, kw_only=True)
class AcrossMachines:
    """Every two machines with a configuration in common, and those held against `reference`.

    `pairs` have the faster over the slower machine, `against` each machine over the reference;
    both are empty, and the reference is None, where no two share a configuration.
    """

    machines: tuple[str, ...]
    reference: str | None
    asked: bool
    pairs: tuple[MachinePair, ...]
    against: tuple[MachinePair, ...]
    prices: Prices = NO_PRICES

    @property
    def sentences(self) -> list[str]:
        """What the figure and the tables are of, and what is not known; none of one machine."""
        if len(self.machines) < 2:
            return []
        if not self.pairs:
            return [
                f"{_listed(self.machines)} share no configuration: measure the same model, "
                "precision and batch size on each."
            ]
        return [
            self._about_reference(),
            *self._about_intervals(),
            *missing_sentences(self.against, self.prices),
        ]

    def _about_reference(self) -> str:
        """Against which machine the others are held, and which are not."""
        if self.reference is None:
            return "No machine shares a configuration with the reference that was asked for."
        others = [pair.b for pair in self.against]
        alone = [name for name in self.machines if name not in (*others, self.reference)]
        why = (
            "asked for"
            if self.asked
            else "the slower of the two"
            if len(self.machines) == 2
            else "which has most configurations in common with others"
        )
        number = sum(len(pair.shared) for pair in self.against)
        words = f"The reference is {self.reference}, {why}: {counted(number, 'comparison')}."
        if alone:
            words += f" Nothing in common with it: {_listed(alone)}."
        return words

    def _about_intervals(self) -> list[str]:
        comparisons = [one.comparison for pair in self.against for one in pair.shared]
        return [f"{line[0].upper()}{line[1:]}." for line in covered(comparisons)]


def missing_sentences(pairs: Sequence[MachinePair], prices: Prices) -> list[str]:
    """Return why shares, energy or costs of `pairs` are not known, by machine."""
    sides = [
        (label, side)
        for pair in pairs
        for one in pair.shared
        for label, side in ((pair.a, one.a), (pair.b, one.b))
    ]
    found: list[str] = []
    for name, what in _WHAT.items():
        labels: dict[str, dict[str, None]] = {}  # by reason
        for label, side in sides:
            if name in side.missing:
                labels.setdefault(side.missing[name], {})[label] = None
        if name == "cost" and not prices and sides:
            example = f"--price {pairs[0].shared[0].comparison.a.env}=0.71/h"
            found.append(f"No cost: it needs the price of an hour, such as {example}.")
        elif labels:
            # the remedy, which follows the reason, stands with the run's own problems
            whom = "; ".join(
                f"{_listed(list(of))} ({why.partition('; ')[0]})" for why, of in labels.items()
            )
            found.append(f"No {what} of {whom}.")
    costs = [cost for _, side in sides for cost in (side.cost, side.spot_cost) if cost is not None]
    currencies = sorted({cost.price.currency for cost in costs})
    if len(currencies) > 1:
        found.append(f"Costs in {_listed(currencies)} are not set against each other.")
    return found


def between(
    a: Sequence[Run],
    b: Sequence[Run],
    comparisons: Sequence[Comparison],
    differing: Collection[str],
    prices: Prices = NO_PRICES,
) -> MachinePair:
    """Return two sides of a comparison as two machines; `differing` is what distinguishes them.

    Raises `UserError` for the price of a machine that is on neither side.
    """
    runs = (*a, *b)
    prices.check_used(runs)
    shared = shared_configurations(comparisons, spilled_batches(runs), prices, differing)
    ours, theirs = ({run.env for run in side if run.outcome == "ok"} for side in (a, b))
    return MachinePair(", ".join(sorted(ours)), ", ".join(sorted(theirs)), shared)


def across_machines(
    runs: Sequence[Run], prices: Prices = NO_PRICES, reference: str | None = None
) -> AcrossMachines:
    """Hold the machines of `runs` against each other.

    Raises `UserError` for a reference that is not there, and for the price of such a machine.
    """
    prices.check_used(runs)
    machines, pairs = machine_names(runs), machine_pairs(runs, prices)
    chosen = choose_reference(pairs, machines, reference)
    return AcrossMachines(
        machines=tuple(machines),
        reference=chosen,
        asked=reference is not None,
        pairs=tuple(pairs),
        against=tuple(machine_pairs(runs, prices, chosen)) if chosen is not None else (),
        prices=prices,
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
