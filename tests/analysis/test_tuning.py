"""A tuning told to people and programs, and drawn; the device is simulated."""

import json
from dataclasses import replace

import pytest
import samples
from simulated_device import START, Device, environment

from analysis.figures import save_figure, single_axes
from analysis.runs.points import Refusal, roofline_point
from analysis.tuning.account import (
    best_command,
    best_record,
    roof_line,
    tuning_facts,
    tuning_markdown,
    verdict_line,
)
from analysis.tuning.tuning_figure import draw_ablation, tuning_figure
from campaigns.tune.tuner import Limits, tune

NOWHERE = Refusal("no ceiling: none was measured")


def tuned(speed, fails=lambda knobs: None, *, budget_s=2000.0, noise=0.003):
    device = Device(speed, fails, noise=noise)
    return tune(START, environment(), device, Limits(budget_s), clock=device.clock)


def speed(knobs):
    rate = 16.0 if knobs["channels_last"] else 12.0
    rate *= {8: 0.9, 16: 1.0, 32: 1.2}.get(knobs["batch_size"], 0.9)
    return rate * {1: 1.0, 2: 1.1}[knobs["threads"]]


def fails(knobs):
    why = "BackendCompilerFailed: no C++ compiler | in <path>"
    return ("crashed", why) if knobs["compile"] == "default" else None


@pytest.fixture(scope="module")
def result():
    return tuned(speed, fails)


@pytest.fixture(scope="module")
def nothing():
    return tuned(lambda knobs: 16.0, noise=0.001)


def test_the_best_setting_and_the_speed_up_of_the_fresh_runs_are_quoted(result):
    assert best_command(result) == (
        "mlproject run --arch resnet18 --backend cpu --batch-size 32 --threads 2"
    )
    line, interval = verdict_line(result), result.confirmed.interval
    assert line.startswith("speed-up over the start: 1.3")
    rounds = len(result.confirmed.ratios)
    assert f"({interval.low:.3f} to {interval.high:.3f}) in {rounds} fresh rounds" in line
    # an interval that holds 1 is none
    unsure = replace(result.confirmed, interval=replace(interval, low=0.99, high=1.02))
    line = verdict_line(replace(result, confirmed=unsure))
    assert line.startswith("not confirmed as faster than the start")


def test_where_nothing_helped_the_reason_is_said(nothing):
    assert verdict_line(nothing) == (
        "no speed-up confirmed: nothing that was tried is faster than the start"
    )
    assert tuning_facts(nothing, NOWHERE)["confirmed"] is None


def test_the_distance_to_the_roof_is_that_of_the_best_settings_median_run(result):
    record = best_record(result)
    assert record.config.config_id == result.best.config_id
    confirmed = [
        t.samples_per_s
        for t in result.trials
        if t.stage == "confirmation" and t.config.config_id == record.config_id
    ]
    rate = record.measurement.throughput_samples_per_s
    assert sum(rate >= one for one in confirmed) in (
        len(confirmed) // 2,
        len(confirmed) // 2 + 1,
    )


def test_a_roof_is_told_with_its_numbers_and_a_missing_one_with_its_reason(result):
    measured = samples.run_record()
    trial = replace(result.trials[0], record=measured, stage="confirmation")
    whole = replace(result, best=measured.config, trials=(trial,))
    line = roof_line(roofline_point(best_record(whole), [samples.ceilings_record()]))
    # 1 GFLOP in 0.5 s under a roof of 200 GFLOP/s.
    assert line.startswith("0.01 of the roof: 2 of 200 GFLOP/s attainable; bound overhead")
    assert "no ceilings were measured" in roof_line(roofline_point(best_record(whole), []))


def test_the_json_holds_every_trial_and_comparison(result):
    facts = json.loads(json.dumps(tuning_facts(result, NOWHERE), allow_nan=False))
    assert facts["best"] == {"batch_size": 32, "threads": 2}
    assert len(facts["trials"]) == len(result.trials)
    assert facts["no_roof"] == NOWHERE.reason
    assert [each["knob"] for each in facts["ablation"]] == ["batch_size", "threads"]
    [failed] = [each for each in facts["duels"] if each["decision"] == "failed"]
    assert failed["value"] == "default"
    assert "no C++ compiler" in failed["reason"]
    numbers = [number for each in facts["duels"] for number in each["trials"]]
    assert numbers == [t.number for t in result.trials if t.stage == "search"]


def test_the_markdown_is_whole_and_text_from_records_cannot_break_it(result):
    text = tuning_markdown(result, NOWHERE)
    for words in ("## What each knob gave", "| all of them |", "## What was tried", "## Trials"):
        assert words in text
    assert "no C++ compiler \\| in &lt;path&gt;" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in tables}) <= 3


def test_a_machine_that_is_not_quiet_and_what_no_time_was_left_for_are_told(result):
    assert "this machine is not quiet" not in tuning_markdown(result, NOWHERE)
    noisy = tuning_markdown(replace(result, scatter=0.123), NOWHERE)
    assert "scatters by 12.3 %" in noisy
    short = tuning_markdown(tuned(speed, budget_s=100.0), NOWHERE)
    told = next(line for line in short.splitlines() if "no time was left to try: " in line)
    assert "optimizer=false" in told
    assert "depthwise" not in told  # fp32 forbids it: there was nothing to try


def test_the_figure_shows_every_effect_and_every_trial(result, tmp_path):
    figure = tuning_figure(result)
    above, below = figure.axes
    names = [label.get_text() for label in above.get_yticklabels()]
    assert names == [
        "all of them: tuned over start",
        "batch_size: 32 over 16 (auto)",
        "threads: 2 over 1 (auto)",
    ]
    points = [line for line in below.lines if line.get_marker() not in ("None", "")]
    assert [line.get_xdata()[0] for line in points] == [t.number for t in result.trials]
    failed = [line for line in points if line.get_marker() == "x"]
    assert len(failed) == 1
    assert failed[0].get_ydata()[0] == below.get_ylim()[0]
    labels = {text.get_text() for text in below.texts}
    assert {"threads=2 *", "batch_size=32 *", "compile=default", "confirmation"} <= labels
    assert "images/s" in above.get_xlabel()
    png, svg = save_figure(figure, tmp_path, "tuning")
    assert png.stat().st_size > 10_000
    assert svg.read_text().startswith("<?xml")


def test_a_figure_of_nothing_says_so_and_trials_are_whole_numbers(nothing):
    few = replace(nothing, trials=nothing.trials[:3], comparisons=())
    above, below = tuning_figure(few).axes
    assert all(tick == int(tick) for tick in below.get_xticks())
    assert [text.get_text() for text in above.texts] == ["nothing was adopted and confirmed"]


@pytest.mark.parametrize("found", ["nothing", "result"])
def test_without_fresh_runs_the_figure_shows_what_was_compared(found, request):
    tuned_so_far = replace(request.getfixturevalue(found), confirmed=None, ablation=())
    above, _ = tuning_figure(tuned_so_far).axes
    compared = [
        comparison for comparison in tuned_so_far.comparisons if comparison.interval is not None
    ]
    assert "no gain was confirmed" in above.get_title(loc="left")
    assert [label.get_text() for label in above.get_yticklabels()] == [d.name for d in compared]
    markers = [line for line in above.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in markers] == [
        comparison.interval.ratio for comparison in compared
    ]
    assert {line.get_markerfacecolor() for line in markers} == {"white"}


def test_a_gain_that_is_not_beyond_doubt_is_drawn_hollow(result):
    unsure = replace(result.ablation[0], interval=replace(result.ablation[0].interval, low=0.99))
    _, axes = single_axes()
    draw_ablation(axes, [result.ablation[1], unsure], "images/s")
    faces = [line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"]
    assert faces[0] != "white"
    assert faces[1] == "white"
