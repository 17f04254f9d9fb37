"""The noise floor of a machine: its scatter, and the smallest change that it leaves to be found."""

import factories as make
import numpy as np
import pytest
from observed import invoke, observation, records_on_disk, repeated

import commands.compare
from analysis.comparison import METRICS, compare_pairs
from analysis.comparison.machines import noise_floor
from analysis.runs.groups import Group
from bench.errors import UserError
from bench.statistics.ratios import smallest_change

THROUGHPUT = METRICS["throughput_images_per_s"]


def noisy(name, count, deviation, seed, **settings):
    rng = np.random.default_rng(seed)
    return repeated(name, 100 * np.exp(deviation * rng.standard_normal(count)), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "deviation"), [(3, 0.01), (5, 0.005), (20, 0.03)])
def test_the_smallest_change_is_found_in_80_of_100_comparisons(count, deviation):
    change = smallest_change(deviation, count)
    rng = np.random.default_rng(3)
    pairs = []
    for number in range(600):
        rates = 100 * np.exp(deviation * rng.standard_normal((2, count)))
        pairs.append(
            (
                Group(tuple(repeated(f"a{number}", rates[0]))),
                Group(tuple(repeated(f"b{number}", rates[1] / (1 + change)))),
            )
        )
    found = [one for pair in pairs for one in compare_pairs([pair], THROUGHPUT)]
    share = sum(one.word == "slower" for one in found) / len(found)
    assert share == pytest.approx(0.8, abs=0.05)


def test_scatter_is_pooled_over_the_configurations_of_a_machine():
    runs = [
        *repeated("a", np.exp([-0.01, 0, 0.01]), env="one"),
        *repeated("b", np.exp([-0.03, 0, 0.03]), env="one", batch_size=20),
        *repeated("c", [1.0, 1.0], env="other"),
        observation("d", batch_size=40),
    ]
    floor = noise_floor(runs, THROUGHPUT)
    assert [row["scatter"] for row in floor["configurations"]] == pytest.approx([0.01, 0.03, 0])
    one, other = floor["machines"]
    assert one["scatter"] == pytest.approx(np.sqrt((2 * 0.01**2 + 2 * 0.03**2) / 4))
    # chi-squared with 4 degrees of freedom: 0.4844 and 11.143
    ends = (one["scatter_low"], one["scatter_high"])
    assert ends == pytest.approx(
        tuple(one["scatter"] * np.sqrt(4 / quantile) for quantile in (11.143, 0.4844)), rel=1e-4
    )
    assert (one["env"], one["repeats"], other["env"]) == ("one", 6, "other")
    assert floor["single"] == [runs[-1].label]
    assert one["smallest_change_3_repeats"] == smallest_change(one["scatter"], 3, among=4)


def test_halves_of_noise_are_rarely_called_different_and_of_two_kinds_often():
    runs = noisy("a", 10, 0.01, seed=3)
    floor = noise_floor(runs, THROUGHPUT, threshold=1e-9)
    (called,) = (row["called_different"] for row in floor["configurations"])
    assert floor["configurations"][0]["halvings"] == 200
    assert 0 < called < 20  # 5 %, both directions
    assert floor["failed"] <= called
    several = noise_floor(runs + noisy("b", 10, 0.01, seed=2, batch_size=20), THROUGHPUT)
    assert several["failed"] == 0
    # half of the runs are 30 % slower, as where two machines carry one label
    rates = np.outer((100, 70), np.exp([-0.001, 0.001])).ravel()
    floor = noise_floor(repeated("a", rates), THROUGHPUT)
    called_different = floor["configurations"][0]["called_different"]
    assert called_different > 30
    assert 0 < floor["failed"] < called_different  # half of them worse


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--aa", "{side}", "{side}"), "aa: takes one side"),
        (("--aa", "{side}", "--price", "lab=1/h"), "aa: the noise floor has no cost"),
        (("{side}",), "B is missing: compare"),
        (("--aa", "{side},run=r1"), "none of 1 configuration has two repeats"),
        (("--aa", "{side}", "--metric", "energy_j"), "none of 0 configurations has two repeats"),
    ],
)
def test_a_noise_floor_that_cannot_be_is_one_line(tmp_path, words, message):
    side = f"records={records_on_disk(tmp_path, *(make.run_record(f'r{n}') for n in (1, 2)))}"
    with pytest.raises(UserError, match=message) as refusal:
        invoke(commands.compare, *(word.format(side=side) for word in words))
    assert "\n" not in str(refusal.value)
