"""The pulled table: types, units, what is missing, and the filter that is asked."""

import re
import typing
from dataclasses import replace
from pathlib import Path

import factories as make
import pandas as pd
import pytest
import samples
from observed import PUBLISHED, Server, frame_of, published_records, tracked

from analysis import RecordSet, place_runs, pull_iterations, pull_points, pull_records, pull_runs
from analysis.presentation.columns import metric_columns
from analysis.roofs import Peaks
from analysis.server.pull import addition_of, with_cost
from bench.config import RunConfig
from bench.errors import UserError
from bench.records import Finding, Verdict
from bench.records import metrics as record_metrics
from bench.records.folders import AnyRecord
from bench.records.metrics import MEAN_SERIES
from tracking import schema
from tracking.content import content_of
from tracking.importing import read_results
from tracking.schema import runs_filter

FILTER = "params.arch = 'a'"
SAMPLED = tuple(
    samples.SampledSeries(name=name, source="sample", times_s=(0.0, 0.5), values=(1.0, 3.0))
    for name in MEAN_SERIES
)
PHASE_TIMES = {"data": 0.125, "forward": 0.1875, "backward": 0.125, "optimizer": 0.03125}
MACHINE = make.environment(
    device=make.gpu(memory_bytes=150_754_820_096),
    **{"cuda": "12.8", "cloud_zone": "europe-west4-b", "storage": "ext4"},
    model_code=samples.model_code(),
)
EVERY_KIND = {
    "plain": make.run_record(),
    "whole": make.run_record(
        environment=MACHINE,
        measurement=samples.measurement(
            images=10,
            phase_times_s={name: (time_s,) * 6 for name, time_s in PHASE_TIMES.items()},
            compile_time_s=2.0,
            peak_memory_allocated_bytes=10**9,
            ended_early="max_seconds=60 after 6 of 100",
            warmup_ended_early="2 of 10 iterations",
        ),
        telemetry=samples.telemetry(energy_j=96.0, series=SAMPLED),
        verdict=Verdict.of(
            [
                Finding(code="drift", level="suspect", message="slower"),
                Finding(code="heat", level="note", message="hot"),
            ]
        ),
    ),
    "asked": make.run_record(config=RunConfig(arch="resnet18", batch_size="auto", workers=2)),
    "loader alone": make.run_record(settings={"data": "fakedata", "data_only": True}),
    "ranks": make.run_record(
        settings={"devices": 2},
        measurement=samples.measurement(ranks=samples.distributed_figures()),
    ),
    "failed": make.failed_record(environment=MACHINE),
    "profile": make.profile(
        ops=samples.op_profile(device_busy_share=0.8), cpu_counters=samples.cpu_counters()
    ),
    "trace": samples.trace_record(),
}
#: By kind of run, some values of its row, worked by hand; None is missing, not zero.
ROWS = {
    "plain": {
        **{"run_id": "r1", "started": pd.Timestamp("2025-06-01 12:00", tz="UTC")},
        **{"record_id": "run-1", "env": "lab", "verdict": "clean", "arch": "resnet18"},
        **{"precision": "fp32", "math_mode": "fp32", "iterations": 10, "max_rss_mb": 1000},
        **{"throughput_images_per_s": 10, "iteration_time_ms_p50": 1000, "attained_gflops": 100},
        **{"pace_samples_per_s": 10, "pace_half_width": 0, "first_steady_iteration": 1},
        **{"window_class": "unproven", "warmup_iters": None, "iters": None},
        **{"intensity_min": 4, "step_gb_fused": 10, "persistent_workers": True, "augment": False},
        **{"cudnn": None, "zone": None, "code": None, "ipc": None},
    },
    "whole": {
        **{f"{name}_time_s": time_s for name, time_s in PHASE_TIMES.items()},
        **{"gpu_power_w_mean": 2, "cpu_package_power_w_mean": 2},
        "energy_j_per_image": pytest.approx(1.6),  # 96 J for 60 images
        "ended_early": "max_seconds=60 after 6 of 100",
        **{"warmup_ended_early": "2 of 10 iterations", "findings": "suspect: slower; note: hot"},
        **{"parameters": 100, "forward_gmac": 0.5, "weights_mb": 1e-6, "os": "Linux"},
        **{"torch": "2.15.0", "cuda": "12.8", "driver": "570.1", "zone": "europe-west4-b"},
        **{"storage": "ext4", "device_memory_gb": 150.8, "cudnn": None, "machine_type": None},
        **{"code": "0" * 12, "code_commit": f"{'c' * 12} changed", "git_commit": None},
    },
    "asked": {
        **{"batch_size_given": "auto", "batch_size": 10, "workers_given": "2", "workers": 0},
        "max_seconds": 60.0,
    },
    "loader alone": {
        **{"loader_images_per_s": 10, "throughput_images_per_s": None, "forward_time_s": None},
        **{"gpu_power_w_mean": None, "findings": None, "ended_early": None},
        "warmup_ended_early": None,
    },
    "ranks": {"communication_share": pytest.approx(0.2)},  # 0.4 of 0.5 s without it
    "failed": {
        **{"outcome": "oom", "reason": "CUDA out of memory at batch 512", "zone": "europe-west4-b"},
        **{"throughput_images_per_s": None, "batch_size": None, "iterations": None},
        "math_mode": None,
    },
}


def missing_as_none(row, names):
    return {name: None if pd.isna(row[name]) else row[name] for name in names}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_holds_the_record(kind):
    row = frame_of(tracked(EVERY_KIND[kind])).iloc[0]
    assert missing_as_none(row, ROWS[kind]) == ROWS[kind]


@pytest.mark.parametrize(
    ("logged", "value"),
    [("'/my data'", "/my data"), ("synthetic", "synthetic"), ("''", ""), ("'it''s'", "its")],
)
def test_the_shell_quotes_of_mlflow_run_are_undone(logged, value):
    assert (
        frame_of(replace(tracked(make.run_record()), params={"data": logged}))["data"][0] == value
    )


def test_every_metric_that_a_record_of_any_kind_may_log_has_a_column(monkeypatch):
    """Also those that no sample knows: what is unknown is logged as 1."""

    def known(found):
        return {name: 1.0 if value is None else value for name, value in found.items()}

    monkeypatch.setattr(record_metrics, "_known", known)
    imported = read_results(PUBLISHED, campaign="none", given={}).records[0]
    ended_well = [record for name, record in EVERY_KIND.items() if name != "failed"]
    records = [*ended_well, imported, make.ceilings_record()]
    kinds = typing.get_args(typing.get_args(AnyRecord)[0])
    assert {type(record) for record in records} == set(kinds)
    columns = set(frame_of(placed={}).columns)
    [placed] = place_runs([make.run_record()], [make.ceilings_record()])
    beside = with_cost(addition_of(placed), 1.0, "a price", "image")
    for record in records:
        logged = {point.key for point in content_of(record, beside).metrics}
        series = {name for name in logged if name.startswith(schema.TELEMETRY_PREFIX)}
        # a row has the one roof that its run stands under
        named = {re.sub("^(peak_gflops)_(fp32|tf32|bf16|fp16)$", r"\1", name) for name in logged}
        assert named - series - {schema.ITERATION_TIME_MS} <= columns


def test_the_documentation_lists_every_column():
    text = (Path(__file__).resolve().parents[3] / "docs" / "report.md").read_text("utf-8")
    listed = set(re.findall(r"`(\w+)`", text))
    assert set(frame_of(placed={}).columns) <= listed
    assert metric_columns().keys() == {*schema.COMPARED}


def test_iterations_have_their_phases_where_these_were_timed(monkeypatch):
    records = {"timed": EVERY_KIND["whole"], "not": make.run_record(), "oom": make.failed_record()}
    Server(monkeypatch, {**records, "old": published_records()["line-2"]})
    table = pull_iterations(["timed", "not", "oom", "old"]).set_index("run_id")
    assert set(table.index) == {"timed", "not"}
    for phase, time_s in PHASE_TIMES.items():
        assert table.loc["timed", f"{phase}_time_ms"].tolist() == [1e3 * time_s] * 6
        assert table.loc["not", f"{phase}_time_ms"].isna().all()
    assert table.loc["not", "iteration_time_ms"].tolist() == [1000.0] * 10


def test_filters_are_joined_and_a_campaign_cannot_end_one():
    assert runs_filter(kind="measurement") == "tags.`mlproject.kind` = 'measurement'"
    assert runs_filter(" params.arch = 'vgg16' ", "night-1", kind="measurement") == (
        "tags.`mlproject.kind` = 'measurement' and tags.`mlproject.campaign` = 'night-1'"
        " and params.arch = 'vgg16'"
    )
    for campaign in ("", "x' or '1' = '1", "a`b", 'a"b', "a\\"):
        with pytest.raises(UserError, match="campaign="):
            runs_filter("", campaign, kind="measurement")


def test_with_roofs_each_row_says_where_the_run_stands_or_why_not(monkeypatch):
    damaged = UserError("record.json is damaged")
    damaged.kind = "ceilings"
    runs = {
        "r1": make.run_record(),
        "r2": make.run_record("run-2", step_s=0.1),  # 1000 GFLOP/s under a roof of 200
        "oom": make.failed_record(),
        "gpu": make.run_record("run-3", environment=make.environment(device=make.gpu())),
        "bad": UserError("no record.json"),
        "old": published_records()["line-2"],
        "trace": samples.trace_record(),
    }
    Server(monkeypatch, {**runs, "c1": make.ceilings_record(), "c2": damaged})
    table = pull_runs(roofs=True).set_index("run_id")
    expected = {
        **{"bound": "compute", "bound_sure": True, "ridge_flop_per_byte": 4},
        **{"attainable_gflops_min": 200, "attainable_gflops_max": 200, "fraction_of_peak": 0.5},
        **{"fraction_of_roof_min": 0.5, "fraction_of_roof_max": 0.5, "peak_gflops": 200},
        **{"peak_gb_per_s": 50, "ceiling_kind": "measured", "verdict_under_roof": "clean"},
        **{"not_placed": None, "findings_under_roof": None},
    }
    assert missing_as_none(table.loc["r1"], expected) == expected
    assert (table["verdict"]["r2"], table["verdict_under_roof"]["r2"]) == ("clean", "invalid")
    assert "invalid: 500 % of the compute ceiling" in table["findings_under_roof"]["r2"]
    why = table["not_placed"]
    assert why["oom"].startswith("outcome oom: CUDA out of memory")
    assert why["gpu"].startswith("no ceiling: ")
    assert why["gpu"].endswith("1 cannot be read: record.json is damaged")
    assert why["bad"] == "no record: no record.json"
    assert why["old"] == "no complexity: not counted"
    assert why["trace"].startswith("a trace: ")
    without = table[why.notna()]
    assert set(without.index) == {"oom", "gpu", "bad", "old", "trace"}
    assert without[["bound", "fraction_of_peak"]].isna().all(axis=None)
    own = Peaks(devices="Example GPU", fp32_tflop_per_s=1, memory_gb_per_s=2, source="a letter")
    with_own = pull_runs(roofs=True, peaks=[own]).set_index("run_id")
    assert with_own["ceiling_source"]["gpu"] == "a letter"
    monkeypatch.undo()
    Server(monkeypatch)
    empty = pull_runs(roofs=True)
    assert {"bound", "not_placed"} <= {*empty.columns} <= {*table.reset_index().columns}
    assert "bound" not in pull_runs()


def test_points_are_the_placed_rows_with_the_numbers_of_their_place(monkeypatch):
    mine = make.environment(cloud_zone="europe-west4-b", cuda="12.8")
    measured = make.measurement(images=20, step_s=2.0)
    two = {"settings": {"grad_accum_steps": 2}, "measurement": measured}
    runs = {
        "r1": make.run_record(environment=mine),
        "r2": make.run_record("run-2", **two),
        "oom": make.failed_record(),
        "old": published_records()["line-2"],
        "c1": make.ceilings_record(),
        "p1": make.profile(),
    }
    server = Server(monkeypatch, runs)
    table = pull_points(FILTER, experiments=["night"], campaign="c").set_index("run_id")
    assert server.asked[0][:2] == (runs_filter(FILTER, "c", kind="measurement"), ["night"])
    assert sorted(table.index) == ["r1", "r2"]
    expected = {
        **{"attained_gflops": 100, "intensity_min": 4, "intensity_max": 10, "step_gflop": 100},
        **{"zone": "europe-west4-b", "cuda": "12.8", "precision_ran": "fp32", "parameters": 100},
        **{"step_gb_compulsory": 5, "ceiling_record_id": "ceilings-1", "bound": "compute"},
    }
    assert missing_as_none(table.loc["r1"], expected) == expected
    # two batches, one optimizer step: 200 GFLOP over 2 x 25 - 5 GB
    assert table.loc["r2", "intensity_min"] == pytest.approx(200 / 45)
    assert pd.isna(table.loc["r2", "intensity_counted"])
    without = set(pull_runs(roofs=True).columns) - {"run_id"} - set(table.columns)
    assert without == {"not_placed"}
    monkeypatch.undo()
    Server(monkeypatch)
    empty = pull_points()
    assert empty.empty
    assert empty.dtypes.drop("run_id").equals(table.dtypes[empty.columns.drop("run_id")])


def test_records_alone_give_the_table_that_a_server_gives(monkeypatch):
    records = [make.run_record("a"), make.failed_record(), make.profile(), make.ceilings_record()]
    Server(monkeypatch, {record.record_id: record for record in records})
    there = pull_runs(roofs=True).set_index("run_id").sort_index()
    here = RecordSet.of(records).frame().set_index("run_id").sort_index()
    assert not here.loc["a", ["counted_dram_gb", "bound", "throughput_images_per_s"]].isna().any()
    pd.testing.assert_frame_equal(here.drop(columns="name"), there.drop(columns="name"))


# Records


def test_each_record_is_read_once_and_what_cannot_be_read_is_named(monkeypatch):
    good, roofs, profile = make.run_record("a"), make.ceilings_record("c"), make.profile()
    other = make.profile("other", config=RunConfig(arch="vgg16"), timed_record_id=None)
    runs = {"r1": good, "again": good, "r2": UserError("no record.json"), "r3": roofs}
    server = Server(monkeypatch, {**runs, "p1": profile, "p2": other})
    found = pull_records()
    assert (found.measurements, found.ceilings, found.profiles) == ([good], [roofs], [profile])
    assert found.run_ids == {"a": "r1", "c": "r3", "profile-1": "p1"}
    assert found.unreadable == ["name-r2 (r2): no record.json"]
    assert server.fetched == ["r1", "again", "r2", "r3", "p1"]  # no other configuration's profile
    # a profile without a timed twin is for a report
    assert pull_records(traces=True).profiles == [profile, other]


def test_records_from_disk_are_sorted_by_kind_and_campaign():
    night = make.run_record("a", config=RunConfig(campaign="night"))
    other, roofs = make.run_record("b"), make.ceilings_record()
    kept = RecordSet.of([night, roofs, other]).measurements
    assert kept == [night, other]
    assert kept[0].complexity is kept[1].complexity  # equal parts take memory once
    profile = make.profile(config=RunConfig(campaign="night"))
    of_step, of_another = make.profile("p2"), make.profile("p3", config=RunConfig(arch="vgg16"))
    found = RecordSet.of([of_step, night, roofs, other, profile, of_another], "night")
    assert found.measurements == [night]
    assert found.ceilings == [roofs]
    assert found.profiles == [of_step, profile]  # the first explains a run of the campaign


# Which profile a row is of


@pytest.mark.parametrize(
    ("explained", "changes"),
    [
        (True, {"config": RunConfig(arch="resnet18", batch_size=10, iters=7, max_seconds=9.0)}),
        (True, {"config": RunConfig(arch="resnet18")}),  # auto became 10
        (False, {"config": RunConfig(arch="vgg16")}),
        (False, {"resolved": make.resolved(batch_size=20)}),
        (False, {"environment": make.environment(model_code=samples.model_code())}),
        (False, {"environment": make.environment(label="another")}),
        (False, {"timed_record_id": "run-1", "verdict": Verdict(level="invalid", findings=())}),
    ],
)
def test_the_profile_of_a_row_is_a_possible_one_of_the_same_step(explained, changes):
    profile = tracked(make.profile(**{"timed_record_id": None, **changes}), "p1")
    table = frame_of(tracked(make.run_record()), profiles=[profile])
    found = table[["profile_run_id", "counted_dram_gb"]].notna()
    assert found.iloc[0].tolist() == [explained] * 2
