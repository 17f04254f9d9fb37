"""The one rule of drift, on simulated windows: steady, ramped, stepped and correlated."""

import numpy as np
import pytest
from scipy import signal, special

from bench.records.run_verdict import lag_one_correlation, window_drift


def windows(count, iterations=100, phi=0.0, noise=0.05):
    """Times of 0.1 s with AR(1) noise of that correlation; shape (count, iterations)."""
    shocks = np.random.default_rng(11).standard_normal((count, iterations + 50))
    values = signal.lfilter([1], [1, -phi], shocks, axis=1)[:, 50:] * np.sqrt(1 - phi**2)
    return 0.1 * (1 + noise * values)


def share_drifting(times):
    return np.mean([window_drift(one).is_drifting for one in times.tolist()])


@pytest.mark.parametrize(
    ("iterations", "phi", "noise", "at_most"),
    [
        (100, 0.0, 0.05, 0.01),
        (100, 0.4, 0.05, 0.015),
        (100, 0.7, 0.05, 0.025),
        (100, 0.7, 0.10, 0.025),
        (30, 0.7, 0.02, 0.01),
        (30, 0.7, 0.05, 0.07),
        (15, 0.4, 0.05, 0.04),
    ],
)
def test_noise_is_rarely_called_drift(iterations, phi, noise, at_most):
    assert share_drifting(windows(1000, iterations, phi, noise)) <= at_most


def test_a_ramp_and_a_step_are_found_and_placed():
    times = windows(200, phi=0.3, noise=0.02)
    assert share_drifting(times * np.linspace(1, 1.15, 100)) > 0.95
    times[:, 60:] *= 1.1
    assert share_drifting(times) > 0.95
    found = [window_drift(one) for one in times.tolist()]
    assert np.median([one.changed_at for one in found]) == 60
    assert np.median([one.change for one in found]) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("last_s", "drifting"), [(0.1049, False), (0.1051, True), (0.0949, True)])
def test_a_sure_change_is_a_drift_from_5_percent_on(last_s, drifting):
    found = window_drift([0.1] * 60 + [last_s] * 60)
    assert found.change == pytest.approx(last_s / 0.1 - 1)
    assert found.p_value < 1e-6
    assert found.changed_at == 60
    assert found.is_drifting is drifting


def test_equal_times_have_not_changed():
    found = window_drift([0.1] * 15)
    assert (found.change, found.p_value, found.is_drifting) == (0, 1, False)


def test_one_slow_iteration_is_no_drift():
    times = windows(1, noise=0.002)[0].tolist()
    times[95] *= 5
    found = window_drift(times)
    assert found.change > 0.1
    assert not found.is_drifting


def test_fewer_than_15_iterations_say_nothing():
    assert window_drift([0.1] * 14) is None


def test_the_p_value_by_the_table_of_t():
    """Thirds of 10 with squares of 8 about means of 2 and 3; 2 (10 - 1) = 18 degrees."""
    found = window_drift([1.0, 3.0, 2.0, 3.0, 1.0] * 2 + [2.0] * 10 + [2.0, 4.0, 3.0, 4.0, 2.0] * 2)
    error = np.sqrt(8 / 9 * (10 / 9) * 2 / 10)  # ten values about their own mean: 10/9
    assert found.p_value == pytest.approx(2 * special.stdtr(18, -1 / error), rel=0.01)


def test_the_lag_one_correlation_by_hand():
    """Deviations -1, 0, 1, 0 x 5: products of neighbours sum to 0; the bias puts 1/n back."""
    assert lag_one_correlation([0, 1, 2, 1] * 5) == pytest.approx(1 / 20)
    assert lag_one_correlation([0, 1] * 10) == 0  # neighbours that differ count as independent
    assert lag_one_correlation([3.0] * 10) == 0


def test_the_correlation_is_found_without_bias():
    found = np.mean([lag_one_correlation(one) for one in windows(1000, phi=0.6).tolist()])
    assert found == pytest.approx(0.6, abs=0.015)
