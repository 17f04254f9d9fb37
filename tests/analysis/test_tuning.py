"""A tuning told to people and programs, and drawn; the device is simulated."""

import json
from dataclasses import replace

import pytest
import samples
from simulated_device import START, Device, environment

from analysis.presentation.words import estimated
from analysis.runs.points import roofline_point
from analysis.tuning import (
    best_command,
    best_record,
    roof_line,
    tuning_facts,
    tuning_lines,
    tuning_tables,
    verdict_line,
)
from bench.errors import Unknown
from bench.statistics.ratios import LogError, RatioEstimate
from campaigns.search import Limits, tune

NOWHERE = Unknown("no ceiling: none was measured")


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
    rounds, told = len(result.confirmed.ratios), estimated(result.confirmed.estimate)
    assert told.startswith("1.3")
    assert verdict_line(result) == f"speed-up over the start: {told} in {rounds} fresh rounds"
    # an interval that holds 1 is none
    unsure = replace(result.confirmed, estimate=RatioEstimate(1.005, LogError(0.01, 3)))
    line = verdict_line(replace(result, confirmed=unsure))
    assert line.startswith("not confirmed as faster than the start")


def test_a_roof_is_told_with_its_numbers_and_a_missing_one_with_its_reason(result):
    measured = samples.run_record()
    trial = replace(result.trials[0], record=measured, stage="confirmation")
    whole = replace(result, best=measured.config, trials=(trial,))
    line = roof_line(roofline_point(best_record(whole), [samples.ceilings_record()]))
    # 1 GFLOP in 0.5 s under a roof of 200 GFLOP/s.
    assert line.startswith("1 % of the roof: 2 GFLOP/s of 200 GFLOP/s attainable; bound not known")
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


def test_the_tables_hold_what_each_knob_gave_what_was_tried_and_all_trials(result):
    knobs, tried, trials = tuning_tables(result, tuning_facts(result, NOWHERE))
    assert "| all of them |" in knobs.markdown()
    assert "no C++ compiler \\| in &lt;path&gt;" in tried.markdown()
    assert len(trials.rows) == len(result.trials)


def test_a_machine_that_is_not_quiet_and_what_no_time_was_left_for_are_told(result):
    assert not any("not quiet" in line for line in tuning_lines(result, NOWHERE))
    noisy = tuning_lines(replace(result, scatter=0.123), NOWHERE)
    assert any("scatters by 12.3 %" in line for line in noisy)
    short = tuning_lines(tuned(speed, budget_s=100.0), NOWHERE)
    told = next(line for line in short if "no time was left to try: " in line)
    assert "optimizer=false" in told
    assert "depthwise" not in told  # fp32 forbids it: there was nothing to try
