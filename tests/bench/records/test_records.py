"""Records: frozen, whole, and the same after a trip through JSON."""

import json
import math
from pathlib import Path

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.config import RunConfig
from bench.errors import Unknown
from bench.launcher.measurement import failure_cause
from bench.records import (
    CpuCounters,
    ProcessFigures,
    ProfileRecord,
    RankAccount,
    RunRecord,
    SampledSeries,
    Verdict,
)
from bench.records.folders import RecordFolder
from bench.records.metrics import profile_summary, summary
from bench.records.verdict import judge

RESULTS = Path(__file__).resolve().parents[3] / "examples" / "records"
KEPT = sorted(RESULTS.glob("**/record.json"))

times = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=50)


@given(times, st.integers(1, 10**6))
def test_any_measurement_survives_json_bit_for_bit(times_s, images):
    record = samples.run_record(measurement=samples.measurement(times_s, images))
    again = RunRecord.model_validate_json(record.model_dump_json())
    assert again == record
    assert again.measurement.throughput_samples_per_s == record.measurement.throughput_samples_per_s


def test_a_record_is_read_where_its_model_is_not():
    text = (
        samples.run_record().model_dump_json().replace('"resnet18"', '"timm:of_a_later_version"', 1)
    )
    assert RunRecord.model_validate_json(text).config.arch == "timm:of_a_later_version"


def test_a_none_needs_its_reason():
    known = dict.fromkeys(("real_s", "system_s", "max_rss_bytes"), 1)
    for user_s, missing, words in ((None, {}, "None without"), (1, {"user_s": "gone"}, "a value")):
        with pytest.raises(ValidationError, match=f"{words}.*user_s"):
            ProcessFigures(**known, user_s=user_s, missing=missing)
    found = ProcessFigures.of("gone", {"user_s": "no rights"}, real_s=1, system_s=1)
    assert found.missing == {"user_s": "no rights", "max_rss_bytes": "gone"}
    assert ProcessFigures(**known, user_s=Unknown("gone")).missing == {"user_s": "gone"}


def measured(**changes):
    return lambda: samples.measurement(**changes)


def changed(*place_and_value):
    *place, value = place_and_value
    return lambda: RunRecord.model_validate(changed_at(GOOD, tuple(place), value))


def of_ranks(*ranks):
    return lambda: samples.distributed_figures(ranks=ranks)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((measured(times_s=(0.5, value), window_end_clock_s=1001.0), "iteration_times_s")
          for value in (math.nan, math.inf, -1.0)),
        (measured(data_wait_s=(0.0,)), "differ in length"),
        (measured(phase_times_s={"forward": (0.1,)}), "phase forward"),
        (measured(window_end_clock_s=999.0), "before it starts"),
        (lambda: SampledSeries(name="a", source="b", times_s=(1.0,), values=()), "in length"),
        (lambda: samples.failed_record("ok", "none"), "ok without a measurement"),
        # damaged, of another version, or with what no rate and no table can be of
        (changed("schema_version", 1), "schema_version"),
        (changed("measurement", {"missing": ["work"]}), r"measurement\.missing"),
        (changed("measurement", "flop", 1), "flop"),
        *((changed("measurement", "iteration_times_s", [value] * 6), "iteration_times_s")
          for value in (0.0, 1e160, -0.5)),
        (changed("measurement", "window_start_unix_s", 1e300), "window_start_unix_s"),
        *((changed("created", instant), "created") for instant in
          ("0001-01-01T00:00:00Z", "2399-01-01T00:00:00Z", "2026-11-20T10:00:00")),
        # figures are of all ranks and one window
        (of_ranks(samples.rank_figures(0), samples.rank_figures(2)), "ranks are not 0, 1"),
        (of_ranks(samples.rank_figures(1), samples.rank_figures(0)), "ranks are not 0, 1"),
        (of_ranks(samples.rank_figures(0), samples.rank_figures(1, (0.5,))), "number of iterat"),
        (of_ranks(samples.rank_figures(0)), "at least 2"),
    ],
)  # fmt: skip
def test_impossible_records_are_refused(make, words):
    with pytest.raises(ValidationError, match=words):
        make()


def test_a_setting_newer_than_the_record_has_the_value_of_before():
    record = samples.run_record()
    before = record.model_dump(mode="json")
    del before["config"]["devices"], before["config"]["allocator"]
    read = RunRecord.model_validate_json(json.dumps(before))
    assert (read.config.world_size, read.config.allocator) == (1, "system")


def test_a_fact_that_an_earlier_version_did_not_record_is_unknown():
    earlier = samples.run_record().model_dump(mode="json")
    for part in (earlier["measurement"], earlier["environment"]["device"]):
        for newer in ("garbage_collections_s", "application_clock_mhz"):
            part.pop(newer, None)
            part["missing"].pop(newer, None)
    record = RunRecord.model_validate(earlier)
    assert record.measurement.garbage_collections_s is None
    assert "did not record" in record.measurement.missing["garbage_collections_s"]
    assert "did not record" in record.environment.device.missing["application_clock_mhz"]


def test_a_changed_copy_derives_its_figures_anew():
    one = samples.measurement([1.0] * 20)
    assert (one.pace_s, one.settled_after) == (1.0, 0)
    other = one.replaced(iteration_times_s=(3.0,) * 5 + (2.0,) * 15)
    assert (other.pace_s, other.settled_after) == (2.0, 5)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_a_kept_result_is_read_and_gives_figures_and_a_verdict(path):
    record = RecordFolder(path.parent).read_record()
    assert record.outcome == "ok"
    if isinstance(record, RunRecord):
        assert record.config.config_id == record.config_id
        assert summary(record)["throughput_images_per_s"] > 0
        verdict = judge(record)
    elif isinstance(record, ProfileRecord):
        assert record.config.config_id == record.config_id
        assert profile_summary(record)
        verdict = judge(record, None)
    else:
        assert all(ceiling.peak_flops_per_s > 0 for ceiling in record.ceilings)
        verdict = judge(record)
    assert verdict.level in ("clean", "suspect")
    assert record.verdict is not None


def test_rates_of_counters_are_none_where_a_part_is_unknown():
    known = {"source": "perf", "scope": "user", "iterations": 1, "window_s": 1.0}
    known["running_share"] = {}
    counted = samples.facts(CpuCounters, **known, cycles=200, instructions=100)
    assert counted.ipc == 0.5
    assert counted.cpi == 2.0
    halted = samples.facts(CpuCounters, **known, cycles=0, instructions=0)
    assert (halted.ipc, halted.cpi) == (None, None)
    assert samples.facts(CpuCounters, **known, cycles=200).ipc is None


# What ranks tell: figures that fit together, and accounts that say who was the cause


TWO = RunConfig(devices=2)


def test_the_share_is_of_medians_and_may_fall_below_nothing():
    figures = samples.distributed_figures(
        synced_step_s=(0.5, 0.5, 9.0), local_step_s=(0.4, 0.4, 0.1)
    )
    assert figures.communication_share == pytest.approx(0.2)
    slower = samples.distributed_figures(local_step_s=(0.6,))
    assert slower.communication_share == pytest.approx(-0.2)


def account(rank, outcome="crashed", reason="RuntimeError: no", cause="own", at=10.0):
    return samples.facts(
        RankAccount,
        rank=rank,
        outcome=outcome,
        cause=cause,
        ended_unix_s=at,
        **({} if outcome == "ok" else {"reason": reason}),
    )


LOST = account(0, reason="RuntimeError: Connection closed by peer", cause="lost")
KILLED = account(1, reason="ended by SIGKILL (signal 9)", cause="killed", at=99.0)
INTERRUPTED = account(0, "interrupted", "interrupted from outside", at=1.0)
BOTH = {"outcome": "unsupported", "reason": "devices=2: too few"}


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        ((LOST, account(1, "oom", "no memory", at=11.0)), ("oom", "rank 1: no memory")),
        ((LOST, KILLED), ("crashed", "rank 1: ended by SIGKILL (signal 9)")),
        ((LOST, KILLED, account(2, reason="mine", at=100.0)), ("crashed", "rank 2: mine")),
        ((INTERRUPTED, account(1)), ("crashed", "rank 1: RuntimeError: no")),
        ((INTERRUPTED, account(1, cause="lost")), ("interrupted", f"rank 0: {INTERRUPTED.reason}")),
        ((account(0, at=2.0), account(1, reason="first", at=1.0)), ("crashed", "rank 1: first")),
        ((account(0, **BOTH), account(1, **BOTH)), ("unsupported", BOTH["reason"])),
        ((account(0, **BOTH), account(1, "ok")), ("unsupported", f"rank 0: {BOTH['reason']}")),
        ((), ("crashed", "RuntimeError: lost")),
    ],
)
def test_the_cause_is_who_failed_first_by_itself(tmp_path, accounts, expected):
    folder = RecordFolder.create(tmp_path)
    for each in accounts:
        folder.write(folder.rank(each.rank), each)
    assert failure_cause(folder, "crashed", "RuntimeError: lost", TWO.world_size) == expected
    assert failure_cause(folder, "ok", None, TWO.world_size)[0] == "ok"


def changed_at(value, place, new):
    return {**value, place[0]: changed_at(value.get(place[0]), place[1:], new)} if place else new


GOOD = samples.run_record(telemetry=samples.telemetry()).model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "value", "code", "level"),
    [
        ("iteration_times_s", [50.0] * 6, "contradiction", "invalid"),  # 300 s in a window of 3 s
        ("data_wait_s", [0.6] * 6, "contradiction", "invalid"),
        ("samples_per_iteration", 8000, "contradiction", "invalid"),  # of a batch of 8
        ("iteration_times_s", [0.005] * 6, "window-gap", "suspect"),  # 0.03 of 3 s
    ],
)
def test_figures_that_contradict_each_other_are_not_clean_whatever_the_file_says(
    name, value, code, level
):
    good = samples.run_record(verdict=Verdict.of([]))
    clean = good.model_dump(mode="json")
    assert RunRecord.model_validate(clean).verdict.level == "clean"
    record = RunRecord.model_validate(changed_at(clean, ("measurement", name), value))
    assert (record.verdict.level, [one.code for one in record.verdict.findings]) == (level, [code])
    assert RunRecord.model_validate_json(record.model_dump_json()) == record
    assert code in [one.code for one in judge(record).findings]
