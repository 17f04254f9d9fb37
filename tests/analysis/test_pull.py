"""The pulled table: types, units, what is missing, and the filter that is asked."""

import re
import typing
from dataclasses import replace
from pathlib import Path

import factories as make
import pandas as pd
import pytest
import samples
from observed import PUBLISHED, Server, Tracked, published_records, tracked

from analysis import RecordSet, place_runs, pull_iterations, pull_points, pull_records, pull_runs
from analysis.roofs.peaks import datasheet_peaks
from analysis.runs.tracked.additions import addition_of, with_cost
from analysis.runs.tracked.run_table import runs_table
from bench.config import RunConfig
from bench.errors import UserError
from bench.records import Verdict
from bench.records.folders import AnyRecord
from bench.records.verdict import record_metrics
from bench.records.verdict.record_metrics import MEAN_SERIES
from tracking import schema
from tracking.content import content_of
from tracking.importing import read_results
from tracking.schema import PROFILES_FILTER, runs_filter

FILTER = "params.arch = 'a'"


def test_a_row_holds_the_record():
    row = runs_table([tracked(make.run_record())]).iloc[0]
    assert row["run_id"] == "r1"
    assert row["started"] == pd.Timestamp("2025-06-01 12:00", tz="UTC")
    assert (row["record_id"], row["env"], row["verdict"]) == ("run-1", "lab", "clean")
    assert (row["arch"], row["precision"], row["math_mode"]) == ("resnet18", "fp32", "fp32")
    assert row["throughput_images_per_s"] == 10
    assert row["iteration_time_ms_p50"] == 1000
    assert row["attained_gflops"] == 100
    assert row["intensity_min"] == 4
    assert row["step_gb_fused"] == 10
    assert row["max_rss_mb"] == 1000
    assert row["iterations"] == 10
    assert row["persistent_workers"]
    assert not row["augment"]


def test_given_and_resolved_are_two_columns():
    config = RunConfig(arch="resnet18", batch_size="auto", workers=2)
    row = runs_table([tracked(make.run_record(config=config))]).iloc[0]
    assert (row["batch_size_given"], row["batch_size"]) == ("auto", 10)
    assert (row["workers_given"], row["workers"]) == ("2", 0)
    assert row["max_seconds"] == 60.0


def test_types_hold_with_and_without_rows():
    expected = {
        "run_id": "string",
        "started": "datetime64[ns, UTC]",
        "batch_size": "Int64",
        "batch_size_given": "string",
        "iters": "Int64",
        "seed": "Int64",
        "augment": "boolean",
        "channels_last": "boolean",
        "max_seconds": "float64",
        "iterations": "Int64",
        "throughput_images_per_s": "float64",
        "forward_time_s": "float64",
        "parameters": "Int64",
        "device_memory_gb": "float64",
        "zone": "string",
    }
    for runs in ([], [tracked(make.run_record())], [Tracked()]):
        table = runs_table(runs)
        assert {name: str(table[name].dtype) for name in expected} == expected
        assert len(table) == len(runs)
    assert table[["forward_time_s", "parameters", "device_memory_gb", "zone"]].isna().all(axis=None)


def test_what_a_run_lacks_is_missing_not_zero():
    row = runs_table([tracked(make.failed_record())]).iloc[0]
    assert row["outcome"] == "oom"
    assert row["reason"] == "CUDA out of memory at batch 512"
    assert row[["throughput_images_per_s", "batch_size", "iterations", "math_mode"]].isna().all()
    # odd values are missing, no errors
    odd = Tracked(
        params={"iters": "many", "augment": "maybe", "resolved_max_seconds": "none"},
        metrics={"attained_gflops": float("nan"), "iterations": 3.0},
    )
    row = runs_table([odd]).iloc[0]
    assert row[["iters", "augment", "max_seconds", "attained_gflops"]].isna().all()
    assert row["iterations"] == 3


@pytest.mark.parametrize(
    ("logged", "value"),
    [("'/my data'", "/my data"), ("synthetic", "synthetic"), ("''", ""), ("'it''s'", "its")],
)
def test_the_shell_quotes_of_mlflow_run_are_undone(logged, value):
    assert runs_table([Tracked(params={"data": logged})])["data"][0] == value


SAMPLED = tuple(
    samples.Series(name=name, source="sample", times_s=(0.0, 0.5), values=(1.0, 3.0))
    for name in MEAN_SERIES
)
PHASE_TIMES = {"data": 0.125, "forward": 0.1875, "backward": 0.125, "optimizer": 0.03125}
EVERY_KIND = {
    "whole": make.run_record(
        measurement=samples.measurement(
            phase_times_s={name: (time_s,) * 6 for name, time_s in PHASE_TIMES.items()},
            compile_time_s=2.0,
            peak_memory_allocated_bytes=10**9,
            ended_early="max_seconds=60 after 6 of 100",
            warmup_ended_early="2 of 10 iterations",
        ),
        telemetry=samples.telemetry(energy_j=96.0, series=SAMPLED),
        verdict=Verdict.of([("drift", "suspect", "slower"), ("heat", "note", "hot")]),
    ),
    "loader alone": make.run_record(settings={"data": "fakedata", "data_only": True}),
    "ranks": make.run_record(
        settings={"devices": 2},
        measurement=samples.measurement(ranks=samples.distributed_figures()),
    ),
    "failed": make.failed_record(),
    "profile": make.profile(
        ops=samples.op_profile(device_busy_share=0.8), cpu_counters=samples.cpu_counters()
    ),
    "trace": samples.trace_record(),
}


@pytest.mark.parametrize(
    "record", [*EVERY_KIND.values(), published_records()["line-2"]], ids=[*EVERY_KIND, "imported"]
)
def test_every_logged_metric_has_a_column(record):
    run = tracked(record)
    table = runs_table([run], [run])
    shown = {name for name in table.columns if not table[name].isna().all()}
    logged = {name for name in run.metrics if not name.startswith(schema.TELEMETRY_PREFIX)}
    assert logged - {schema.ITERATION_TIME_MS} <= shown


def test_every_metric_that_a_record_of_any_kind_may_log_has_a_column(monkeypatch):
    """Also those that no sample knows: what is unknown is logged as 1."""
    monkeypatch.setattr(
        record_metrics,
        "_known",
        lambda found: {name: 1.0 if value is None else value for name, value in found.items()},
    )
    imported = read_results(PUBLISHED, campaign="none", given={}).records[0]
    ended_well = [record for name, record in EVERY_KIND.items() if name != "failed"]
    records = [*ended_well, imported, make.ceilings_record()]
    assert {type(record) for record in records} == set(
        typing.get_args(typing.get_args(AnyRecord)[0])
    )
    columns = set(runs_table([], places={}).columns)
    [placed] = place_runs([make.run_record()], [make.ceilings_record()])
    beside = with_cost(addition_of(placed), 1.0, "a price", "image")
    for record in records:
        logged = {point.key for point in content_of(record, beside).metrics}
        series = {name for name in logged if name.startswith(schema.TELEMETRY_PREFIX)}
        # a row has the one roof that its run stands under
        named = {re.sub("^(peak_gflops)_(fp32|tf32|bf16|fp16)$", r"\1", name) for name in logged}
        assert named - series - {schema.ITERATION_TIME_MS} <= columns


def test_iterations_have_their_phases_where_these_were_timed(monkeypatch):
    Server(monkeypatch, {"timed": EVERY_KIND["whole"], "not": make.run_record()})
    table = pull_iterations(["timed", "not"]).set_index("run_id")
    for phase, time_s in PHASE_TIMES.items():
        assert table.loc["timed", f"{phase}_time_ms"].tolist() == [1e3 * time_s] * 6
        assert table.loc["not", f"{phase}_time_ms"].isna().all()
    assert table.loc["not", "iteration_time_ms"].tolist() == [1000.0] * 10


def test_a_row_holds_phases_telemetry_and_the_size_of_the_model():
    row = runs_table([tracked(EVERY_KIND["whole"])]).iloc[0]
    assert {name: row[f"{name}_time_s"] for name in PHASE_TIMES} == PHASE_TIMES
    assert row["gpu_power_w_mean"] == row["cpu_package_power_w_mean"] == 2
    assert row["energy_j_per_image"] == 2  # 96 J for 48 images
    assert row["ended_early"] == "max_seconds=60 after 6 of 100"
    assert row["warmup_ended_early"] == "2 of 10 iterations"
    assert row["findings"] == "suspect: slower; note: hot"
    assert (row["parameters"], row["forward_gmac"], row["weights_mb"]) == (100, 0.5, 1e-6)
    other = runs_table([tracked(EVERY_KIND["loader alone"])]).iloc[0]
    assert other["loader_images_per_s"] == 10
    without = ["throughput_images_per_s", "forward_time_s", "gpu_power_w_mean", "findings"]
    assert other[[*without, "ended_early", "warmup_ended_early"]].isna().all()
    ranks = runs_table([tracked(EVERY_KIND["ranks"])]).iloc[0]
    assert ranks["communication_share"] == pytest.approx(0.2)  # 0.4 of 0.5 s without it


def test_the_machine_is_a_tag_and_a_column_on_failed_runs_too():
    gpu = make.gpu(memory_bytes=150_754_820_096)
    machine = make.environment(device=gpu, cuda="12.8", cloud_zone="europe-west4-b", storage="ext4")
    for record in (make.run_record(environment=machine), make.failed_record(environment=machine)):
        run = tracked(record)
        assert run.tags["mlproject.torch"] == "2.15.0"
        assert "mlproject.cudnn" not in run.tags  # unknown here
        row = runs_table([run]).iloc[0]
        assert (row["os"], row["cuda"], row["driver"]) == ("Linux", "12.8", "570.1")
        assert (row["zone"], row["storage"]) == ("europe-west4-b", "ext4")
        assert row["device_memory_gb"] == 150.8
        assert row[["cudnn", "machine_type"]].isna().all()


def test_tags_of_ones_own_are_columns():
    mine = Tracked(tags={"team": "vision", "mlflow.user": "me", schema.CAMPAIGN: "night"})
    table = runs_table([mine, tracked(make.run_record(), "r2")])
    assert [name for name in table if "." in name] == ["tags.team"]
    assert table["tags.team"][0] == "vision"
    assert pd.isna(table["tags.team"][1])


def test_the_documentation_lists_every_column():
    text = (Path(__file__).resolve().parents[2] / "docs" / "analysis.md").read_text("utf-8")
    listed = set(re.findall(r"`(\w+)`", text))
    assert set(runs_table([], places={}).columns) <= listed


def test_filters_are_joined_and_a_campaign_cannot_end_one():
    assert runs_filter(kind="measurement") == "tags.`mlproject.kind` = 'measurement'"
    assert runs_filter(" params.arch = 'vgg16' ", "night-1", kind="measurement") == (
        "tags.`mlproject.kind` = 'measurement' and tags.`mlproject.campaign` = 'night-1'"
        " and params.arch = 'vgg16'"
    )
    for campaign in ("", "x' or '1' = '1", "a`b", 'a"b', "a\\"):
        with pytest.raises(UserError, match="campaign="):
            runs_filter("", campaign, kind="measurement")


def test_pull_asks_the_server_it_was_given(monkeypatch):
    server = Server(monkeypatch, {"r1": make.run_record()})
    table = pull_runs(FILTER, experiments=["night"], tracking_uri="http://server", refresh=True)
    assert len(table) == 1
    assert server.asked == [
        (runs_filter(FILTER, kind="measurement"), ["night"], "http://server", True),
        (runs_filter(FILTER, kind="imported"), ["night"], "http://server", True),
        (runs_filter(FILTER, kind="trace"), ["night"], "http://server", True),
        (PROFILES_FILTER, None, "http://server", True),
    ]


def test_with_roofs_each_row_says_where_the_run_stands_or_why_not(monkeypatch):
    doubtful = make.run_record("run-2", step_s=0.1)  # 1000 GFLOP/s under a roof of 200
    runs = {"r1": make.run_record(), "r2": doubtful, "oom": make.failed_record()}
    elsewhere = make.run_record("run-3", environment=make.environment(device=make.gpu()))
    broken, imported = UserError("no record.json"), published_records()["line-2"]
    damaged = UserError("record.json is damaged")
    damaged.kind = "ceilings"
    Server(
        monkeypatch,
        {
            **{**runs, "gpu": elsewhere, "bad": broken, "old": imported},
            **{"c1": make.ceilings_record(), "c2": damaged},
        },
    )
    table = pull_runs(roofs=True).set_index("run_id")
    placed = table.loc["r1"]
    assert (placed["bound"], placed["bound_sure"]) == ("compute", True)
    assert (placed["ridge_flop_per_byte"], placed["fraction_of_peak"]) == (4, 0.5)
    assert placed["attainable_gflops_min"] == placed["attainable_gflops_max"] == 200
    assert placed["fraction_of_roof_min"] == placed["fraction_of_roof_max"] == 0.5
    assert (placed["peak_gflops"], placed["peak_gb_per_s"]) == (200, 50)
    assert (placed["ceiling_kind"], placed["verdict_under_roof"]) == ("measured", "clean")
    assert placed[["not_placed", "findings_under_roof"]].isna().all()
    assert (table["verdict"]["r2"], table["verdict_under_roof"]["r2"]) == ("clean", "invalid")
    assert "invalid: 500 % of the compute ceiling" in table["findings_under_roof"]["r2"]
    assert table["not_placed"]["oom"].startswith("outcome oom: CUDA out of memory")
    assert table["not_placed"]["gpu"].startswith("no ceiling: ")
    assert table["not_placed"]["gpu"].endswith("1 cannot be read: record.json is damaged")
    assert table["not_placed"]["bad"] == "no record: no record.json"
    assert table["not_placed"]["old"] == "no complexity: not counted"
    without = table.loc[["oom", "gpu", "bad", "old"]]
    assert without[["bound", "fraction_of_peak"]].isna().all(axis=None)
    own = replace(datasheet_peaks()[0], names=frozenset({"example gpu"}), source="a letter")
    assert (
        pull_runs(roofs=True, peaks=[own]).set_index("run_id")["ceiling_source"]["gpu"]
        == "a letter"
    )
    monkeypatch.undo()
    Server(monkeypatch)
    empty = pull_runs(roofs=True)
    assert {"bound", "not_placed"} <= {*empty.columns} <= {*table.reset_index().columns}
    assert "bound" not in pull_runs()


def test_points_are_the_placed_rows_with_the_numbers_of_their_place(monkeypatch):
    mine = make.environment(cloud_zone="europe-west4-b", cuda="12.8")
    work, two = measurement_of_two_batches(), {"grad_accum_steps": 2}
    runs = {
        "r1": make.run_record(environment=mine),
        "r2": make.run_record("run-2", settings=two, measurement=work),
        "oom": make.failed_record(),
        "old": published_records()["line-2"],
        "c1": make.ceilings_record(),
        "p1": make.profile(),
    }
    server = Server(monkeypatch, runs)
    table = pull_points(FILTER, experiments=["night"], campaign="c").set_index("run_id")
    assert server.asked[0][:2] == (runs_filter(FILTER, "c", kind="measurement"), ["night"])
    assert sorted(table.index) == ["r1", "r2"]
    one, other = table.loc["r1"], table.loc["r2"]
    assert (one["attained_gflops"], one["intensity_min"], one["intensity_max"]) == (100, 4, 10)
    assert (one["zone"], one["cuda"], one["precision_ran"]) == ("europe-west4-b", "12.8", "fp32")
    assert (one["step_gflop"], one["step_gb_compulsory"], one["parameters"]) == (100, 5, 100)
    assert (one["ceiling_record_id"], one["bound"]) == ("ceilings-1", "compute")
    # two batches, one optimizer step: 200 GFLOP over 2 x 25 - 5 GB
    assert other["intensity_min"] == pytest.approx(200 / 45)
    assert pd.isna(other["intensity_counted"])
    unplaced = set(pull_runs(roofs=True).columns) - {"run_id"} - set(table.columns)
    assert {name for name in unplaced if not name.startswith("tags.")} == {"not_placed"}
    monkeypatch.undo()
    Server(monkeypatch)
    empty = pull_points()
    assert empty.empty
    assert empty.dtypes.drop("run_id").equals(table.dtypes[empty.columns.drop("run_id")])


def measurement_of_two_batches():
    return make.measurement(images=20, step_s=2.0)


def test_the_profile_that_does_not_fit_a_run_counts_nothing_in_its_point(monkeypatch):
    counted = make.run_record(measurement=make.measurement(work=make.WORK))
    Server(monkeypatch, {"r1": counted, "c1": make.ceilings_record(), "p1": make.profile()})
    row = pull_points().iloc[0]
    assert (row["intensity_counted"], row["traffic_amplification"]) == (5, 2)
    other = make.profile(counters=samples.counters(*make.kernels(dram_gb=1.0)))  # under compulsory
    monkeypatch.undo()
    Server(monkeypatch, {"r1": counted, "c1": make.ceilings_record(), "p1": other})
    assert pd.isna(pull_points().iloc[0]["intensity_counted"])
    assert pull_runs().iloc[0]["intensity_counted"] == 100


def test_imported_runs_stand_in_the_table_with_what_their_ledger_says(monkeypatch):
    records = published_records()
    ledger = {name: tracked(record, name) for name, record in records.items()}
    Server(monkeypatch, {"r1": make.run_record(), **records})
    table = pull_runs()
    assert len(table) == 49
    assert table["imported"].tolist().count(True) == 48
    assert not table.loc[table["run_id"] == "r1", "imported"].item()
    row = table[table["imported"]].iloc[0]
    told = ledger[row["run_id"]]
    assert row["batch_size"] == int(told.params["batch_size"])
    assert row["throughput_images_per_s"] == told.metrics["throughput_images_per_s"]
    assert row["throughput_images_per_s_std"] == told.metrics["throughput_images_per_s_std"]
    assert row["repeats"] == 3
    assert row[["batch_size_given", "workers", "intensity_min"]].isna().all()


def test_gather_reads_each_record_once_and_names_what_it_could_not_read(monkeypatch):
    good, roofs, profile = make.run_record("a"), make.ceilings_record("c"), make.profile()
    other = make.profile("other", config=RunConfig(arch="vgg16"))
    runs = {"r1": good, "again": good, "r2": UserError("no record.json"), "r3": roofs}
    server = Server(monkeypatch, {**runs, "p1": profile, "p2": other})
    found = pull_records()
    assert (found.measurements, found.ceilings, found.profiles) == ([good], [roofs], [profile])
    assert found.run_ids == {"a": "r1", "c": "r3", "profile-1": "p1"}
    assert found.unreadable == ["name-r2 (r2): no record.json"]
    assert server.fetched == ["r1", "again", "r2", "r3", "p1"]  # no other configuration's profile


def test_a_profile_without_a_timed_twin_is_gathered_for_a_report(monkeypatch):
    own = make.profile()
    other = make.profile("other", config=RunConfig(arch="vgg16"), timed_record_id=None)
    Server(monkeypatch, {"r1": make.run_record(), "p1": own, "p2": other})
    assert pull_records().profiles == [own]
    assert pull_records(traces=True).profiles == [own, other]


@pytest.mark.parametrize(
    ("changes", "explained"),
    [
        ({"config": RunConfig(arch="resnet18", batch_size=10, iters=7, max_seconds=9.0)}, True),
        ({"config": RunConfig(arch="resnet18")}, True),  # auto became 10
        ({"resolved": make.resolved(batch_size=20)}, False),
        ({"environment": make.environment(model_code=samples.model_code())}, False),
        ({"environment": make.environment(label="another")}, False),
    ],
)
def test_the_profile_of_a_row_is_of_the_same_step(monkeypatch, changes, explained):
    profile = make.profile(timed_record_id=None, **changes)
    Server(monkeypatch, {"r1": make.run_record(), "p1": profile})
    assert pull_runs()["profile_run_id"].notna().tolist() == [explained]


def test_the_code_of_a_users_model_is_a_column(monkeypatch):
    mine = make.environment(model_code=samples.model_code())
    Server(monkeypatch, {"r1": make.run_record(environment=mine), "r2": make.run_record("b")})
    table = pull_runs().set_index("run_id")
    assert table.loc["r1", "code"] == "0" * 12
    assert table.loc["r1", "code_commit"] == f"{'c' * 12} changed"
    assert table.loc[["r2"], "code"].isna().all()


def test_gather_brings_imported_runs_as_what_they_say(monkeypatch):
    records = published_records()
    server = Server(monkeypatch, records)
    found = pull_records(campaign="old")
    assert found.imported == list(records.values())
    runs = found.runs()
    assert len(runs) == 48
    assert runs[0].label == "colab_t4 mobilenet_v2 fp32 batch 128"  # in the order of a report
    assert runs[0].name.startswith("line-")
    asked = [query for query, *_ in server.asked]
    wanted = [runs_filter("", "old", kind=kind) for kind in ("measurement", "imported")]
    assert asked == [*wanted, runs_filter(kind="ceilings")]


def test_records_from_disk_are_sorted_by_kind_and_campaign():
    night = make.run_record("a", config=RunConfig(campaign="night"))
    other, roofs = make.run_record("b"), make.ceilings_record()
    assert RecordSet.of([night, roofs, other]).measurements == [night, other]
    profile = make.profile(config=RunConfig(campaign="night"))
    of_step, of_another = make.profile("p2"), make.profile("p3", config=RunConfig(arch="vgg16"))
    found = RecordSet.of([night, roofs, other, profile, of_step, of_another], "night")
    assert found.measurements == [night]
    assert found.ceilings == [roofs]
    assert found.profiles == [profile, of_step]  # the second explains a run of the campaign


def test_a_row_holds_what_the_profile_counted():
    runs = [tracked(make.run_record()), tracked(make.run_record("run-2"), "r2")]
    table = runs_table(runs, [tracked(make.profile(), "p1")])
    assert table["profile_run_id"].tolist() == ["p1", "p1"]  # the same configuration and device
    row = table.iloc[0]
    assert row["counted_dram_gb"] == 20
    assert row["intensity_counted"] == 5  # 100 GFLOP over 20 GB
    assert row["traffic_amplification"] == 2
    assert row["executed_gflop"] == 110
    assert pd.isna(row["ipc"])


@pytest.mark.parametrize(
    "profile",
    [
        make.profile(verdict=Verdict(level="invalid", findings=())),
        make.profile(config=RunConfig(arch="vgg16"), timed_record_id=None),
        make.profile(environment=make.environment(label="other"), timed_record_id=None),
    ],
)
def test_an_impossible_profile_or_another_configurations_fills_no_row(profile):
    row = runs_table([tracked(make.run_record())], [tracked(profile)]).iloc[0]
    assert pd.isna(row["profile_run_id"])
    assert pd.isna(row["counted_dram_gb"])


def test_of_several_profiles_the_one_that_counted_then_the_runs_own_is_taken():
    run = tracked(make.run_record())
    without = tracked(make.profile(counters=None), "newest")
    alike = tracked(make.profile(timed_record_id=None), "alike")
    own = tracked(make.profile(), "own")
    assert runs_table([run], [without])["profile_run_id"][0] == "newest"
    assert runs_table([run], [without, alike, own])["profile_run_id"][0] == "own"
    assert runs_table([run], [without, alike])["profile_run_id"][0] == "alike"
