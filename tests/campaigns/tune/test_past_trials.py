"""What an earlier session measured comes back in the company in which it was measured."""

from datetime import timedelta

import pytest
import samples

from bench.config import RunConfig
from bench.records.folders import RecordFolder
from campaigns.plan import campaign_records
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
