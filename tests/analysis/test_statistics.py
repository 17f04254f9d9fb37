"""Intervals that cover what they say, tests that find what is there, and hand-worked cases."""

import functools
import math

import numpy as np
import pytest
from scipy import signal, stats

from analysis.statistics import (
    benjamini_hochberg,
    estimate_ratio,
    find_outliers,
    holm,
    repeats_of,
)
from analysis.statistics.repeats import joined, summarised_repeats

ITERATIONS = 100
LONG = functools.partial(pytest.param, marks=pytest.mark.long)
#: The correlation of neighbouring iterations.
PHI = pytest.mark.parametrize("phi", [0.7, LONG(0.0)])


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


@PHI
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_of_repeats_covers_95_times_in_100(phi, count):
    rng = np.random.default_rng(8)
    times = windows(rng, (3000, count), phi, between=0.03)
    found = [repeats(one).interval() for one in times]
    covered = np.mean([one.low <= 10.0 <= one.high for one in found])
    assert 0.93 <= covered <= 0.97


@PHI
@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (1, 3), LONG(5, 5), LONG(3, 5), LONG(1, 5)])
@pytest.mark.slow
def test_the_interval_of_a_ratio_covers_95_times_in_100(phi, ours, theirs):
    rng = np.random.default_rng(9)
    a = windows(rng, (6000, ours), phi, between=0.03, step_s=0.1)
    b = windows(rng, (6000, theirs), phi, between=0.03, step_s=0.12)
    found = [estimate_ratio(repeats(x), repeats(y)) for x, y in zip(a, b, strict=True)]
    covered = np.mean([one.low <= 1.2 <= one.high for one in found])
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize(("few", "many"), [(2, 5), LONG(2, 10), LONG(3, 10)])
@pytest.mark.parametrize("scatter", [0.5, 1.0, 2.0])
@pytest.mark.slow
def test_few_repeats_against_many_cover_95_times_in_100_however_the_many_scatter(
    scatter, few, many
):
    rng = np.random.default_rng(10)
    a = windows(rng, (4000, few), 0.5, between=0.03)
    b = windows(rng, (4000, many), 0.5, between=0.03 * scatter)
    found = [estimate_ratio(repeats(x), repeats(y)) for x, y in zip(a, b, strict=True)]
    assert 0.93 <= np.mean([one.low <= 1 <= one.high for one in found]) <= 0.975


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
    assert {one.covers for one in found} == {"this kind of machine"}
    assert 0.93 <= np.mean([one.low <= 1 <= one.high for one in found]) <= 0.98
    alone = [one.interval() for one in sides[0]]
    assert 0.93 <= np.mean([one.low <= 1 <= one.high for one in alone]) <= 0.97


def test_one_machine_a_side_is_covered_alone():
    """The ratio of two machines is covered, that of their kinds (1) is not, and nothing says so."""
    rng = np.random.default_rng(12)
    inside = kind = 0
    for _ in range(1500):
        levels = 0.006 * rng.standard_normal((2, 1))
        rates = np.exp(levels + 0.003 * rng.standard_normal((2, 5)))
        a, b = (joined([repeats_of([rate]) for rate in one], ["m"] * 5) for one in rates)
        found = estimate_ratio(a, b)
        assert found.covers == "this machine"
        inside += found.low <= math.exp(levels[0, 0] - levels[1, 0]) <= found.high
        kind += found.low <= 1 <= found.high
    assert 0.93 <= inside / 1500 <= 0.97
    assert kind / 1500 < 0.6


def test_one_window_on_each_side_gives_a_ratio_without_an_interval():
    found = estimate_ratio(repeats_of([20.0]), repeats_of([10.0]))
    assert found.ratio == pytest.approx(2)
    assert (found.low, found.high, found.deviation) == (None, None, None)
    assert found.p_above(1.0) is None
    assert found.p_below(1.0) is None
    assert "repeat-to-repeat variance unknown" in found.method


def test_welch_by_hand():
    """Logs 1, 2, 3 against 1, 3, 5: variances 1 and 4, so the error is sqrt(1/3 + 4/3)."""
    a = repeats_of([math.exp(x) for x in (1, 2, 3)])
    b = repeats_of([math.exp(x) for x in (1, 3, 5)])
    found = estimate_ratio(a, b)
    assert found.ratio == pytest.approx(math.exp(-1))
    assert found.deviation == pytest.approx(math.sqrt(5 / 3))
    # (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 25/9 / (17/18) = 50/17
    assert found.degrees == pytest.approx(50 / 17)
    assert found.p_below(1.0) == pytest.approx(
        stats.ttest_ind([1, 2, 3], [1, 3, 5], equal_var=False, alternative="less").pvalue
    )
    assert found.p_above(1.0) == pytest.approx(1 - found.p_below(1.0))


def test_one_repeat_against_three_by_hand():
    """Logs 4 against 1, 2, 3: the only variance is 1, the error sqrt(1 + 1/3), with 2 degrees."""
    found = estimate_ratio(repeats_of([math.exp(4)]), repeats_of([math.exp(x) for x in (1, 2, 3)]))
    assert found.deviation == pytest.approx(math.sqrt(4 / 3))
    assert found.degrees == 2
    half = 4.30265 * math.sqrt(4 / 3)
    assert math.log(found.high) == pytest.approx(2 + half, rel=1e-5)
    assert math.log(found.low) == pytest.approx(2 - half, rel=1e-5)


def test_repeats_that_came_without_their_scatter_add_no_degrees_of_freedom():
    found = estimate_ratio(repeats_of([100.0, 110.0]), summarised_repeats(100.0, None, 10))
    assert found.degrees == 1
    assert found.low < 0.6


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
    assert (found.low > 1.02) == sure
    assert repeats_of(ours).relative_deviation == 0


def test_the_interval_of_repeats_by_hand():
    """Logs 1, 2, 3: mean 2, error 1 / sqrt(3), Student's t with 2 degrees is 4.30265."""
    found = repeats_of([math.exp(x) for x in (1, 2, 3)]).interval()
    assert found.value == pytest.approx(math.exp(2))
    assert math.log(found.high) == pytest.approx(2 + 4.30265 / math.sqrt(3), rel=1e-5)
    assert repeats_of([5.0]).interval().low is None


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


def test_outliers_are_named_and_their_weight_told():
    """Nine of 0.1 s and one of 0.2 s: the mean is 0.11, of which the outlier adds 0.01."""
    found = find_outliers([0.1] * 4 + [0.2] + [0.1] * 5)
    assert (found.slow, found.fast, found.count) == ((4,), (), 1)
    assert found.share_of_mean == pytest.approx(0.01 / 0.11)
    assert find_outliers([0.1] * 9 + [0.01]).fast == (9,)
    assert find_outliers([0.1, 0.1001, 0.1]).count == 0


def test_corrections_by_hand():
    """Holm: 0.01 x 4, 0.02 x 3, 0.03 x 2, then 0.04 may not fall under 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    # of Benjamini and Hochberg: 0.04 x 4/4, 0.03 x 4/3, 0.005 x 4/2, 0.004 x 4/1, never rising
    assert benjamini_hochberg([0.04, 0.004, 0.03, 0.005]) == pytest.approx([0.04, 0.01, 0.04, 0.01])
