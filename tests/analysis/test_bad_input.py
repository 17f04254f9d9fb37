"""Input that a report cannot use: a line for each, and the rest is reported."""

import json
import os
import shutil
from pathlib import Path

import factories as make
import pytest
from mlflow.tracking import MlflowClient
from observed import invoke

import commands.report
from analysis import pull_iterations, pull_record, pull_runs
from bench.errors import UserError
from bench.records import Job
from bench.records.folders import RecordFolder
from mlproject import main
from tracking import schema
from tracking.upload.upload import upload


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An embedded store with two measurements and their roof."""
    monkeypatch.chdir(tmp_path)  # where its artifacts go
    for record in (make.ceilings_record(), make.run_record(), make.run_record()):
        folder = RecordFolder.create(tmp_path / "records")
        record = record.model_copy(update={"record_id": folder.record_id})
        folder.close(record)
        upload(folder, record)
    return MlflowClient()


def report(*arguments):
    done = invoke(commands.report, "--no-log", *arguments)
    return done.return_value, done.output.splitlines()


def artifacts_of(store, run_id):
    return Path(store.get_run(run_id).info.artifact_uri.removeprefix("file://"))


@pytest.mark.slow
def test_a_run_whose_artifacts_were_deleted_is_one_line_and_the_others_are_reported(store):
    gone, kept = pull_runs()["run_id"]
    shutil.rmtree(artifacts_of(store, gone))
    there = artifacts_of(store, kept)
    away = there.rename(there.with_name("away"))
    with pytest.raises(UserError, match="no measurement matches; ") as refusal:
        report()
    assert "\n" not in str(refusal.value)
    away.rename(there)
    code, lines = report()
    assert code == 0
    [line] = [line for line in lines if line.startswith("not read, 1 of 1: ")]
    assert gone in line
    assert any(line.startswith(f"{kept}  lab resnet18") for line in lines)


@pytest.mark.slow
def test_a_metric_that_is_nan_is_missing_from_the_table_and_a_run_without_a_record_is_named(store):
    tags = {schema.KIND: "imported", schema.IMPORTED: "true", schema.SOURCE_FILE: "old.csv"}
    run_id = store.create_run("0", tags=tags).info.run_id
    store.log_metric(run_id, "throughput_images_per_s", float("nan"))
    store.log_param(run_id, "arch", "resnet18")
    table = pull_runs().set_index("run_id")
    assert table["throughput_images_per_s"].isna().tolist().count(True) == 1
    assert table.loc[run_id, "imported"]
    code, lines = report()
    assert code == 0
    [line] = [line for line in lines if line.startswith("not read, 1 of 1: ")]
    assert run_id in line
    assert "nan" not in Path("reports/latest/report.md").read_text("utf-8").casefold().split()


def number_of_400_digits(folder):
    record = json.loads(folder.record.read_text("utf-8"))
    record["complexity"]["step_flops"] = 10**400
    folder.record.write_text(json.dumps(record), encoding="utf-8")


FAULTS = (
    number_of_400_digits,
    lambda folder: (folder.record.unlink(), folder.record.mkdir()),
    *(  # Windows has no pipes with a name
        [lambda folder: (folder.record.unlink(), os.mkfifo(folder.record))]
        if hasattr(os, "mkfifo")
        else []
    ),
    lambda folder: folder.record.write_bytes(folder.record.read_bytes()[:999]),
    lambda folder: folder.record.rename(folder.worker),  # unfinished
)


@pytest.mark.slow
def test_records_that_cannot_be_read_are_a_line_each_and_the_others_are_used(tmp_path, capfd):
    """Of two folders that share a record, which counts once."""
    whole = [make.ceilings_record(), make.run_record(), make.run_record()]
    for number, record in enumerate((*whole, *(make.run_record() for _ in FAULTS))):
        folder = RecordFolder.create(tmp_path / "a")
        folder.write(
            folder.config, Job(config=record.config if number else make.run_record().config)
        )
        folder.close(record.model_copy(update={"record_id": folder.record_id}))
        if number >= len(whole):
            FAULTS[number - len(whole)](folder)
        else:
            shutil.copytree(folder.path, tmp_path / "b" / folder.record_id)
    both = ("--records", tmp_path / "a", "--records", tmp_path / "b")
    code, lines = report(*both, "--out", tmp_path / "out")
    assert code == 0
    assert sum("resnet18" in line for line in lines) == 2
    assert sum(line.startswith("not read, ") for line in lines) == len(FAULTS)
    assert sum("mlproject sync --records" in line for line in lines) == 1
    assert main(["compare", "--aa", f"records={tmp_path / 'a'}"]) == 0
    assert capfd.readouterr().err.count("record not read: ") == len(FAULTS)
    for path in tmp_path.glob("[ab]/*/record.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match="1 measurements are not finished"):
        report(*both)


@pytest.mark.slow
def test_a_terminal_obeys_no_text_of_a_record(tmp_path):
    folder = RecordFolder.create(tmp_path / "records")
    label = "lab\x1b]0;pwn\x07\r\nFAKE: verdict clean\x9b2J \\x1b"
    record = make.run_record(folder.record_id, environment=make.environment(label=label))
    folder.close(record)
    code, lines = report("--records", tmp_path / "records", "--out", tmp_path / "out")
    assert code == 0
    assert not any(line.startswith("FAKE") for line in lines)
    assert all(line.isprintable() for line in lines)
    assert "\\x1b" in lines[0]


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_time_and_no_report(store, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    code, lines = report()
    assert code == 0
    assert not any(line.startswith("not read") for line in lines)


@pytest.mark.slow
def test_iterations_and_records_come_on_demand_and_stay(store):
    ids = list(pull_runs()["run_id"])
    table = pull_iterations(ids)
    phases = ["data_time_ms", "forward_time_ms", "backward_time_ms", "optimizer_time_ms"]
    assert list(table) == ["run_id", "iteration", "iteration_time_ms", "data_wait_ms", *phases]
    for run_id in ids:
        shutil.rmtree(artifacts_of(store, run_id))
    again = pull_iterations(ids)
    assert (len(again), set(again["iteration_time_ms"])) == (20, {1000.0})
    assert pull_record(ids[0]).kind == "measurement"
    assert pull_iterations([]).dtypes.astype(str)["iteration"] == "Int64"
