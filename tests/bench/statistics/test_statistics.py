"""Intervals that cover what they say, tests that find what is there, and hand-worked cases."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import signal, stats

from bench.errors import Unknown
from bench.statistics.ratios import (
    deciding_repeats,
    estimate_ratio,
    holm,
    joined,
    mean_ratio,
    pooled_scatter,
    repeats_of,
    smallest_change,
    summarised_repeats,
)

#: A case that repeats another in a variant.
LONG = partial(pytest.param, marks=pytest.mark.long)
ITERATIONS = 100


def windows(rng, shape, phi, noise=0.05, between=0.0, step_s=0.1):
    """Iteration times, last axis: AR(1) noise of relative deviation `noise` around each repeat's
    own level, which scatters by `between`."""
    shocks = rng.standard_normal((*shape, ITERATIONS + 100))
    correlated = signal.lfilter([1], [1, -phi], shocks, axis=-1)[..., 100:]
    correlated *= math.sqrt(1 - phi**2) * noise
    levels = np.exp(between * rng.standard_normal((*shape, 1)))
    return step_s * levels * (1 + correlated)


def repeats(times):
    return repeats_of((1 / times.mean(axis=-1)).tolist())


def of_logs(*logs):
    return repeats_of([math.exp(log) for log in logs])


def covered(estimates, truth):
    """The share of intervals that hold the truth."""
    return np.mean([one.interval.low <= truth <= one.interval.high for one in estimates])


@pytest.mark.parametrize("phi", [0.7, LONG(0.0)])  # the correlation of neighbouring iterations
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_of_repeats_covers_95_times_in_100(phi, count):
    times = windows(np.random.default_rng(8), (3000, count), phi, between=0.03)
    assert 0.93 <= covered(map(repeats, times), 10.0) <= 0.97


@pytest.mark.parametrize(
    ("phi", "ours", "theirs", "scatter"),  # of theirs over that of ours
    [
        *((0.7, ours, theirs, 1.0) for ours, theirs in ((3, 3), (1, 3))),
        *(LONG(phi, *sides, 1.0) for phi in (0.0, 0.7) for sides in ((5, 5), (3, 5), (1, 5))),
        *(LONG(0.0, *sides, 1.0) for sides in ((3, 3), (1, 3))),
        *((0.5, 2, 5, scatter) for scatter in (0.5, 1.0, 2.0)),
        *(LONG(0.5, *sides, x) for sides in ((2, 10), (3, 10)) for x in (0.5, 1.0, 2.0)),
    ],
)
@pytest.mark.slow
def test_the_interval_of_a_ratio_covers_95_times_in_100(phi, ours, theirs, scatter):
    """Also of few repeats against many, however the many scatter."""
    rng = np.random.default_rng(9)
    a = windows(rng, (5000, ours), phi, between=0.03, step_s=0.1)
    b = windows(rng, (5000, theirs), phi, between=0.03 * scatter, step_s=0.12)
    found = [estimate_ratio(repeats(x), repeats(y)) for x, y in zip(a, b, strict=True)]
    assert 0.93 <= covered(found, 1.2) <= (0.97 if phi != 0.5 else 0.975)


def fleet(rng, machines, count, between, kind):
    """Repeats of `machines` machines whose levels scatter by `between`, their repeats by 0.3 %."""
    levels = between * rng.standard_normal((machines, 1))
    rates = np.exp(levels + 0.003 * rng.standard_normal((machines, count)))
    names = [f"{kind} {machine}" for machine in range(machines) for _ in range(count)]
    return joined([repeats_of([rate]) for rate in rates.flat], names)


@pytest.mark.parametrize(("machines", "count"), [(3, 5), (5, 2), LONG(2, 5), LONG(8, 1)])
@pytest.mark.slow
def test_with_several_machines_a_side_the_interval_covers_their_kind(machines, count):
    """Machines that scatter by 0.6 %, as 39 published ones of one kind do."""
    rng = np.random.default_rng(11)
    sides = [[fleet(rng, machines, count, 0.006, kind) for _ in range(1500)] for kind in "ab"]
    found = [estimate_ratio(a, b) for a, b in zip(*sides, strict=True)]
    assert {one.scope for one in found} == {"this kind of machine"}
    assert 0.93 <= covered(found, 1) <= 0.98
    assert 0.93 <= covered(sides[0], 1) <= 0.97


def test_one_machine_a_side_is_covered_alone():
    """The ratio of two machines is covered, that of their kinds (1) is not, and nothing says so."""
    rng = np.random.default_rng(12)
    inside, found = [], []
    for _ in range(1500):
        levels = 0.006 * rng.standard_normal((2, 1))
        rates = np.exp(levels + 0.003 * rng.standard_normal((2, 5)))
        a, b = (joined([repeats_of([rate]) for rate in one], ["m"] * 5) for one in rates)
        found.append(estimate_ratio(a, b))
        inside.append(covered(found[-1:], math.exp(levels[0, 0] - levels[1, 0])))
    assert {one.scope for one in found} == {"this machine"}
    assert 0.93 <= np.mean(inside) <= 0.97
    assert covered(found, 1) < 0.6


def test_welch_by_hand():
    """Logs 1, 2, 3 against 1, 3, 5: variances 1 and 4, so the error is sqrt(1/3 + 4/3)."""
    found = estimate_ratio(of_logs(1, 2, 3), of_logs(1, 3, 5))
    assert found.ratio == pytest.approx(math.exp(-1))
    # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 25/9 / (17/18) = 50/17
    assert found.error == pytest.approx((math.sqrt(5 / 3), 50 / 17))
    assert found.p_below(1.0) == pytest.approx(
        stats.ttest_ind([1, 2, 3], [1, 3, 5], equal_var=False, alternative="less").pvalue
    )
    assert found.p_above(1.0) == pytest.approx(1 - found.p_below(1.0))


def test_a_mean_of_ratios_by_hand():
    """Squares of errors add up; Satterthwaite weighs degrees of freedom by their fourth powers."""
    one = estimate_ratio(joined([of_logs(0, 6)], ["m"]), joined([of_logs(0)], ["n"]))
    other = estimate_ratio(of_logs(1, 5), of_logs(0, 4))
    found = mean_ratio([one, other])
    a, b = one.error, other.error
    assert found.ratio == pytest.approx(math.sqrt(one.ratio * other.ratio))
    square = a.deviation**2 + b.deviation**2
    degrees = square**2 / (a.deviation**4 / a.degrees + b.deviation**4 / b.degrees)
    assert found.error == pytest.approx((math.sqrt(square) / 2, degrees))
    assert found.scope == "these runs"


@pytest.mark.parametrize(
    ("ours", "theirs", "sure"),
    [
        ([103.0, 103.0], [100.0, 100.0], False),  # 102.5 over 100.5 is less than 1.02
        ([103.0, 103.0], [100.0], False),
        ([103.125, 103.125], [100.0, 100.0], False),  # of one side the decimals are not known
        ([1031.25, 1031.25], [1000.25, 1000.25], True),
    ],
)
def test_equal_repeats_are_only_as_sure_as_their_last_digit(ours, theirs, sure):
    found = estimate_ratio(repeats_of(ours), repeats_of(theirs))
    assert found.p_above(1.02) > 0
    assert (found.interval.low > 1.02) == sure
    assert repeats_of(ours).relative_deviation == 0


def test_the_interval_of_repeats_by_hand():
    """Logs 1, 2, 3: mean 2, error 1 / sqrt(3), Student's t with 2 degrees is 4.30265."""
    found = of_logs(1, 2, 3)
    assert found.centre == pytest.approx(math.exp(2))
    half = 4.30265 / math.sqrt(3)
    assert np.log(found.interval) == pytest.approx((2 - half, 2 + half), rel=1e-5)
    assert not repeats_of([5.0]).interval


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [-1.0]])
def test_repeats_without_a_logarithm_are_refused(values):
    with pytest.raises(ValueError, match="above 0"):
        repeats_of(values)


def test_groups_of_repeats_join_as_if_they_had_been_one():
    whole = repeats_of([1.0, 2.0, 3.0, 4.0, 5.0])
    parts = joined([repeats_of([1.0, 2.0]), repeats_of([3.0, 4.0]), repeats_of([5.0])])
    assert parts.count == 5
    assert parts.log_mean == pytest.approx(whole.log_mean)
    assert parts.log_variance == pytest.approx(whole.log_variance)
    assert joined([repeats_of([1.0]), summarised_repeats(2.0, None, 3)]).log_variance is None
    known = summarised_repeats(100.0, 2.0, 3)
    assert (known.centre, known.relative_deviation) == pytest.approx((100, 0.02))
    assert summarised_repeats(100.0, 2.0, 1).log_variance is None  # one has no deviation


def test_scatter_is_pooled_by_degrees_of_freedom():
    """Variances 2 with 1 degree and 1 with 2: (2 + 2) / 3. A single repeat has no say."""
    found = pooled_scatter([of_logs(0, 2), of_logs(1, 2, 3), of_logs(9)])
    assert found == pytest.approx((math.sqrt(4 / 3), 3))
    assert not pooled_scatter([of_logs(1)])


@pytest.mark.parametrize("among", [1, 20])
def test_so_many_repeats_find_the_change_that_is_there(among):
    """One fewer finds only a larger change: the two formulas are one."""
    a, b = repeats_of([100.0, 103.0, 97.0]), repeats_of([106.0, 109.0, 103.0])
    number = deciding_repeats(a, b, 1.02, 0.025 / among)
    deviation = math.sqrt((a.log_variance + b.log_variance) / 2)
    change = math.exp(b.log_mean - a.log_mean) - 1
    assert number > 3
    assert smallest_change(deviation, number, among=among) <= change
    assert smallest_change(deviation, 3, among=among) > change
    assert deciding_repeats(a, a, 1.0, 0.025) == Unknown("over 50")  # none decides for equal sides


def test_holm_by_hand():
    """0.01 x 4, 0.02 x 3, 0.03 x 2, then 0.04 may not fall under 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
