"""When a configuration's speed changed: where, by how much, what else did, and not by chance."""

import csv
import io
import json
from datetime import timedelta

import factories as make
import numpy as np
import pytest
from observed import observation
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.trend
from analysis.comparison import METRICS
from analysis.comparison.trend import histories
from analysis.figures.charts.trend_chart import trend_figure
from analysis.statistics.change_points import find_changes
from bench.errors import UserError

RATE = METRICS["throughput_images_per_s"]


def series(levels, counts, seed=1, noise=0.005):
    rng = np.random.default_rng(seed)
    return np.exp(
        np.repeat(np.log(levels), counts) + noise * rng.standard_normal(sum(counts))
    ).tolist()


def test_a_change_has_its_place_its_size_and_its_interval():
    (found,) = find_changes(series([100, 97], [12, 8]))
    assert found.place == 12
    assert found.first <= 12 <= found.last <= 13
    assert found.estimate.low < 0.97 < found.estimate.high
    assert found.chance < 1e-6


def test_versions_of_a_users_model_are_one_history_that_names_them():
    runs = [
        observation(f"r{n}", rate, code="old" if n < 6 else "new", campaign=f"c{n}",
                    started=make.NOON + timedelta(days=n))
        for n, rate in enumerate(series([100, 90], [6, 6]))
    ]  # fmt: skip
    (history,) = histories(runs, RATE)
    (turn,) = history.turns
    assert turn.differs == ("model's code old -> new",)


def test_a_slow_week_is_two_changes_and_a_bad_night_is_none():
    week = find_changes(series([100, 95, 100], [15, 5, 20]))
    assert [one.place for one in week] == [15, 20]
    assert [one.estimate.ratio < 1 for one in week] == [True, False]
    night = [*series([100], [20]), 90.0, *series([100], [20], seed=2)]
    assert find_changes(night) == []


def test_equal_values_and_few_have_no_change_and_exact_steps_have_theirs():
    assert find_changes([5.0] * 20) == []
    assert find_changes(series([100, 50], [2, 2])) == []
    (found,) = find_changes([5.0] * 6 + [4.0] * 6)
    assert (found.place, found.first, found.last) == (6, 6, 6)
    assert found.estimate.ratio == pytest.approx(0.8)


@pytest.mark.parametrize("count", [6, 30])
@pytest.mark.slow
def test_of_histories_without_a_change_at_most_5_of_100_have_one(count):
    rng = np.random.default_rng(7)
    alarms = [
        bool(find_changes(np.exp(0.01 * rng.standard_normal(count)).tolist())) for _ in range(400)
    ]
    assert np.mean(alarms) <= 0.065


def night(number, rate, repeat=1, **changes):
    return observation(
        f"{changes.get('arch', 'resnet18')}-{number}-{repeat}",
        rate,
        started=make.NOON + timedelta(days=number, minutes=repeat),
        **changes,
    )


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


def test_what_changed_is_looked_for_wherever_the_level_may_have_changed():
    values = series([100, 98.5], [10, 10], seed=4)
    runs = [
        night(number, rate, software={"torch": "2.11.0" if number < 12 else "2.15.0"})
        for number, rate in enumerate(values)
    ]
    (turn,) = histories(runs, RATE)[0].turns
    assert (turn.change.first, turn.change.place, turn.change.last) == (8, 10, 13)
    assert turn.differs == ("torch 2.11.0 -> 2.15.0",)


def test_several_configurations_share_the_chance_of_a_false_alarm():
    """Five percent of one: beside nine others the same series has no change."""
    values = series([100, 97.0], [6, 6], seed=3, noise=0.006)
    one = [night(number, rate) for number, rate in enumerate(values)]
    assert len(histories(one, RATE)[0].turns) == 1
    others = [
        night(number, rate, arch=f"model{model}")
        for model in range(60)
        for number, rate in enumerate(series([100], [6], seed=model))
    ]
    assert histories(one + others, RATE)[0].turns == ()


def test_what_cannot_be_a_history_is_one_line():
    with pytest.raises(UserError, match="has 4 points in time, and 5 are needed"):
        histories([night(number, 100.0) for number in range(4)], RATE)
    with pytest.raises(UserError, match="2 of 2 runs have no time"):
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


def test_a_slower_newest_level_ends_with_1_and_names_what_changed(tmp_path):
    side = recorded_nights(tmp_path / "records", after=1.05)
    done = invoke(commands.analyse.trend, side, "--out", tmp_path / "out")
    assert done.return_value == 1
    assert "12 points from 2025-06-01 12:01 to 2025-06-12 12:01, 1 change: " in done.output
    assert "    2025-06-08 12:01: -4." in done.output
    assert "torch 2.11.0 -> 2.15.0" in done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "trend.csv",
        "trend.png",
        "trend.svg",
    }
    assert invoke(commands.analyse.trend, side, "--threshold", 0.1).return_value == 0
    done = invoke(commands.analyse.trend, side, "--format", "json")
    (history,) = json.loads(done.output)
    (change,) = history["changes"]
    assert change["at"] == change["earliest"] == "2025-06-08T12:01:00+00:00"
    assert change["ratio_low"] < 1 / 1.05 < change["ratio_high"]
    rows = list(csv.DictReader(io.StringIO(
        invoke(commands.analyse.trend, side, "--format", "csv").output
    )))  # fmt: skip
    assert [row["level"] for row in rows] == ["1"] * 7 + ["2"] * 5
    assert rows[0]["torch"] == "2.11.0"


def test_a_steady_or_faster_history_ends_with_0_and_a_use_is_worse_where_it_rises(tmp_path):
    assert invoke(commands.analyse.trend, recorded_nights(tmp_path / "same")).return_value == 0
    faster = recorded_nights(tmp_path / "faster", after=0.9)
    assert invoke(commands.analyse.trend, faster).return_value == 0
    worse = invoke(commands.analyse.trend, faster, "--metric", "attained_gflops")
    assert worse.return_value == 0
    times = invoke(commands.analyse.trend, faster, "--metric", "iteration_time_ms_mean")
    assert times.return_value == 0
    slower = recorded_nights(tmp_path / "slower", after=1.1)
    times = invoke(commands.analyse.trend, slower, "--metric", "iteration_time_ms_mean")
    assert times.return_value == 1


def test_the_figure_has_a_panel_each_with_levels_and_changes():
    runs = [
        night(number, rate, arch=arch)
        for arch, levels in (("resnet18", [100, 95]), ("vgg16", [100, 100]))
        for number, rate in enumerate(series(levels, [10, 10]))
    ]
    figure = trend_figure(histories(runs, RATE))
    figure.draw_without_rendering()
    changed, steady = figure.axes
    assert changed.get_title(loc="left") == "lab resnet18 fp32 batch 10"
    assert [text.get_text()[:2] for text in changed.texts] == ["-5"]
    assert list(steady.texts) == []
    many = histories([night(n, 100.0 + n, arch=f"m{m}") for m in range(14) for n in range(5)], RATE)
    figure = trend_figure(many)
    assert len(figure.axes) == 12
    assert figure.get_suptitle() == "and 2 configurations more"
