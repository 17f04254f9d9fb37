"""`mlproject report` and `mlproject pull` as a user calls them, without a server."""

import json

import factories as make
import pandas as pd
import pytest
from click.testing import CliRunner
from observed import Server, tracked

import commands.analyse.compare
import commands.analyse.pull
import commands.analyse.report
from analysis.runs.tracked.run_table import runs_table
from bench.errors import UserError
from tracking.store import TrackingError


def records_on_disk(folder, *records):
    for record in records:
        path = folder / record.record_id
        path.mkdir(parents=True)
        (path / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    return str(folder)


def invoke(module, *arguments):
    return CliRunner().invoke(
        module.command, [str(a) for a in arguments], standalone_mode=False, catch_exceptions=False
    )


@pytest.mark.slow
def test_report_from_a_folder_needs_no_server(tmp_path):
    records = records_on_disk(tmp_path / "records", make.run_record(), make.ceilings_record())
    arguments = ("--records", records, "--out", tmp_path / "out")
    done = invoke(commands.analyse.report, *arguments)
    assert done.return_value == 0
    assert done.output.splitlines() == [
        "run-1  lab resnet18 fp32 batch 10: 10 images/s, bound compute, clean",
        f"report: {tmp_path / 'out' / 'report.html'}",
    ]
    assert (tmp_path / "out" / "report.md").is_file()
    as_json = (*arguments, "--format", "json")
    facts = json.loads(invoke(commands.analyse.report, *as_json).output)
    assert facts["report"] == str(tmp_path / "out" / "report.html")
    assert facts["report_run_id"] is None
    (run,) = facts["runs"]
    assert (run["record_id"], run["bound"], run["verdict"]) == ("run-1", "compute", "clean")
    assert run["images_per_s"] == 10
    assert run["fraction_of_roof_min"] == 0.5
    assert (run["env"], run["arch"], run["precision"], run["batch_size"], run["math_mode"]) == (
        "lab", "resnet18", "fp32", 10, "fp32",
    )  # fmt: skip
    flop_per_byte = [run[f"{name}_flop_per_byte"] for name in ("intensity_min", "intensity_max")]
    assert [*flop_per_byte, run["ridge_flop_per_byte"]] == [4, 10, 4]


@pytest.mark.slow
def test_report_places_runs_under_peaks_of_ones_own_and_names_their_source(tmp_path):
    gpu = make.environment(device=make.gpu(name="My GPU"))
    records = records_on_disk(
        tmp_path / "records",
        make.run_record(environment=gpu, resolved=make.resolved(backend="cuda")),
    )
    peaks = tmp_path / "own.csv"
    peaks.write_text(
        "devices,power_limit_w,multiprocessors,fp32_tflop_per_s,tf32_tflop_per_s,bf16_tflop_per_s,"
        "fp16_tflop_per_s,memory_gb_per_s,source\nMy GPU,,,0.2,,,,50,My datasheet\n"
    )
    arguments = ("--records", records, "--out", tmp_path / "out")
    assert "not placed" in invoke(commands.analyse.report, *arguments).output
    done = invoke(commands.analyse.report, *arguments, "--peaks", peaks)
    assert "bound compute" in done.output
    assert "My datasheet (own.csv)" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_report_says_what_is_wrong_with_a_run(tmp_path):
    fast = make.run_record("fast", step_s=0.4)
    records = records_on_disk(
        tmp_path / "records", fast, make.failed_record(), make.ceilings_record()
    )
    done = invoke(commands.analyse.report, "--records", records, "--out", tmp_path / "out")
    assert done.return_value == 1  # impossible numbers fail the report
    assert "run-oom  lab resnet18 fp32 batch 10: no result" in done.output
    assert "    not placed: outcome oom: CUDA out of memory at batch 512" in done.output
    assert "    invalid: 125 % of the compute ceiling" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "{folder}"], "holds no measurement"),
        (["--records", "{folder}", "--campaign", "x"], "holds no measurement of campaign 'x'"),
        (["--records", "{folder}/none"], "no such folder"),
        (["--records", "{folder}", "--filter", "params.arch = 'a'"], "--filter and --experiment"),
        (["--records", "{folder}", "--peaks", "{folder}/none.csv"], "none.csv': cannot be read"),
    ],
)
def test_report_refuses_in_one_line(tmp_path, arguments, message):
    records_on_disk(tmp_path, make.ceilings_record())
    with pytest.raises(UserError, match=message) as refusal:
        invoke(commands.analyse.report, *[a.format(folder=tmp_path) for a in arguments])
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_report_of_tracked_runs_is_logged_back(tmp_path, monkeypatch):
    records = [make.run_record(), make.ceilings_record(), make.profile()]
    server = Server(monkeypatch, records=records)
    done = invoke(commands.analyse.report, "--campaign", "night", "--out", tmp_path / "out")
    assert done.return_value == 0
    assert done.output.startswith("id-of-run-1  lab resnet18")
    assert "id-of-profile-1  profile of lab resnet18 fp32 batch 10: clean" in done.output
    assert "logged as run report-run" in done.output
    ((folder, name, tags),) = server.logged
    assert (folder, name) == (tmp_path / "out", "report_night")
    assert tags["mlproject.campaign"] == "night"
    again = invoke(commands.analyse.report, "--no-log", "--out", tmp_path / "out")
    assert again.return_value == 0
    assert len(server.logged) == 1


def test_a_report_that_cannot_be_logged_is_kept(tmp_path, monkeypatch):
    Server(monkeypatch, records=[make.run_record()], log_error=TrackingError("server gone"))
    done = invoke(commands.analyse.report, "--out", tmp_path / "out")
    assert done.return_value == 3
    assert "report not logged (server gone)" in done.stderr
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("module", [commands.analyse.report, commands.analyse.pull])
def test_a_selection_without_runs_is_one_line(monkeypatch, module):
    Server(monkeypatch)
    with pytest.raises(UserError) as refusal:
        invoke(module, "--campaign", "night", "--filter", "params.arch = 'x'")
    assert str(refusal.value).startswith(
        "campaign='night' filter=\"params.arch = 'x'\": no tracked measurement matches"
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (commands.analyse.report, ()),
        (commands.analyse.pull, ()),
        (commands.analyse.compare, ("campaign=a", "campaign=b")),
    ],
)
def test_a_server_that_fails_is_one_line(monkeypatch, module, arguments):
    Server(monkeypatch, error=TrackingError("http://server: refused"))
    with pytest.raises(UserError, match="http://server: refused"):
        invoke(module, *arguments)


@pytest.fixture
def one_run(monkeypatch):
    table = runs_table([tracked(make.run_record())])
    monkeypatch.setattr("analysis.pull_runs", lambda *_, **__: table)
    return table


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_pull_prints_csv_or_writes_a_file(tmp_path, one_run, suffix):
    header, row = invoke(commands.analyse.pull).output.splitlines()
    assert header.startswith("run_id,name,status,started,")
    assert row.startswith("r1,")
    out = tmp_path / f"runs.{suffix}"
    assert invoke(commands.analyse.pull, "--out", out).return_value == 0
    table = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert table["throughput_images_per_s"].tolist() == [10.0]
    if suffix == "parquet":
        pd.testing.assert_frame_equal(table, one_run, check_dtype=False)
        assert str(table["batch_size"].dtype) == "Int64"


def test_pull_takes_peaks_for_roofs_alone(tmp_path, one_run):
    with pytest.raises(UserError, match="only --roofs uses peaks; give it too"):
        invoke(commands.analyse.pull, "--peaks", tmp_path / "own.csv")


@pytest.mark.parametrize(
    ("name", "message"),
    [("runs.xls", r"name a .csv or a .parquet file"), ("no/runs.csv", "cannot write there")],
)
def test_pull_into_what_cannot_be_written_is_one_line(tmp_path, one_run, name, message):
    with pytest.raises(UserError, match=message):
        invoke(commands.analyse.pull, "--out", tmp_path / name)
