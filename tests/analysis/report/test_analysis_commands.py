"""`mlproject report` and `mlproject pull` as a user calls them, without a server."""

import json
import re

import factories as make
import pandas as pd
import pytest
from observed import Server, frame_of, invoke, records_on_disk, tracked

import commands.compare
import commands.report
from bench.errors import UserError
from tracking.connection import TrackingError

pytestmark = pytest.mark.usefixtures("unpainted")


def test_report_from_a_folder_needs_no_server_and_says_what_is_wrong(tmp_path):
    folder, out = tmp_path / "records", tmp_path / "out"
    records_on_disk(folder, make.run_record(), make.ceilings_record())
    arguments = ("--records", folder, "--out", out)
    done = invoke(commands.report, *arguments, "--format", "json")
    assert done.return_value == 0
    facts = json.loads(done.output)
    assert (facts["report"], facts["report_run_id"]) == (str(out / "report.html"), None)
    (run,) = facts["runs"]
    assert (run["record_id"], run["bound"]) == ("run-1", "compute")
    records_on_disk(folder, make.run_record("fast", step_s=0.4), make.failed_record())
    done = invoke(commands.report, *arguments)
    assert done.return_value == 1  # impossible numbers fail the report
    assert "Run 1, lab resnet18 fp32 batch 10: invalid: 125 % of the compute ceiling" in done.output


def test_report_places_runs_under_peaks_of_ones_own_and_names_their_source(tmp_path):
    gpu = make.environment(device=make.gpu(name="My GPU"))
    run = make.run_record(environment=gpu, resolved=make.resolved(backend="cuda"))
    records = records_on_disk(tmp_path / "records", run)
    peaks = tmp_path / "own.csv"
    peaks.write_text(
        "devices,power_limit_w,multiprocessors,fp32_tflop_per_s,tf32_tflop_per_s,bf16_tflop_per_s,"
        "fp16_tflop_per_s,memory_gb_per_s,source\nMy GPU,,,0.2,,,,50,My datasheet\n"
    )
    arguments = ("--records", records, "--out", tmp_path / "out")
    assert "not placed" in invoke(commands.report, *arguments).output
    assert "bound compute" in invoke(commands.report, *arguments, "--peaks", peaks).output
    assert "My datasheet (own.csv)" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "{folder}"], "no measurement matches"),
        (["--records", "{folder}", "--campaign", "x"], "campaign='x': no measurement matches"),
        (["--records", "{folder}/none"], "no such folder"),
        (["--records", "{folder}", "--filter", "params.arch = 'a'"], "--filter and --experiment"),
        (["--records", "{folder}", "--peaks", "{folder}/none.csv"], "none.csv': cannot be read"),
    ],
)
def test_report_refuses_in_one_line(tmp_path, arguments, message):
    records_on_disk(tmp_path, make.ceilings_record())
    with pytest.raises(UserError, match=message) as refusal:
        invoke(commands.report, *[a.format(folder=tmp_path) for a in arguments])
    assert "\n" not in str(refusal.value)


def test_report_of_tracked_runs_is_logged_back_and_kept_where_it_cannot_be(tmp_path, monkeypatch):
    records = [make.run_record(), make.ceilings_record(), make.profile()]
    server = Server(monkeypatch, records=records)
    done = invoke(commands.report, "--campaign", "night", "--out", tmp_path / "out")
    assert done.return_value == 0
    assert done.output.startswith("id-of-run-1  run 1, lab resnet18")
    assert "id-of-profile-1  profile of lab resnet18 fp32 batch 10: clean" in done.output
    assert "logged as run report-run" in done.output
    ((folder, name, tags),) = server.logged
    assert (folder, name) == (tmp_path / "out", "report_night")
    assert tags["mlproject.campaign"] == "night"
    again = invoke(commands.report, "--no-log", "--out", tmp_path / "out")
    assert (again.return_value, len(server.logged)) == (0, 1)
    Server(monkeypatch, records=records, log_error=TrackingError("server gone"))
    done = invoke(commands.report, "--out", tmp_path / "kept")
    assert done.return_value == 3
    assert "report not logged (server gone)" in done.stderr
    assert (tmp_path / "kept" / "report.html").is_file()


@pytest.mark.parametrize(
    ("module", "arguments"),
    [(commands.report, ()), ("pull", ()), (commands.compare, ("campaign=a", "campaign=b"))],
)
def test_nothing_found_and_a_server_that_fails_are_one_line(monkeypatch, module, arguments):
    Server(monkeypatch)
    if not arguments:
        wanted = "campaign='night' filter=\"params.arch = 'x'\": no measurement matches"
        with pytest.raises(UserError, match=re.escape(wanted)):
            invoke(module, "--campaign", "night", "--filter", "params.arch = 'x'")
    Server(monkeypatch, error=TrackingError("http://server: refused"))
    with pytest.raises(UserError, match="http://server: refused"):
        invoke(module, *arguments)


@pytest.fixture
def one_run(monkeypatch):
    table = frame_of(tracked(make.run_record()))
    monkeypatch.setattr("analysis.pull_runs", lambda *_, **__: table)
    return table


def test_pull_prints_csv_or_writes_a_file(tmp_path, one_run):
    header, row = invoke("pull").output.splitlines()
    assert header.startswith("run_id,name,status,started,")
    assert row.startswith("r1,")
    for suffix, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        out = tmp_path / f"runs{suffix}"
        assert invoke("pull", "--out", out).return_value == 0
        table = read(out)
        assert table["throughput_images_per_s"].tolist() == [10.0]
    pd.testing.assert_frame_equal(table, one_run, check_dtype=False)
    assert str(table["batch_size"].dtype) == "Int64"


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--out", "runs.xls", r"name a .csv or a .parquet file"),
        ("--out", "no/runs.csv", "cannot write there"),
        ("--peaks", "own.csv", "only --roofs uses peaks; give it too"),
    ],
)
def test_pull_refuses_in_one_line(tmp_path, one_run, option, file, message):
    with pytest.raises(UserError, match=message):
        invoke("pull", option, tmp_path / file)
