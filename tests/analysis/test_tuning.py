"""A tuning told to people and programs, and drawn; the device is simulated."""

import json
from dataclasses import replace

import pytest
import samples
from simulated_device import START, Device, environment

from analysis.account import Part, StepAccount
from analysis.gains import gains_of
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
from bench.records import Removal
from bench.records.metrics import summary
from bench.statistics.ratios import LogError, RatioEstimate
from campaigns.search import Limits, tune
from tracking.content import content_of

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


# What a step gains without a part of it


def removal(with_s=(0.4, 0.42, 0.38), without_s=(0.25, 0.26, 0.24), what="input", **known):
    sides = {"with_s": with_s, "without_s": without_s}
    return Removal.of("nothing to add", what=what, steps=10, **sides, **known)


def gain(*removals, wait_s=None):
    account = None
    if wait_s is not None:
        parts = (Part("waiting for the loader", "input", wait_s), Part("rest", "ops", 1 - wait_s))
        account = StepAccount(1.0, parts, None)
    window = samples.measurement(data_wait_s=(0.1875,) * 6)
    [found] = gains_of(samples.run_record(removals=removals, measurement=window), account)
    return found


def test_gain_and_interval_are_of_the_turns_by_pairs():
    same = gain(removal((0.4, 0.2), (0.2, 0.1)))
    assert (same["gain"], same["gain_low"]) == pytest.approx((2.0, 2.0))
    assert (same["with_ms"], same["without_ms"]) == pytest.approx((282.84, 141.42), 1e-3)
    # log ratios of 0.9 and 1.1 times 1.6: half of the interval is t(2 pairs) times half their range
    spread = gain(removal((0.36, 0.44), (0.25, 0.25)))
    assert spread["gain"] == pytest.approx(0.4 * (0.9 * 1.1) ** 0.5 / 0.25)
    assert spread["gain_high"] / spread["gain"] == pytest.approx((1.1 / 0.9) ** (12.7062 / 2), 1e-3)


@pytest.mark.parametrize(
    ("wait_s", "words"),
    [(None, "said 1.6"), (0.375, "said 1.6"), (0.5, "next limit"), (0.1, "slows other parts")],
)
def test_the_sentence_says_what_the_account_said_and_why_they_differ(wait_s, words):
    sentence = gain(removal((0.4, 0.4008), (0.25, 0.25)), wait_s=wait_s)["sentence"]
    assert words in sentence
    assert sentence.startswith("without waiting for input: 400 -> 250 ms a step (1.6")
    assert (": " in sentence.partition("said")[2]) == (wait_s in (0.5, 0.1))


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.0, 1.0004), "nothing to gain: "),
        ((1.008, 1.012), "nothing to gain: "),  # 1.01, 0.985 to 1.036
        ((1.0, 1.02), "nothing to gain that is sure: "),  # 1.01, 0.89 to 1.15
        ((1.05, 1.06), "nothing to gain that is sure: "),  # 1.055, 0.99 to 1.12
        ((1.05, 1.0501), "input: 10.5 -> 10 ms"),
    ],
)
def test_a_gain_counts_where_all_of_its_interval_is_over_2_percent(ratios, words):
    sentence = gain(removal([ratio / 100 for ratio in ratios], (0.01, 0.01)))["sentence"]
    assert words in sentence


def test_of_several_ranks_the_steps_without_exchange_are_the_claim():
    window = samples.measurement(ranks=samples.distributed_figures())
    share = window.ranks.communication_share
    record = samples.run_record(removals=[removal(what="sync")], measurement=window)
    [found] = gains_of(record, None)
    assert found["account_gain"] == pytest.approx(1 / (1 - share))


def test_of_the_hosts_work_the_account_is_a_bound():
    part = Part("the host between ops: Python, autograd, dispatch", "host", 0.2)
    account = StepAccount(1.0, (part, Part("rest", "ops", 0.8)), None)
    record = samples.run_record(removals=[removal(what="host", note="off")])
    [found] = gains_of(record, account)
    assert found["account_gain"] == pytest.approx(1.25)
    assert found["sentence"].startswith("without garbage collection: ")
    assert found["sentence"].endswith("at most 1.25x; off")


def test_what_could_not_be_taken_out_says_why():
    found = gain(Removal.of("no DataLoader", what="input"))
    assert found["sentence"] == "without waiting for input: not measured: no DataLoader"
    assert found["gain"] is None


def test_a_record_carries_its_gains_as_metrics_and_is_marked():
    record = samples.run_record(removals=[removal((0.4, 0.2), (0.2, 0.1))])
    metrics = summary(record)
    names = ("gain_without_input", "gain_without_input_low", "gain_without_input_high")
    assert [metrics[name] for name in names] == pytest.approx([2.0] * 3)
    assert {*names} <= {point.key for point in content_of(record).metrics}
    assert not any("gain" in name for name in summary(samples.run_record()))
