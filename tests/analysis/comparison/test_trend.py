"""When a configuration's speed changed: where, by how much, what else did, and not by chance."""

from datetime import timedelta

import factories as make
import numpy as np
import pytest
from observed import invoke, observation, records_on_disk

import commands.trend
from analysis.comparison import METRICS
from analysis.comparison.history import histories
from bench.errors import UserError
from bench.statistics.series import find_changes

RATE = METRICS["throughput_images_per_s"]


def series(levels, counts, seed=1, noise=0.005):
    rng = np.random.default_rng(seed)
    return np.exp(
        np.repeat(np.log(levels), counts) + noise * rng.standard_normal(sum(counts))
    ).tolist()


def night(number, rate, repeat=1, **changes):
    return observation(
        f"{changes.get('arch', 'resnet18')}-{number}-{repeat}",
        rate,
        started=make.NOON + timedelta(days=number, minutes=repeat),
        **changes,
    )


@pytest.mark.parametrize(
    ("values", "places", "ratios"),
    [
        (series([100, 97], [12, 8]), [(12, 12, 12)], [0.97]),
        # a slow week is two changes, a bad night is none
        (series([100, 95, 100], [15, 5, 20]), [(15, 15, 15), (20, 20, 20)], [0.95, 1 / 0.95]),
        ([*series([100], [20]), 90.0, *series([100], [20], seed=2)], [], []),
        # equal values and few have no change, exact steps have theirs
        ([5.0] * 20, [], []),
        (series([100, 50], [2, 2]), [], []),
        ([5.0] * 6 + [4.0] * 6, [(6, 6, 6)], [0.8]),
    ],
)
def test_a_change_has_its_place_its_size_and_its_interval(values, places, ratios):
    found = find_changes(values)
    assert [(one.first, one.index, one.last) for one in found] == places
    for one, ratio in zip(found, ratios, strict=True):
        assert one.p_value < 0.01
        assert one.estimate.interval.low <= ratio <= one.estimate.interval.high
        assert one.estimate.ratio == pytest.approx(ratio, rel=0.005)


@pytest.mark.parametrize("count", [6, 30])
@pytest.mark.slow
def test_of_histories_without_a_change_at_most_5_of_100_have_one(count):
    rng = np.random.default_rng(7)
    alarms = [
        bool(find_changes(np.exp(0.01 * rng.standard_normal(count)).tolist())) for _ in range(400)
    ]
    assert np.mean(alarms) <= 0.065


def test_runs_of_a_campaign_are_one_point_and_others_one_each():
    together = [
        night(number, rate, repeat, campaign=f"night-{number}")
        for number in range(6)
        for repeat, rate in enumerate((100.0, 102.0))
    ]
    (found,) = histories(together, RATE)
    assert [len(point.runs) for point in found.points] == [2] * 6
    assert found.points[0].value == pytest.approx(np.sqrt(100 * 102))
    for campaign in (None, "none", "imported"):
        runs = [night(number, 100.0, campaign=campaign) for number in range(6)]
        (found,) = histories(runs, RATE)
        assert len(found.points) == 6


@pytest.mark.parametrize(
    ("levels", "seed", "before", "after", "where", "differs"),
    [  # a version of a user's own model is a fact of its history, not another configuration
        ([100, 90], 1, {"code": "old"}, {"code": "new"}, (10, 10, 10), "model's code old -> new"),
        # what changed two nights after the likeliest one, where the level may have changed
        ([100, 98.5], 4, {"software": {"torch": "2.11.0"}}, {"software": {"torch": "2.15.0"}},
         (8, 10, 13), "torch 2.11.0 -> 2.15.0"),
    ],
)  # fmt: skip
def test_what_else_changed_is_named(levels, seed, before, after, where, differs):
    first = 10 if "code" in before else 12
    runs = [
        night(number, rate, **(before if number < first else after))
        for number, rate in enumerate(series(levels, [10, 10], seed=seed))
    ]
    (history,) = histories(runs, RATE)
    (change,) = history.changes
    assert (change.first, change.index, change.last) == where
    assert history.differs(change) == (differs,)


def test_what_cannot_be_a_history_is_one_line():
    with pytest.raises(UserError, match="at most 4 points in time, of which 5 are needed"):
        histories([night(number, 100.0) for number in range(4)], RATE)
    with pytest.raises(UserError, match="of 2 runs 0 have a time"):
        histories([observation("a"), observation("b")], RATE)


def recorded_nights(folder, after=1.0):
    """Twelve nights of three runs, torch 2.15.0 from the eighth on; its step is `after` s long."""
    rng = np.random.default_rng(9)
    records = [
        make.run_record(
            f"night-{number:02}-{repeat}",
            step_s=(1.0 if number < 7 else after) * float(np.exp(0.003 * rng.standard_normal())),
            created=make.NOON + timedelta(days=number, minutes=repeat),
            environment=make.environment(torch="2.11.0" if number < 7 else "2.15.0"),
            settings={"repeat": repeat, "campaign": f"night-{number}"},
        )
        for number in range(12)
        for repeat in (1, 2, 3)
    ]
    return f"records={records_on_disk(folder, *records)}"


@pytest.mark.parametrize(
    ("after", "options", "code"),
    [
        (1.0, (), 0),
        (0.9, (), 0),
        (1.1, (), 1),
        (1.05, ("--threshold", 0.1), 0),
        (0.9, ("--metric", "attained_gflops"), 0),
        (0.9, ("--metric", "iteration_time_ms_mean"), 0),
        (1.1, ("--metric", "iteration_time_ms_mean"), 1),
    ],
)
def test_only_a_newest_level_that_is_worse_ends_with_1(tmp_path, after, options, code):
    side = recorded_nights(tmp_path, after)
    assert invoke(commands.trend, side, *options).return_value == code
