"""When a device is warm, and what a window's times say: made series, and those that others made."""

import math
from random import Random
from statistics import fmean, median

import numpy as np
import pytest
from scipy import signal

from bench.statistics.steady_state import (
    drift,
    is_warm,
    iterations_needed,
    pace_half_width,
    transient,
    window_class,
)


def windows(count, iterations=100, phi=0.0, noise=0.05):
    """Times of 0.1 s with AR(1) noise of that correlation; shape (count, iterations)."""
    shocks = np.random.default_rng(11).standard_normal((count, iterations + 50))
    values = signal.lfilter([1], [1, -phi], shocks, axis=1)[:, 50:] * np.sqrt(1 - phi**2)
    return 0.1 * (1 + noise * values)


@pytest.mark.parametrize(
    ("times_s", "warm"),
    [
        ([1.0, 1.0], False),  # two may agree by chance
        ([1.0, 1.0, 1.0], True),
        ([1.3, 1.1, 1.0], False),
        ([1.3, 1.04, 1.0], False),  # the fastest still falls by over 5 %
        ([1.05, 1.04, 1.0], True),
        ([1.0, 3.0, 1.05], True),  # one was disturbed
        ([1.0, 1.05, 3.0], True),
        ([1.0, 1.06, 1.06], False),
        ([0.5, *[1.0] * 9], False),
        ([0.5, *[1.0] * 10], True),  # the fastest of more than ten was luck
    ],
)
def test_a_device_is_warm_at_its_fastest_pace(times_s, warm):
    assert is_warm(times_s) is warm


def _switching(count, rng):
    """Two levels, 12 % apart, for a sixth to a third of the window in turn."""
    times, slow = [], rng.random() < 0.5
    while len(times) < count:
        slow = not slow
        times += [1.12 if slow else 1.0] * max(5, int(count * rng.uniform(1 / 6, 1 / 3)))
    return times[:count]


#: What an iteration takes by its place, of so many, and the window's class.
SHAPES = {
    "constant": (lambda i, n, rng: 1.0, "flat"),
    "a step up": (lambda i, n, rng: 1 + 0.12 * (i >= 0.6 * n), "slows down"),
    "a step down": (lambda i, n, rng: 1 + 0.2 * (i < 0.2 * n), "settles"),
    "a late step down": (lambda i, n, rng: 1 + 0.2 * (i < 0.6 * n), "settles"),
    "a ramp": (lambda i, n, rng: 1 + 0.2 * i / n, "slows down"),
    "throttling": (lambda i, n, rng: 1 + 0.08 * (i >= 0.4 * n), "slows down"),
    "a warm-up that fades": (lambda i, n, rng: 1 + 0.4 * math.exp(-10 * i / n), "settles"),
    "slow period": (lambda i, n, rng: 1 + 0.1 * math.sin(4 * math.pi * i / n), "never steady"),
    "fast period": (lambda i, n, rng: 1 + 0.06 * (i % 3 == 0), "flat"),
    "garbage collections": (lambda i, n, rng: 1 + 2.0 * (i % 10 == 9), "flat"),
    "heavy tail": (lambda i, n, rng: 1 + 0.02 * rng.paretovariate(1.5), "flat"),
}


@pytest.mark.parametrize("count", [50, 100, 400])
@pytest.mark.parametrize("shape", [*SHAPES, "two modes"])
def test_each_made_series_gets_its_class(shape, count):
    right = 0
    for seed in range(20):
        rng = Random(seed)
        if shape == "two modes":
            made, kind = _switching(count, rng), "never steady"
        else:
            takes, kind = SHAPES[shape]
            made = [takes(i, count, rng) for i in range(count)]
        noisy = made if shape == "constant" else [t * rng.gauss(1, 0.01) for t in made]
        right += window_class(noisy).kind == kind
    assert right >= 18


def test_a_class_says_when_and_by_how_much():
    found = window_class([1.0] * 60 + [1.1] * 40)
    assert (found.kind, found.after, found.before_s, found.after_s) == ("slows down", 60, 1.0, 1.1)
    assert (found.change, found.drift) == pytest.approx((0.1, 0.1))
    found = window_class([1.3] * 10 + [1.0] * 90)
    assert (found.kind, found.after, found.before_s, found.after_s) == ("settles", 10, 1.3, 1.0)
    assert found.drift is None  # what is left of the window is flat
    found = window_class([1.0] * 40 + [1.2] * 30 + [1.05] * 30)
    assert (found.kind, found.after, found.before_s, found.after_s) == (
        *("never steady", 40),
        *(1.0, 1.2),
    )
    assert window_class([1.0] * 14).kind == "unproven"
    assert window_class([1.0] * 15).kind == "flat"
    assert window_class([0.5]).kind == "unproven"


@pytest.mark.parametrize(("last", "kind"), [(1.15, "slows down"), (0.85, "settles")])
def test_a_change_within_the_noise_of_levels_is_a_drift_of_thirds(last, kind):
    noisy = windows(8, 400, noise=0.2)[7]
    assert window_class(noisy.tolist()).kind == "flat"
    noisy[267:] *= last
    found, thirds = window_class(noisy.tolist()), (noisy[:133].tolist(), noisy[267:].tolist())
    assert (found.kind, found.after) == (kind, 267)
    assert (found.before_s, found.after_s) == tuple(map(median, thirds))
    assert found.drift == pytest.approx(found.change)


@pytest.mark.parametrize(
    ("times_s", "cut"),
    [
        ([1.3] * 10 + [1.0] * 50, 10),
        ([1.3] * 3 + [1.0] * 9, 3),
        ([1.3] * 30 + [1.0] * 30, 0),  # of more than a third nobody knows which half lasts
        ([1.0] * 50 + [1.3] * 10, 0),  # never the end
        ([1.04] * 10 + [1.0] * 50, 0),
        ([9.0] + [1.0] * 59, 0),  # one slow iteration is no level
        ([1.3, 1.0, 1.0, 1.0, 1.0], 0),
        ([1.0] * 10 + [1.2] * 50, 10),  # a clock that falls once
        ([1.0] * 10 + [1.2] * 30 + [1.3] * 20, 0),  # and one that goes on falling
    ],
)
def test_a_transient_is_at_the_beginning_and_at_most_a_third(times_s, cut):
    assert transient(times_s) == cut


def test_a_cut_does_not_raise_the_figure_of_a_stationary_window():
    for phi, at_most in ((0.0, 0.08), (0.5, 0.2)):
        series = windows(300, phi=phi).tolist()
        cuts = [transient(times_s) for times_s in series]
        kept = [fmean(one[cut:]) for one, cut in zip(series, cuts, strict=True)]
        gains = [fmean(one) / mean - 1 for one, mean in zip(series, kept, strict=True)]
        assert sum(cut > 0 for cut in cuts) <= at_most * 300
        assert abs(fmean(gains)) < 0.0005
        assert max(map(abs, gains)) < 0.015


def test_the_pace_is_known_by_order_statistics():
    # 25 independent values: the median is between the 8th and the 18th by 1.96 deviations
    times_s = [1 + 0.01 * rank for rank in Random(3).sample(range(25), 25)]
    assert pace_half_width(times_s) == pytest.approx(0.05 / 1.12)
    assert pace_half_width([1.0] * 6) == 0


@pytest.mark.parametrize("count", [*range(3, 20), 40])
def test_the_interval_of_few_iterations_covers_the_95_percent_that_it_says(count):
    """By the binomial distribution of those below the median; no five values can."""
    ordered = [1 + 0.01 * rank for rank in range(count)]
    ends = [rank // 2 if rank % 2 == 0 else -1 - rank // 2 for rank in range(count)]
    alternating = [ordered[end] for end in ends]  # neighbours are not alike
    width = pace_half_width(alternating)
    assert (width is None) == (count < 6)
    if width is not None:
        low = round((count - 1) / 2 - width * median(ordered) / 0.01)
        outside = 2 * sum(math.comb(count, below) for below in range(low + 1)) / 2**count
        assert 0 < outside <= 0.05


@pytest.mark.parametrize("phi", [0.0, 0.4, 0.7])
def test_the_interval_holds_the_pace_also_where_neighbours_are_alike(phi):
    held = [
        abs(median(one) / 0.1 - 1) <= pace_half_width(one) for one in windows(400, phi=phi).tolist()
    ]
    assert 0.88 <= fmean(held) <= 0.99


def test_a_window_needs_as_many_iterations_as_its_noise_asks_for():
    assert iterations_needed([1.0] * 100) == 100
    for noise, most in ((0.07, 199), (0.2, 200)):
        noisy = windows(1, noise=noise)[0].tolist()
        wanted = 100 * (pace_half_width(noisy) / 0.015) ** 2
        assert 100 < iterations_needed(noisy) <= most
        assert iterations_needed(noisy) == min(200, math.ceil(wanted))
    # half the interval of 100 values in two groups is their distance
    assert iterations_needed([1.0, 1.03] * 50) == 100
    assert iterations_needed([1.0, 2.0, 3.0]) == 6  # nothing is known of so few


@pytest.mark.parametrize(
    ("iterations", "phi", "noise", "at_most"),
    [
        (100, 0.0, 0.05, 0.01),
        (100, 0.4, 0.05, 0.015),
        (100, 0.7, 0.05, 0.025),
        (30, 0.7, 0.02, 0.01),
        (15, 0.4, 0.05, 0.04),
    ],
)
def test_noise_is_rarely_called_drift(iterations, phi, noise, at_most):
    found = [drift(one) for one in windows(1000, iterations, phi, noise).tolist()]
    assert sum(one is not None for one in found) <= 1000 * at_most


@pytest.mark.parametrize(("last_s", "drifts"), [(0.1049, False), (0.1051, True), (0.0949, True)])
def test_a_sure_change_is_a_drift_from_5_percent_on(last_s, drifts):
    found = drift([0.1] * 60 + [last_s] * 60)
    assert found == (pytest.approx(last_s / 0.1 - 1) if drifts else None)


def test_a_ramp_is_a_drift_and_slow_iterations_are_none():
    ramps = windows(200, phi=0.3, noise=0.02) * np.linspace(1, 1.15, 100)
    assert sum(drift(one) is not None for one in ramps.tolist()) > 0.95 * 200
    burst = windows(1, noise=0.002)[0].tolist()
    burst[70:98] = [3 * time_s for time_s in burst[70:98]]  # most of the last third
    burst[72::3] = [0.1] * len(burst[72::3])  # but what nothing disturbs is as fast as before
    assert drift(burst) is None
    assert drift([0.1] * 14) is None
