"""The stopping rule against noise whose truth is known."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from bench.statistics.ratios import of_logs, paired_ratio
from campaigns.search import (
    ADOPTION_ERROR,
    FAR_SLOWER,
    LAST_TEST,
    LOSS_ERROR,
    judge_pairs,
)

COMPARISONS = 6  # of one search
SEARCHES = 300


def normal(deviation):
    return lambda random: deviation * random.gauss(0, 1)


def heavy_tailed(random):
    """Student's t with three degrees of freedom: now and then a run is far off."""
    return 0.006 * random.gauss(0, 1) / math.sqrt(random.gammavariate(1.5, 2) / 3)


def sometimes_disturbed(random):
    """One run in ten is slowed, by up to a tenth."""
    return 0.005 * random.gauss(0, 1) - (random.random() < 0.1) * random.uniform(0, 0.1)


def ruled(effect, draw):
    """Share of each ruling, and pairs per comparison, over searches of several comparisons each."""
    random, rulings, pairs = Random(7), Counter(), 0
    for _ in range(SEARCHES):
        runs = of_logs([draw(random) for _ in range(3)])
        before = [replace(runs, log_variance=2 * runs.log_variance)]  # of a ratio of two
        for _ in range(COMPARISONS):
            logs, ruling = [], "measure on"
            while ruling == "measure on":
                logs.append(math.log(1 + effect) + draw(random) - draw(random))
                ruling, _ = judge_pairs(logs, before)
            before.append(of_logs(logs))
            rulings[ruling] += 1
            pairs += len(logs)
    total = SEARCHES * COMPARISONS
    return {ruling: count / total for ruling, count in rulings.items()}, pairs / total


@pytest.mark.parametrize(
    "draw", [normal(0.003), normal(0.01), normal(0.03), heavy_tailed, sometimes_disturbed]
)
def test_a_knob_that_does_nothing_is_seldom_adopted(draw):
    shares, _ = ruled(0.0, draw)
    # Three standard errors of a share that is what it promises to be.
    error = math.sqrt(ADOPTION_ERROR * (1 - ADOPTION_ERROR) / (SEARCHES * COMPARISONS))
    assert shares["faster"] < ADOPTION_ERROR + 3 * error


@pytest.mark.parametrize(
    ("effect", "deviation", "ruling", "share", "most_pairs"),
    [(0.05, 0.01, "faster", 0.97, 2.5), (0.0, 0.002, "not faster", 0.9, 3.0)],
    ids=["a gain of five percent", "a tie on a quiet machine"],
)
def test_what_is_clear_is_seen_in_two_or_three_pairs(effect, deviation, ruling, share, most_pairs):
    shares, pairs = ruled(effect, normal(deviation))
    assert shares[ruling] > share
    assert pairs < most_pairs


def test_a_gain_above_a_tie_is_seldom_given_up():
    shares, _ = ruled(0.015, normal(0.01))
    assert shares.get("not faster", 0.0) < LOSS_ERROR


def test_the_last_pair_ends_a_comparison_and_one_decides_only_what_is_far_slower():
    ruling, estimate = judge_pairs([0.01, -0.01, 0.012, -0.008][:LAST_TEST], [])
    assert ruling == "undecided"
    assert estimate.interval.low < 1 < estimate.interval.high
    assert not paired_ratio([0.1]).interval  # a single pair has no interval
    assert judge_pairs([math.log(FAR_SLOWER) - 0.01], [])[0] == "not faster"
    assert judge_pairs([math.log(FAR_SLOWER) + 0.01], [])[0] == "measure on"
    assert judge_pairs([math.log(1.5)], [])[0] == "measure on"
