"""Input that a report cannot use: a line for each, and the rest is reported."""

import json
import os
import shutil
from pathlib import Path

import factories as make
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient
from observed import invoke
from pydantic import ValidationError

import commands.report
from analysis import RecordSet, pull_iterations, pull_record, pull_runs
from analysis.runs.place import place_profiles
from analysis.traces.placed import place_traces
from bench.errors import UserError
from bench.records import Job
from bench.records.folders import ANY_RECORD, RecordFolder, parse_record, read_all
from commands.console.recorded import upload_all
from mlproject import main
from tracking import schema
from tracking.content import content_of
from tracking.upload.upload import upload

pytestmark = pytest.mark.usefixtures("unpainted")


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
    [line] = [line for line in lines if line.startswith("record not read: ")]
    assert gone in line
    assert any(line.startswith(f"{kept}  run 1, lab resnet18") for line in lines)


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
    [line] = [line for line in lines if line.startswith("record not read: ")]
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
    assert sum(line.startswith("record not read: ") for line in lines) == len(FAULTS)
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
    assert not any(line.startswith("record not read") for line in lines)


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


def changed_at(value, place, new):
    if not place:
        return new
    old = value[place[0]]
    if isinstance(value, list):
        return [*value[: place[0]], changed_at(old, place[1:], new), *value[place[0] + 1 :]]
    return {**value, place[0]: changed_at(old, place[1:], new)}


def places_in(value, place=()):
    yield from ([place] if place else [])
    inner = value.items() if isinstance(value, dict) else ()
    for name, one in enumerate(value[:1]) if isinstance(value, list) else inner:
        yield from places_in(one, (*place, name))


#: One of each kind: a run, a roof, a profile and a trace.
GOOD = [
    json.loads(record.model_dump_json())
    for record in (
        make.run_record(telemetry=samples.telemetry()),
        make.ceilings_record(),
        make.profile(ops=samples.op_profile(), cpu_counters=samples.cpu_counters()),
        samples.trace_record(),
    )
]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from([0, 1, 1e-12, 1e10, 1e24, 2**31 - 1, "1970-01-01T00:00:00Z", [], {}]),
    st.lists(st.floats(1e-12, 1e10), min_size=6, max_size=6),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.sampled_from([(good, place) for good in GOOD for place in places_in(good)]), ODD)
def test_what_sync_and_report_derive_of_a_record_that_is_read_is_finite_or_unknown(changed, new):
    text = json.dumps(changed_at(*changed, new))
    try:
        record = parse_record(text.encode(), ANY_RECORD)
    except ValidationError:
        return
    values = [metric.value for metric in content_of(record).metrics]
    assert all(abs(value) < float("inf") for value in values)
    found = RecordSet.of([record, make.ceilings_record()])
    runs = found.runs()
    assert not found.unreadable
    json.dumps([run.facts() for run in runs])
    profiles = place_profiles(found.profiles, runs, found.ceilings)
    json.dumps([profile.facts() for profile in profiles])
    place_traces(found.traces, found.ceilings)


def test_a_record_that_breaks_a_placing_is_a_line_and_the_others_are_placed(monkeypatch):
    bad, good = make.run_record(record_id="run-bad"), make.run_record()

    def summary(record):
        return {} if record.record_id != bad.record_id else 1 / 0

    monkeypatch.setattr("analysis.runs.place.summary", summary)
    found = RecordSet.of([bad, good])
    assert [run.record_id for run in found.runs()] == [good.record_id]
    assert len(found.unreadable) == 1
    assert bad.record_id in found.unreadable[0]
    assert "ZeroDivisionError" in found.unreadable[0]


def test_of_two_folders_with_one_record_id_the_second_is_named(tmp_path):
    first = make.run_record()
    for name, record in {
        "20261101T000000Z-00000001": first,
        "20261101T000000Z-00000002": first.model_copy(update={"reason": "other"}),
        "20261101T000000Z-00000003": first,  # a copy of the first is no other record
    }.items():
        RecordFolder.create(tmp_path, name).close(record)
    records, lines = read_all([tmp_path])
    assert records == [first]
    assert len(lines) == 1
    assert "20261101T000000Z-00000002" in lines[0]


@pytest.mark.slow
def test_a_fault_of_ours_in_one_record_is_a_line_and_the_others_are_uploaded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        folder = RecordFolder.create(tmp_path / "records")
        folder.close(make.run_record().model_copy(update={"record_id": folder.record_id}))
    bad, *_ = folders = [RecordFolder(path) for path in sorted((tmp_path / "records").iterdir())]

    def content(record, *beside):
        return content_of(record, *beside) if record.record_id != bad.record_id else 1 / 0

    monkeypatch.setattr("tracking.upload.upload.content_of", content)
    counts = upload_all(folders, None)
    assert (counts["uploaded"], counts["failed"]) == (2, 1)
    [line] = [line for line in capsys.readouterr().err.splitlines() if bad.record_id in line]
    assert "ZeroDivisionError" in line
