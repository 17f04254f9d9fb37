"""The rule from raw repetitions to a roof."""

import pytest

from bench.records import CeilingSample
from bench.roofs.probe import MINIMUM_REPETITIONS, best_sample, sustained_rate


def sample(name, *rates):
    return CeilingSample(probe=name, math_mode="fp32", quantity="flops_per_s", rates=rates)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((7.0,), 7.0),
        ((1.0, 2.0), 2.0),
        ((4.0, 1.0, 3.0, 2.0), 3.0),
        ((8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), 6.0),
    ],
)
def test_sustained_rate_is_the_upper_quartile_by_nearest_rank(rates, expected):
    assert sustained_rate(rates) == expected


def test_a_burst_in_one_repetition_of_five_does_not_raise_the_rate():
    assert sustained_rate((100.0, 100.0, 100.0, 100.0, 160.0)) == 100.0


def test_interference_in_half_of_the_repetitions_does_not_lower_it():
    assert sustained_rate((100.0, 40.0, 100.0, 100.0, 30.0, 50.0, 100.0, 20.0)) == 100.0


def test_the_best_sample_is_of_the_highest_sustained_rate_not_of_the_highest_single_one():
    steady = sample("steady", *[10.0] * 8)
    bursting = sample("bursting", *[9.0] * 7, 99.0)
    assert best_sample([bursting, steady]) is steady


def test_a_probe_of_few_repetitions_sets_no_roof():
    few = sample("few", *[99.0] * (MINIMUM_REPETITIONS - 1))
    enough = sample("enough", *[10.0] * MINIMUM_REPETITIONS)
    assert best_sample([few, enough]) is enough
    assert best_sample([few]) is None
