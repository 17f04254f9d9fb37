"""What a report says of several machines: against which one they are held, and why some are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.comparison.covered import covered
from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.comparison.machines.speedups import (
    MachinePair,
    choose_reference,
    machine_names,
    machine_pairs,
)
from analysis.runs.groups import group_runs
from analysis.runs.placed import Run
from analysis.runs.quantities import counted


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
        return [self._about_reference(), *self._about_intervals(), *self._about_missing()]

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

    def _about_missing(self) -> list[str]:
        """Why shares, energy or costs are not in the tables, by machine."""
        found: list[str] = []
        for what, name in (
            ("share of roof and peak (MFU)", "mfu"),
            ("energy", "energy_j_per_image"),
            ("cost", "cost"),
        ):
            reasons: dict[str, str] = {}
            for pair in self.against:
                for one in pair.shared:
                    for label, side in ((pair.a, one.a), (pair.b, one.b)):
                        if name in side.missing:
                            reasons.setdefault(label, side.missing[name])
            if not reasons:
                continue
            if name == "cost" and not self.prices:
                found.append(
                    "No cost: it needs the price of an hour, such as "
                    f"--price {self.reference}=0.71/h."
                )
                break
            by_reason: dict[str, list[str]] = {}
            for label, reason in reasons.items():
                by_reason.setdefault(reason, []).append(label)
            whole = "; ".join(
                f"{_listed(labels)} ({reason})" for reason, labels in by_reason.items()
            )
            found.append(f"No {what} of {whole}.")
        currencies = {
            cost.price.currency
            for pair in self.against
            for one in pair.shared
            for side in (one.a, one.b)
            for cost in (side.cost, side.spot_cost)
            if cost is not None
        }
        if len(currencies) > 1:
            found.append(f"Costs in {_listed(sorted(currencies))} are not set against each other.")
        return found


def across_machines(
    runs: Sequence[Run], prices: Prices = NO_PRICES, reference: str | None = None
) -> AcrossMachines:
    """Hold the machines of `runs` against each other.

    Raises `UserError` for a reference that is not there, and for the price of such a machine.
    """
    prices.check_used(group_runs(runs))
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
