"""A machine by itself: how far noise alone goes, whether it is odd, and what an hour of it costs.

Repeats of one configuration differ only by noise: their scatter says how large a change has to be
to be found, and their halves against each other (A/A) how often noise is called a change. There is
no price here: they differ by region, contract and week.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from analysis.comparison.judgement import ComparedMetric, compare_pairs
from analysis.presentation.columns import Row
from analysis.presentation.table import grouped, read_rows
from analysis.presentation.words import counted, percent, three_digits, whole_number
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from bench.config import THROUGHPUT
from bench.errors import Unknown, UserError
from bench.records import Environment
from bench.records.environment import alike_devices
from bench.statistics.ratios import POWER, pooled_scatter, smallest_change
from bench.statistics.series import FEWEST_MACHINES, chances_of_outlying

#: Repeats on each side for which the smallest change is stated.
REPEATS = (3, 5, 10, 20)
#: Random halvings of the same runs; fewer repeats than four are not halved.
HALVINGS, _FEWEST_TO_HALVE = 200, 4
#: The chance of a false alarm, and a change that is of no consequence, as in a comparison.
_LEVEL, _THRESHOLD = 0.05, 0.02


def noise_floor(
    runs: Sequence[Run], metric: ComparedMetric, *, threshold: float = _THRESHOLD
) -> dict[str, Any]:
    """Return how much the repeats of `runs` scatter and which changes that leaves to be found.

    A row has `scatter`, the relative deviation between repeats, with its interval by chi-squared;
    the smallest change as a share for each of `REPEATS`, among as many configurations as there are;
    and in how many of `halvings` its halves were called different. In `failed` of them some
    configuration was called worse. `single` have one repeat. Raises `UserError` where all do.
    """
    from scipy import stats

    groups = group_runs(runs, metric.name)
    scattered = [group for group in groups if group.repeats(metric.name).log_variance is not None]
    if not scattered:
        raise UserError(
            f"none of {counted(len(groups), 'configuration')} has two repeats with a "
            f"{metric.name}: measure five of each, with --repeats 5"
        )
    halved = [group for group in scattered if len(group.runs) >= _FEWEST_TO_HALVE]
    different, failed, rng = Counter[tuple[str, ...]](), 0, np.random.default_rng(0)
    for _ in range(HALVINGS if halved else 0):
        pairs = []
        for group in halved:
            order = [group.runs[index] for index in rng.permutation(len(group.runs))]
            middle = len(order) // 2
            pairs.append((Group(tuple(order[:middle])), Group(tuple(order[middle:]))))
        words = [one.judgement for one in compare_pairs(pairs, metric, threshold=threshold)]
        both = zip(halved, words, strict=True)
        different.update(group.names for group, word in both if word in ("better", "worse"))
        failed += "worse" in words

    def row(label: str, members: Sequence[Group]) -> Row:
        repeats = [group.repeats(metric.name) for group in members]
        scatter = pooled_scatter(repeats)
        assert scatter  # each has a variance  # noqa: S101
        deviation, degrees = scatter
        low, high = deviation * np.sqrt(degrees / stats.chi2.ppf((0.975, 0.025), degrees))
        smallest = partial(smallest_change, deviation, threshold=threshold, among=len(groups))
        return {
            "env": members[0].env,
            "configuration": label,
            "repeats": sum(one.count for one in repeats),
            "scatter": deviation,
            "scatter_low": float(low),
            "scatter_high": float(high),
            **{f"smallest_change_{number}_repeats": smallest(number) for number in REPEATS},
        }

    halves = {group.names: {"called_different": different[group.names], "halvings": HALVINGS}
              for group in halved}  # fmt: skip
    machines = grouped(scattered, lambda group: group.env).values()
    return {
        "metric": metric.name,
        "threshold": threshold,
        "configurations": [
            row(group.label, [group]) | halves.get(group.names, {}) for group in scattered
        ],
        "machines": [row("all configurations", members) for members in machines],
        "halvings": HALVINGS if halved else 0,
        "failed": failed,
        "single": [group.label for group in groups if group not in scattered],
        "power": POWER,
        "change_at_repeats": list(REPEATS),
    }


class OfKind(NamedTuple):
    """A machine in one configuration: its mean over that of the `others` that are not odd.

    It is odd where that differs by more than 2 %, and lies so far out seldom enough by chance:
    `p_value`, raised for the number of configurations.
    """

    machine: str
    group: Group
    ratio: float
    p_value: float
    odd: bool
    others: int

    def compared(self, less: str, more: str) -> str:
        """Return `4.1 % slower than 7 other machines of its kind in ...`."""
        group = self.group
        return (
            f"{percent(abs(self.ratio - 1))} {less if self.ratio < 1 else more} than {self.others} "
            f"other machines of its kind in {group.model_label} {group.precision_label} "
            f"batch {group.batch_size}"
        )


def same_kinds(runs: Sequence[Run], metric: str = THROUGHPUT) -> list[OfKind]:
    """Return each machine in each configuration that at least four of its kind ran.

    A machine is known by its identity, without one by its label.
    """
    kinds: list[Environment] = []

    def kind(run: Run) -> int | None:
        """A number of the kind of device: two of one name may have other memory or cores."""
        environment = run.record.environment if run.record else None
        if environment is None:
            return None
        if not any(alike_devices(known, environment) for known in kinds):
            kinds.append(environment)
        return next(n for n, known in enumerate(kinds) if alike_devices(known, environment))

    measured = (run for group in group_runs(runs, metric) for run in group.runs)
    alike = grouped(measured, lambda run: (run.identity.key(("env",)), kind(run))).values()
    machines = [grouped(own, lambda run: run.machine or run.env) for own in alike]
    enough = [own for own in machines if len(own) >= FEWEST_MACHINES]
    judged = []
    for own in enough:
        groups = {name: Group(tuple(runs)) for name, runs in own.items()}
        labels = Counter(group.env for group in groups.values())
        repeats = [group.repeats(metric) for group in groups.values()]
        scatter = pooled_scatter(repeats)
        errors = [scatter.deviation / math.sqrt(one.count) for one in repeats] if scatter else []
        means = [one.log_mean for one in repeats]
        p_values = [min(1.0, len(enough) * p) for p in chances_of_outlying(means, errors)]
        both = [*zip(means, p_values, strict=True)]
        centre = fmean(mean for mean, p in both if p > _LEVEL)
        odd = [p <= _LEVEL and abs(mean - centre) > math.log1p(_THRESHOLD) for mean, p in both]
        for (name, group), (mean, p), is_odd in zip(groups.items(), both, odd, strict=True):
            label = group.env if labels[group.env] == 1 else f"{group.env} ({name})"
            others = odd.count(False)
            judged.append(OfKind(label, group, math.exp(mean - centre), p, is_odd, others))
    return judged


def odd_machines(runs: Sequence[Run], metric: str = THROUGHPUT) -> dict[str, list[OfKind]]:
    """Return by its label the configurations in which a machine is odd, the worst first."""
    odd = [one for one in same_kinds(runs, metric) if one.odd]
    worst_first = sorted(odd, key=lambda one: -abs(one.ratio - 1))
    found = grouped(worst_first, lambda one: one.machine)
    return {label: found[label] for label in dict.fromkeys(one.machine for one in odd)}


_BY_OPTION = "given by --price"
_OPTION = re.compile(
    r"(?P<machine>[^=]*\S)\s*=\s*(?P<per_h>[^\sA-Za-z/]+|[A-Za-z]+)\s*(?P<currency>[A-Za-z]{3})?"
    r"\s*/\s*h(?P<spot>\s+spot)?(\s+(?P<date>\S+))?",
    re.IGNORECASE,
)
_PER_H = {"price_per_h": False, "spot_price_per_h": True}
_COLUMNS = ("machine", *_PER_H, "currency", "date", "source")
#: The form of each text of a price, and what to give.
_FORMS = {
    "machine": (".+", "the name of a machine"),
    "per_h": (r"(?=.*[1-9])(\d+\.?\d*|\.\d+)", "a number above 0, such as 1.25"),
    "currency": ("[A-Z]{3}", "three capital letters, such as USD"),
    "date": (r"(\d{4}-\d\d-\d\d)?", "a day, such as 2026-11-28"),
    "source": (".+", "where the price stands"),
}


class Price(NamedTuple):
    """What an hour of a whole machine costs, however much of it a run uses.

    `machine` is its label, its cloud machine type or its device. `spot` is of a machine that may be
    taken away. `date` is None where an option did not give it.
    """

    machine: str
    per_h: float
    currency: str
    spot: bool
    date: dt.date | None
    source: str

    @classmethod
    def of(cls, texts: Mapping[str, str], *, spot: bool) -> Price:
        """Return the price of texts; raises `ValueError` with the text that is none."""
        for name, (form, remedy) in _FORMS.items():
            if not re.fullmatch(form, texts[name]):
                raise ValueError(f"{name}={texts[name]!r}: give {remedy}")
        try:
            date = dt.date.fromisoformat(texts["date"]) if texts["date"] else None
        except ValueError as error:
            raise ValueError(f"date={texts['date']!r}: {error}") from None
        if date and date > dt.datetime.now(dt.timezone.utc).date():
            raise ValueError(f"date={texts['date']!r}: it is to come")
        rate, currency = float(texts["per_h"]), texts["currency"]
        return cls(texts["machine"], rate, currency, spot, date, texts["source"])

    def __str__(self) -> str:
        """The price with its date and its source."""
        kind, when = " spot" if self.spot else "", f"of {self.date}" if self.date else "undated"
        return f"{three_digits(self.per_h)} {self.currency}/h{kind}, {when}, {self.source}"

    @property
    def row(self) -> Row:
        """The price by the names of columns."""
        date = self.date and self.date.isoformat()
        return {"price_per_h": self.per_h, "currency": self.currency, "price_date": date,
                "price_source": self.source}  # fmt: skip


class Cost(NamedTuple):
    """What a million samples cost, in the currency of `price`, from which it follows."""

    per_million_samples: float
    price: Price

    def __str__(self) -> str:
        return f"{three_digits(self.per_million_samples)} {self.price.currency}"


class Prices(tuple[Price, ...]):
    """The prices that a user gave by option and by table; those of options go first."""

    def cost(self, group: Group, *, spot: bool = False) -> Cost | Unknown:
        """Return what a million samples cost by a group's rate, or why that is not known.

        Price per hour x machines / 3600 / (samples/s) x 10^6. A machine's label goes before its
        type, and that before its device; of several rows the newest.
        """
        machines = whole_number(group.first.settings.get("nodes")) or 1
        return self.cost_at(machine_names(group.first), group.samples_per_s / machines, spot=spot)

    def cost_at(
        self, names: Sequence[str], samples_per_s: float, *, spot: bool = False
    ) -> Cost | Unknown:
        """Return what a million samples cost on a machine of these names, the first one's first."""
        folded = [*map(_folded, names)]

        def rank(price: Price) -> tuple[object, ...]:
            name = -folded.index(_folded(price.machine))
            return price.source == _BY_OPTION, name, price.date or dt.date.max

        fitting = (p for p in self if p.spot == spot and _folded(p.machine) in folded)
        if (price := max(fitting, key=rank, default=None)) is None:
            kind = "spot price" if spot else "price"
            return Unknown(f"no {kind} was given for its label, machine type or device")
        return Cost(1e6 * price.per_h / 3600 / samples_per_s, price)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `UserError` for an option's machine that is none of `names`."""
        present = {_folded(name): name for name in names}
        for price in self:
            if price.source == _BY_OPTION and _folded(price.machine) not in present:
                raise UserError(
                    f"--price {price.machine}=...: no run is of a machine, machine type or device "
                    f"of this name; there are {', '.join(sorted(present.values())) or 'none'}"
                )


NO_PRICES = Prices()


def machine_names(run: Run) -> list[str]:
    """Return what a price may call the machine of a run: its label, its type, its device."""
    environment = run.record.environment if run.record else None
    machine_type = environment.cloud_machine_type if environment else None
    names = (run.env, machine_type, run.settings.get("device"))
    return [name for name in names if name and name != "auto"]


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def gather_prices(options: Sequence[str], table: Path | None) -> Prices:
    """Return the prices of `--price` options and of a CSV file; an option goes before the file.

    `docs/compare.md` has both forms. Raises `UserError` for what is not a price, with the line of
    the file, and for two of one machine.
    """
    given: dict[tuple[str, bool], Price] = {}
    usual = {"currency": "USD", "date": "", "source": _BY_OPTION}
    for text in options:
        try:
            if (match := _OPTION.fullmatch(text.strip())) is None:
                raise ValueError("no price per hour of a machine")
            texts = usual | {name: value for name, value in match.groupdict().items() if value}
            price = Price.of(texts, spot="spot" in texts)
        except ValueError as error:
            example = "write --price gcp-l4=0.71/h, or 'gcp-l4=0.21 EUR/h spot 2026-11-01'"
            raise UserError(f"--price {text!r}: {error}; {example}") from None
        if given.setdefault((_folded(price.machine), price.spot), price) is not price:
            raise UserError(f"--price {price.machine}: given twice; keep one of them")
    if table is None:
        return Prices(given.values())
    rows = read_rows(
        table,
        f"prices={str(table)!r}",
        _COLUMNS,
        lambda row: _of_row(row, table.name),
        lambda price: {(_folded(price.machine), price.spot, price.date): repr(price.machine)},
    )
    return Prices((*given.values(), *rows))


def _of_row(row: Mapping[str, str], file: str) -> Iterator[Price]:
    """The prices of a row, on demand and spot."""
    if unknown := [name for name in row if name not in _COLUMNS]:
        raise ValueError(f"unknown column {unknown[0]!r}; known are {', '.join(_COLUMNS)}")
    texts = {name: row.get(name, "").strip() for name in _COLUMNS}
    if not any(texts[name] for name in _PER_H):
        raise ValueError(f"no price: fill in {' or '.join(_PER_H)}")
    for name, spot in _PER_H.items():
        if texts[name]:
            price = Price.of(texts | {"per_h": texts[name]}, spot=spot)
            yield price._replace(source=f"{price.source} ({file})")
