"""Trials: those of earlier sessions in their company, and the rule by which pairs of them end."""

import math
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
import samples

from bench.config import RunConfig
from bench.records.folders import RecordFolder
from bench.statistics.ratios import of_logs, paired_ratio
from campaigns.plan import campaign_records
from campaigns.search import (
    ADOPTION_ERROR,
    FAR_SLOWER,
    LAST_TEST,
    LOSS_ERROR,
    judge_pairs,
)
from campaigns.trials import OutOfTimeError, Trials, TuneWatch

A, B, C = (RunConfig(campaign="c", threads=count) for count in (1, 2, 3))


def record(config, at_s, outcome="ok", repeat=1, **changes):
    """A run of 10 s that began so many seconds after the campaign."""
    config = config.model_copy(update={"repeat": repeat})
    known = {
        "record_id": f"20261120T{at_s:06d}Z-00000000",
        "created": samples.NOW + timedelta(seconds=at_s),
        "process": samples.process_figures(real_s=10.0),
        **changes,
    }
    if outcome == "ok":
        return samples.run_record(config, **known)
    return samples.failed_record(outcome, "why", config, **known)


def of_earlier(records, measured=()):
    """Trials with no time to measure any; `measured` gets the configurations of those that are."""

    def measure(config, limit_s):
        measured.append(config)
        return samples.run_record(config)

    return Trials(measure, records, TuneWatch(), 0.0, clock=lambda: 0.0)


def found(trials, *configs):
    return [int(trial.record.record_id[9:15]) for trial in trials.together(configs, "search")]


@pytest.mark.parametrize(
    ("records", "pair"),
    [
        ([record(A, 0), record(B, 12)], [0, 12]),
        ([record(B, 12), record(A, 0)], [0, 12]),  # the order of the files does not matter
        ([record(A, 0), record(C, 12), record(B, 24)], None),
        ([record(A, 0), record(B, 69)], [0, 69]),
        ([record(A, 0), record(B, 71)], None),  # of two sessions
    ],
)
def test_a_pair_is_two_runs_of_one_session_with_none_between_them(records, pair):
    trials = of_earlier([record(C, 0), *records])
    assert found(trials, C) == [0]
    if pair is None:
        with pytest.raises(OutOfTimeError):
            found(trials, A, B)
    else:
        assert found(trials, A, B) == pair


def test_an_interrupted_run_comes_back_never_but_its_number_is_taken():
    measured = []
    trials = of_earlier([record(A, 0, "interrupted", repeat=3)], measured)
    trials.budget_s = 1e9
    for config in (A, A, B):
        trials.together([config], "search")
    assert [config.repeat for config in measured] == [4, 5, 1]


def test_a_campaigns_records_are_those_of_its_name_and_this_environment(tmp_path):
    here, elsewhere = samples.environment(), samples.environment(label="another")
    kept = {
        1: record(A, 1, environment=here),
        2: record(A, 2, environment=elsewhere),
        3: record(A.model_copy(update={"campaign": "d"}), 3, environment=here),
        4: record(A, 4, "crashed"),  # before it knew where
    }
    for each in kept.values():
        RecordFolder.create(tmp_path, each.record_id).close(each)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text("{}")
    assert [*campaign_records(tmp_path, "c", here)] == [kept[1], kept[4]]
    assert [*campaign_records(tmp_path / "none", "c", here)] == []


# The stopping rule against noise whose truth is known


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
