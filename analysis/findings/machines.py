"""How much faster one machine is than another, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.comparison.machines.speedups import MachinePair, SharedConfiguration, machine_pairs
from analysis.findings.report_finding import ReportFinding
from analysis.runs.quantities import as_fast_as, counted, interval, ratio_digits, three_digits
from analysis.runs.run import Run
from analysis.statistics import RatioEstimate
from bench.config import a_sample


def find_speed_ups(runs: Sequence[Run], prices: Prices = NO_PRICES) -> Iterator[ReportFinding]:
    """Yield a finding for each two machines with a configuration in common."""
    for pair in machine_pairs(runs, prices):
        if pair.counted:
            yield ReportFinding(
                kind="machine speed-up",
                headline=_headline(pair),
                evidence=(
                    *(_line(one) for one in pair.by_series() if one.counted),
                    *(f"{_label(one)}: {one.note}" for one in pair.shared if one.spilled),
                    *_prices(pair, prices),
                ),
                runs=pair.names,
            )


def _headline(pair: MachinePair) -> str:
    """Of one configuration what was trained, of several from where to where."""
    number = len(pair.counted)
    assert pair.mean is not None  # something counts  # noqa: S101
    assert pair.ends is not None  # noqa: S101
    if number == 1:
        (one,) = pair.counted
        words = f"{pair.b} trains {_label(one)} {_mean(pair.mean)} times as fast as {pair.a}"
    else:
        words = (
            f"{pair.b} is {as_fast_as(*pair.ends)} {pair.a}, {_mean(pair.mean)} in "
            f"the geometric mean ({counted(number, 'common configuration')})"
        )
    return f"{words}{_cost_words(pair)}."


def _cost_words(pair: MachinePair) -> str:
    """What a million samples cost: of several configurations by how much more or less."""
    if len(pair.counted) == 1:
        cost = _costs(pair.counted[0])
        return f"; {cost}" if cost else ""
    ratio = pair.cost_ratio
    return (
        ""
        if ratio is None
        else f"; {a_sample(pair.sample)} costs {three_digits(ratio)} times as much"
    )


def _costs(one: SharedConfiguration) -> str:
    """`a million images cost 0.42 USD against 1.3 USD`, as far as prices are known."""
    ours, theirs = (one.b.cost or one.b.spot_cost, one.a.cost or one.a.spot_cost)
    if ours is None or theirs is None:
        return ""
    spot = [" (spot)" if cost.price.spot else "" for cost in (ours, theirs)]
    return f"a million {one.comparison.b.sample}s cost {ours}{spot[0]} against {theirs}{spot[1]}"


def _prices(pair: MachinePair, prices: Prices) -> Iterator[str]:
    """The prices behind the costs, with their dates and sources."""
    known: dict[str, None] = {}
    for one in pair.counted:
        for label, side in ((pair.b, one.b), (pair.a, one.a)):
            for cost in (side.cost, side.spot_cost):
                if cost is not None:
                    known[f"price of {label}: {cost.price.words(prices.today)}"] = None
    yield from known


def _label(one: SharedConfiguration) -> str:
    model, precision = one.series
    return f"{model} {precision} batch {one.comparison.a.batch_size}"


def _line(series: MachinePair) -> str:
    """One model and precision."""
    assert series.mean is not None  # something counts  # noqa: S101
    assert series.ends is not None  # noqa: S101
    ran = f"; ran with {series.ran_with}" if series.ran_with else ""
    name = " ".join(series.counted[0].series)
    mean = _mean(series.mean)
    if len(series.counted) == 1:
        (one,) = series.counted
        cost = _costs(one)
        words = f"{name}: {mean} times at batch {one.comparison.a.batch_size}"
        return f"{words}{f', {cost}' if cost else ''}{ran}"
    cheapest = min(series.counted, key=lambda one: -one.comparison.b.samples_per_s)
    cost = _costs(cheapest)
    at = f"; at batch {cheapest.comparison.a.batch_size} {cost}" if cost else ""
    return (
        f"{name}: {interval(*series.ends)} times, {mean} in the mean of "
        f"{len(series.counted)} batch sizes{at}{ran}"
    )


def _mean(estimate: RatioEstimate) -> str:
    known = estimate.low is not None and estimate.high is not None
    ends = f" (95 %: {interval(estimate.low or 0.0, estimate.high or 0.0)})" if known else ""
    return f"{ratio_digits(estimate.ratio)}{ends}"
