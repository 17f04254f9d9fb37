"""How much faster one machine is than another, at the configurations that both measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from analysis.findings.report_finding import ReportFinding, names_of
from analysis.runs.groups import Group, agreeing_pairs, batch_curves, before_cliff, ran_otherwise
from analysis.runs.placed import Run
from analysis.runs.quantities import counted, interval, three_digits
from analysis.runs.what_ran import OF_PRECISION
from analysis.statistics import RatioEstimate, estimate_ratio, mean_ratio

_MACHINE = ("env", "device", "backend")
_Pairs = tuple[tuple[Group, Group], ...]


@dataclass(frozen=True)
class SpeedUp:
    """Images/s of the machine `fast` over those of `slow`, in one model and precision.

    `pairs` are the configurations of both, (slow, fast), which agree in what was asked for. `mean`
    is the geometric mean of their ratios; its interval, of repeats alone, needs repeats in each.
    """

    slow: str
    fast: str
    pairs: _Pairs

    @property
    def arch(self) -> str:
        """The model."""
        return self.pairs[0][0].arch

    @property
    def precision(self) -> str:
        """The precision of both, such as `amp-fp16 -> amp-bf16` where the two ran otherwise."""
        return _precision(self.pairs[0])

    @property
    def estimates(self) -> list[RatioEstimate]:
        """The ratio of each configuration."""
        return [estimate_ratio(fast.repeats(), slow.repeats()) for slow, fast in self.pairs]

    @property
    def mean(self) -> RatioEstimate:
        """The geometric mean of the ratios."""
        return mean_ratio(self.estimates)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest ratio."""
        ratios = [estimate.ratio for estimate in self.estimates]
        return min(ratios), max(ratios)

    @property
    def ran_with(self) -> str:
        """The other settings that differ between the two, as they ran: `threads 2 -> 16`."""
        besides = {*_MACHINE, *OF_PRECISION}
        found = (ran_otherwise(slow, fast, besides) for slow, fast in self.pairs)
        return "; ".join(dict.fromkeys(text for text in found if text))

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of all its runs."""
        return names_of(group for pair in self.pairs for group in pair)


def speed_ups(runs: Sequence[Run]) -> list[SpeedUp]:
    """Return each two machines' speed-up in each model and precision that both measured.

    Batches past a memory spill are left out, as they show the spill and not the machine.
    """
    machines: dict[str, list[Group]] = {}
    for curve in batch_curves(runs):
        machines.setdefault(curve[0].env, []).extend(before_cliff(curve))
    found = []
    for one, other in combinations(machines.values(), 2):
        pairs = tuple(agreeing_pairs(one, other, {*_MACHINE, *_unknown(one, other)}))
        if not pairs:
            continue
        if SpeedUp(one[0].env, other[0].env, pairs).mean.ratio < 1:
            pairs = tuple((fast, slow) for slow, fast in pairs)
        series: dict[tuple[str, str], _Pairs] = {}
        for pair in pairs:
            key = (pair[0].arch, _precision(pair))
            series[key] = (*series.get(key, ()), pair)
        found += [SpeedUp(part[0][0].env, part[0][1].env, part) for part in series.values()]
    return found


def _precision(pair: tuple[Group, Group]) -> str:
    slow, fast = (group.precision_label for group in pair)
    return slow if slow == fast else f"{slow} -> {fast}"


def _unknown(one: Sequence[Group], other: Sequence[Group]) -> set[str]:
    """The settings that the ledgers of one side lack: a record lacks those without any effect."""
    if not any(group.first.imported_from for group in (*one, *other)):
        return set()
    names = [{name for group in side for name in group.first.settings} for side in (one, other)]
    return names[0] ^ names[1]


def find_speed_ups(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each two machines with a configuration in common."""
    machines: dict[tuple[str, str], list[SpeedUp]] = {}
    for one in speed_ups(runs):
        machines.setdefault((one.slow, one.fast), []).append(one)
    for (slow, fast), found in machines.items():
        whole = SpeedUp(slow, fast, tuple(pair for one in found for pair in one.pairs))
        number = len(whole.pairs)
        mean = f", {_mean(whole.mean)} in the geometric mean" if number > 1 else ""
        yield ReportFinding(
            kind="machine speed-up",
            headline=(
                f"{fast} is {interval(*whole.ends)} times as fast as {slow}{mean} "
                f"({counted(number, 'common configuration')})."
            ),
            evidence=tuple(map(_line, found)),
            runs=whole.names,
        )


def _line(one: SpeedUp) -> str:
    ran = f"; ran with {one.ran_with}" if one.ran_with else ""
    if len(one.pairs) == 1:
        batch = one.pairs[0][0].batch_size
        return f"{one.arch} {one.precision}: {_mean(one.mean)} times at batch {batch}{ran}"
    return (
        f"{one.arch} {one.precision}: {interval(*one.ends)} times, {_mean(one.mean)} in the mean "
        f"of {len(one.pairs)} batch sizes{ran}"
    )


def _mean(estimate: RatioEstimate) -> str:
    known = estimate.low is not None and estimate.high is not None
    ends = f" (95 %: {interval(estimate.low or 0.0, estimate.high or 0.0)})" if known else ""
    return f"{three_digits(estimate.ratio)}{ends}"
