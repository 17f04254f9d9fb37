"""How many times as fast one machine is as another, configuration by configuration.

Like is held against like: two groups of repeats form a pair where the settings that ran agree, or
were asked for alike, with the same model, batch size and size of image or sequence. A pair whose
precisions ran differently, or in which a batch spilled out of the memory of one machine, is shown
with that note and enters no mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import geometric_mean

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs
from analysis.comparison.machines.efficiency import Efficiency, efficiency_of
from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.runs.groups import Group, agreeing_pairs, batch_curves, cliff_of, ran_otherwise
from analysis.runs.run import Run
from analysis.runs.what_ran import OF_PRECISION
from analysis.statistics import RatioEstimate, mean_ratio
from bench.config import THROUGHPUT, Sample, common_sample
from bench.errors import UserError

#: The settings that two machines need not share.
MACHINE = ("env", "device", "backend")


@dataclass(frozen=True, kw_only=True)
class SharedConfiguration:
    """One configuration of two machines; the comparison is of B over A.

    `spilled` says whose memory the batch spilled out of, `mixed` that the two ran in different
    precisions: neither enters the mean of two machines.
    """

    comparison: Comparison
    a: Efficiency
    b: Efficiency
    spilled: str | None = None
    mixed: str | None = None

    @property
    def note(self) -> str | None:
        """Why the configuration enters no mean, None where it does."""
        return self.spilled or self.mixed

    @property
    def series(self) -> tuple[str, str]:
        """The model with its tokens, and the precision: `amp-fp16 -> amp-bf16` where two ran."""
        ours, theirs = (side.precision_label for side in (self.comparison.a, self.comparison.b))
        precision = ours if ours == theirs else f"{ours} -> {theirs}"
        return self.comparison.a.model_and_tokens, precision

    @property
    def ran_with(self) -> str:
        """The other settings that differ between the two, as they ran: `threads 2 -> 16`."""
        besides = {*MACHINE, *OF_PRECISION}
        return ran_otherwise(self.comparison.a, self.comparison.b, besides)

    @property
    def roofs_differ(self) -> str | None:
        """`measured -> datasheet` where shares of two kinds of roof stand beside each other."""
        kinds = [kind for kind in (self.a.ceiling_kind, self.b.ceiling_kind) if kind]
        return " -> ".join(kinds) if len(set(kinds)) > 1 else None

    @property
    def cost_ratio(self) -> float | None:
        """What B costs over what A costs, on demand; None without both, or in two currencies."""
        ours, theirs = self.a.cost, self.b.cost
        if ours is None or theirs is None or ours.price.currency != theirs.price.currency:
            return None
        return theirs.per_million_samples / ours.per_million_samples

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the runs of both."""
        return (*self.comparison.a.names, *self.comparison.b.names)


@dataclass(frozen=True)
class MachinePair:
    """Two machines by their labels, `b` over `a`, and every configuration that they share."""

    a: str
    b: str
    shared: tuple[SharedConfiguration, ...]

    @property
    def counted(self) -> tuple[SharedConfiguration, ...]:
        """The configurations that enter a mean."""
        return tuple(one for one in self.shared if one.note is None)

    @property
    def sample(self) -> Sample:
        """What the configurations that enter a mean trained on."""
        return common_sample(one.comparison.b.sample for one in self.counted)

    @property
    def estimates(self) -> list[RatioEstimate]:
        """The ratios that enter a mean."""
        return [one.comparison.estimate for one in self.counted]

    @property
    def mean(self) -> RatioEstimate | None:
        """The geometric mean of the ratios, each of one weight; None where none counts.

        Its interval has the errors of the repeats, as `mean_ratio` adds them up, and needs one of
        each ratio. It is of these configurations on these machines: that models gain differently
        widens nothing, `ends` shows it.
        """
        return mean_ratio(self.estimates) if self.counted else None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The least and the largest ratio."""
        ratios = [estimate.ratio for estimate in self.estimates]
        return (min(ratios), max(ratios)) if ratios else None

    @property
    def ran_with(self) -> str:
        """What ran otherwise in any of the configurations."""
        return "; ".join(dict.fromkeys(one.ran_with for one in self.shared if one.ran_with))

    @property
    def cost_ratio(self) -> float | None:
        """The geometric mean of the cost ratios of what counts; None where one is not known."""
        ratios = [one.cost_ratio for one in self.counted]
        known = [ratio for ratio in ratios if ratio is not None]
        return geometric_mean(known) if known and len(known) == len(ratios) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of all its runs, each once."""
        return tuple(dict.fromkeys(name for one in self.shared for name in one.names))

    def by_series(self) -> list[MachinePair]:
        """Return the pair for each model and precision; two precisions are one that says so."""
        series: dict[tuple[str, str], list[SharedConfiguration]] = {}
        for one in self.shared:
            series.setdefault(one.series, []).append(replace(one, mixed=None))
        return [MachinePair(self.a, self.b, tuple(part)) for part in series.values()]


#: By the names of a group's runs, the machine whose memory its batch spilled out of.
Spilled = Mapping[tuple[str, ...], str]


def spilled_batches(runs: Iterable[Run]) -> Spilled:
    """Return the groups at and past a cliff of their batch curve."""
    return {
        group.names: group.env
        for curve in batch_curves(runs)
        if (place := cliff_of(curve)) is not None
        for group in curve[place:]
    }


def shared_configurations(
    comparisons: Sequence[Comparison],
    spilled: Spilled,
    prices: Prices = NO_PRICES,
    differing: Collection[str] = MACHINE,
) -> tuple[SharedConfiguration, ...]:
    """Return what each comparison of two machines shows.

    `spilled` are the batches that show a spill of memory and not the machine, `differing` the
    settings between which is compared.
    """

    def spilled_on(one: Comparison) -> str | None:
        machines = [spilled[side.names] for side in (one.a, one.b) if side.names in spilled]
        return f"memory spilled on {' and '.join(machines)}" if machines else None

    def mixed(one: Comparison) -> str | None:
        if one.a.precision == one.b.precision or "precision" in differing:
            return None
        return f"ran in {one.a.precision} and {one.b.precision}"

    return tuple(
        SharedConfiguration(
            comparison=one,
            a=efficiency_of(one.a, prices),
            b=efficiency_of(one.b, prices),
            spilled=spilled_on(one),
            mixed=mixed(one),
        )
        for one in comparisons
    )


def machine_pairs(
    runs: Sequence[Run], prices: Prices = NO_PRICES, reference: str | None = None
) -> list[MachinePair]:
    """Return every two machines with a configuration in common.

    The faster one is over the slower. With `reference` only its pairs, all over it. p-values are
    corrected (Holm) for the configurations of a pair. A label under which several devices ran is
    several machines, each with its device's name.
    """
    machines, spilled = _machines(runs), spilled_batches(runs)
    found = []
    for one, other in combinations(machines, 2):
        if reference not in (None, one, other):
            continue
        a, b = (other, one) if reference == other else (one, other)
        pair = _pair(a, b, machines, spilled, prices)
        if pair is None:
            continue
        mean = pair.mean or mean_ratio([each.comparison.estimate for each in pair.shared])
        if reference is None and mean.ratio < 1:
            pair = _pair(b, a, machines, spilled, prices) or pair
        found.append(pair)
    return found


def _pair(
    a: str, b: str, machines: Mapping[str, Sequence[Group]], spilled: Spilled, prices: Prices
) -> MachinePair | None:
    ours, theirs = machines[a], machines[b]
    pairs = agreeing_pairs(ours, theirs, {*MACHINE, *_unknown(ours, theirs)})
    if not pairs:
        return None
    comparisons = compare_pairs(pairs, METRICS[THROUGHPUT])
    return MachinePair(a, b, shared_configurations(comparisons, spilled, prices))


def machine_names(runs: Sequence[Run]) -> list[str]:
    """Return the machines that measured something, by name."""
    return sorted(_machines(runs))


def _machines(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """The groups of each machine by its name, in the order of their batch curves."""
    groups = [group for curve in batch_curves(runs) for group in curve]
    devices: dict[str, set[str]] = {}
    for group in groups:
        devices.setdefault(group.env, set()).add(group.first.device)
    found: dict[str, list[Group]] = {}
    for group in groups:
        device = f" {group.first.device}" if len(devices[group.env]) > 1 else ""
        found.setdefault(f"{group.env}{device}", []).append(group)
    return found


def _unknown(one: Sequence[Group], other: Sequence[Group]) -> set[str]:
    """The settings that the ledgers of one side lack: a record lacks those without any effect."""
    if not any(group.first.imported_from for group in (*one, *other)):
        return set()
    names = [{name for group in side for name in group.first.settings} for side in (one, other)]
    return names[0] ^ names[1]


def choose_reference(
    pairs: Sequence[MachinePair], machines: Sequence[str], asked: str | None = None
) -> str | None:
    """Return the machine that the others are held against, None where it shares nothing.

    The one asked for, else the one with most configurations in common with others; of several the
    slowest. `pairs` are all of `machines`. Raises `UserError` for one that is not there.
    """
    if asked is not None and asked not in machines:
        names = ", ".join(machines) or "none"
        raise UserError(f"reference={asked!r}: no run is of this machine; there are {names}")
    shared = dict.fromkeys(machines, (0, 0))
    for pair in pairs:
        for name, slower in ((pair.a, 1), (pair.b, 0)):
            number, times_slower = shared[name]
            shared[name] = number + len(pair.shared), times_slower + slower
    best = asked or max(machines, key=lambda name: shared[name], default=None)
    return best if best is not None and shared[best][0] else None
