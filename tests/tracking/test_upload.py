"""Records on a real MLflow server over HTTP: whole, once, and with their own times.

`test_upload_sequences.py` has what may happen to an upload in any order; here each way that a real
server fails is tried once.
"""

import gc
import json
import subprocess
import threading
from datetime import timedelta

import pandas
import pytest
import samples
from faulty_proxy import PAGE, WAYS
from stored_runs import PROJECT, assert_equals_record, assert_one_run, filed, project_run

from analysis import pull_records, pull_runs
from analysis.comparison import read_side
from bench.config import RunConfig
from bench.errors import UserError
from bench.records.folders import RecordFolder
from mlproject import main
from tracking import log_record, schema
from tracking.connection import Server, TrackingError
from tracking.content import figures_digest
from tracking.tracked_runs import (
    download_record,
    download_records,
    runs_table,
    search_runs,
)
from tracking.upload.delivery import Delivery
from tracking.upload.upload import (
    LockedError,
    end_refused_run,
    log_report,
    of_this_project,
    upload,
    uploading,
)

pytestmark = pytest.mark.slow
#: experiments, search, create, search, four artifacts, their list, one batch, the end, whole.
REQUESTS, CREATE = 12, 3


@pytest.fixture
def tracking(server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    return Server().client


def test_a_trace_becomes_a_run_with_its_file_and_comes_back(tracking, tmp_path):
    folder, record = filed(tmp_path, samples.trace_record())
    (folder.path / "trace.json.gz").write_bytes(b"as it was")
    run = tracking.get_run(upload(folder, record))
    assert run.data.tags[schema.KIND] == "trace"
    assert run.data.params["arch"] == "resnet50"
    assert run.data.metrics["time/idle_share"] == pytest.approx(0.3)
    assert run.data.metrics["iteration_time_ms_p50"] == pytest.approx(100)
    assert "the device is idle for 30 % of a step" in run.data.tags[schema.NOTE]
    names = {artifact.path for artifact in tracking.list_artifacts(run.info.run_id)}
    assert {"record.json", "trace.json.gz"} <= names
    assert download_record(run.info.run_id) == record
    [row] = pull_runs(campaign="traces").to_dict("records")
    assert (row["kind"], row["arch"], row["batch_size"]) == ("trace", "resnet50", 32)
    assert row["device_busy_share"] == pytest.approx(0.7)
    assert pull_records(campaign="traces", traces=True).traces == [record]


def long_record():
    times = [0.5 + 0.001 * step for step in range(2500)]
    return samples.run_record(
        config=RunConfig(arch="vgg16", precision="amp", campaign="night", repeat=3),
        measurement=samples.measurement(times),
    )


def test_a_run_on_the_server_equals_its_record_and_uploading_again_adds_nothing(tracking, tmp_path):
    folder, record = filed(tmp_path, long_record())
    run_id = upload(folder, record)
    assert log_record(record, tmp_path) == run_id
    # a create that the server carried out after the upload had given up
    twin = tracking.create_run("0", tags={schema.RECORD_ID: record.record_id}).info.run_id
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert tracking.get_run(twin).info.lifecycle_stage == "deleted"
    assert upload(folder, record) == run_id
    wanted = f"tags.`{schema.RECORD_ID}` = '{record.record_id}'"
    assert [run.run_id for run in search_runs(wanted)] == [run_id]
    run = tracking.get_run(run_id)
    started_ms = int(record.created.timestamp() * 1000)
    assert (run.info.status, run.info.start_time) == ("FINISHED", started_ms)
    assert run.info.end_time == started_ms + 10_000
    assert run.info.run_name == "sample-cpu_vgg16_amp_bs8_run3"
    expected = {"batch_size": "auto", "resolved_batch_size": "8", "augment": "false"}
    assert run.data.params | expected == run.data.params
    assert (run.data.tags[schema.CAMPAIGN], run.data.tags[schema.KIND]) == ("night", "measurement")
    assert run.data.metrics["throughput_images_per_s"] == pytest.approx(
        record.measurement.throughput_samples_per_s
    )
    history = tracking.get_metric_history(run_id, schema.ITERATION_TIME_MS)
    assert [point.step for point in history] == list(range(2500))
    assert [point.value for point in history] == pytest.approx(
        [seconds * 1e3 for seconds in record.measurement.iteration_times_s]
    )
    assert len(tracking.get_metric_history(run_id, "system/cpu_percent")) == 2
    names = {artifact.path for artifact in tracking.list_artifacts(run_id)}
    assert names == {"record.json", "iterations.csv", "telemetry.csv", "environment.json"}
    assert download_record(run_id) == record
    assert download_record(run_id) == record  # from the cache
    [cached] = (tmp_path / "cache").rglob("*.json")
    cached.write_text("damaged")
    assert download_record(run_id) == record


HEADLINES = (
    *("throughput_images_per_s", "pace_samples_per_s", "attained_gflops", "peak_memory_mb"),
    *("energy_j_per_image", "iteration_time_ms", "iteration_time_ms_p50"),
)


def test_a_few_metrics_have_a_plain_name_and_the_rest_a_section(tracking, tmp_path):
    folder, record = filed(tmp_path, long_record().replaced(telemetry=samples.telemetry()))
    data = tracking.get_run(upload(folder, record)).data
    plain = {name for name in data.metrics if "/" not in name}
    assert {"throughput_images_per_s", "iteration_time_ms", "iteration_time_ms_p50"} <= plain
    assert plain <= set(HEADLINES)
    sections = {name.split("/")[0] for name in data.metrics.keys() - plain}
    assert sections == {"time", "cost", "host", "system"}
    assert not plain & data.params.keys()
    assert next(iter(data.metrics)) == "throughput_images_per_s"
    of_section = [name for name in data.metrics if not name.startswith("system/")]
    plainly = schema.plain_metrics(data.metrics)
    assert {schema.logged_name(name) for name in plainly} >= set(of_section)
    [run] = search_runs(f"tags.`{schema.RECORD_ID}` = '{record.record_id}'")
    assert run.metrics["window_s"] == pytest.approx(record.measurement.window_s)
    assert schema.plain_metrics({"time/mine": 1.0, "time/window_s": 2.0, "window_s": 3.0}) == {
        "time/mine": 1.0,
        "window_s": 2.0,
    }


def test_a_run_of_a_version_without_sections_is_read_and_left_as_it_is(
    tracking, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as older:
        older.setattr(schema, "logged_name", lambda metric: metric)
        folder, record = filed(tmp_path, samples.run_record(config=RunConfig(campaign="older")))
        run_id = upload(folder, record)
        tracking.log_metric(run_id, "batch_size", 8)
        data = tracking.get_run(run_id).data
        tracking.set_tag(run_id, schema.FIGURES, figures_digest(data.metrics, data.tags))
    before = tracking.get_run(run_id).data.metrics
    assert "window_s" in before
    [row] = pull_runs(campaign="older").to_dict("records")
    assert row["window_s"] == pytest.approx(record.measurement.window_s)
    assert not list((tmp_path / "cache").rglob("*.json"))  # without its record
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert "1 there already" in capsys.readouterr().out
    assert tracking.get_run(run_id).data.metrics == before
    tracking.log_metric(run_id, "window_s", 9999, step=7)
    assert main(["sync", "--records", str(tmp_path)]) == 0
    [row] = pull_runs(campaign="older").to_dict("records")
    assert row["window_s"] == pytest.approx(record.measurement.window_s)


def test_many_records_come_in_the_order_of_their_runs_and_leave_no_thread_behind(
    tracking, tmp_path
):
    folders = [filed(tmp_path, samples.run_record()) for _ in range(20)]
    records = [record for _, record in folders]
    run_ids = [upload(*each) for each in folders]
    runs = {run.run_id: run for run in search_runs() if run.run_id in run_ids}
    download_record(run_ids[3])  # among others that are not in the cache
    wanted = [runs[run_id] for run_id in run_ids]
    gc.disable()
    try:
        threads = threading.active_count()
        assert list(download_records(runs_table(wanted))) == records
        assert threading.active_count() == threads
    finally:
        gc.enable()


def test_under_mlflow_run_the_record_fills_the_run_that_it_made(tracking, tmp_path):
    made = project_run(tracking)
    tracking.log_param(made, "arch", "'resnet18'")  # quoted, as mlflow run does
    folder, record = filed(tmp_path, samples.run_record())
    folder.project_run.write_text(made)
    assert upload(folder, record) == made
    data = tracking.get_run(made).data
    assert data.params["arch"] == "'resnet18'"
    assert data.params["precision"] == "fp32"
    assert upload(folder, record) == made
    other, other_record = filed(tmp_path, samples.run_record())
    other.project_run.write_text(made)  # which is in use
    assert upload(other, other_record) != made


def foreign_runs(tracking, tmp_path):
    """Runs that MLFLOW_RUN_ID may name though they are not for this project to fill."""
    own = tracking.create_run("0").info.run_id
    tracking.set_tag(own, "mlflow.source.type", "LOCAL")
    used = project_run(tracking)
    tracking.set_tag(used, schema.KIND, "sweep")
    return {"own": own, "another project": project_run(tracking, tmp_path), "used": used}


@pytest.mark.parametrize("which", ["own", "another project", "used"])
def test_a_run_that_mlflow_did_not_make_for_this_project_is_left_as_it_is(
    tracking, tmp_path, monkeypatch, which
):
    run_id = foreign_runs(tracking, tmp_path)[which]
    before = tracking.get_run(run_id).to_dictionary()
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    kept = [filed(tmp_path / "records", samples.run_record()) for _ in range(3)]
    kept[0][0].project_run.write_text(run_id)  # as `run` notes it
    assert main(["sync", "--records", str(tmp_path / "records"), "--older-than", "1h"]) == 2
    assert main(["sync", "--records", str(tmp_path / "records")]) == 0
    log_record(kept[2][1], tmp_path / "records")
    log_report(tmp_path / "records", name="r", tags={})
    end_refused_run("no")
    delivery = Delivery("c")
    delivery.begin({"matrix": "m"})
    delivery.end("note", interrupted=False)
    assert delivery.problem is None
    assert tracking.get_run(run_id).to_dictionary() == before


@pytest.mark.parametrize("clone", [False, True])
def test_a_project_under_git_is_known_by_how_mlflow_writes_it_down(
    tracking, tmp_path, monkeypatch, clone
):
    repository, url = tmp_path / "clone", "https://git.example/lab/bench"
    project = repository / "below"
    project.mkdir(parents=True)
    for words in (["init", "-q"], ["remote", "add", "origin", f"https://me:token@{url[8:]}"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    monkeypatch.setattr("tracking.upload.upload._PROJECT", project)
    base = url if clone else f"file://{repository}"
    ours, beside = (project_run(tracking, f"{base}#{name}") for name in ("below", "other"))
    assert of_this_project(tracking.get_run(ours))
    for other in (beside, project_run(tracking, base), project_run(tracking, f"{base}-fork#below")):
        assert not of_this_project(tracking.get_run(other))


@pytest.mark.parametrize(
    ("set_to", "login", "user"),
    [
        (None, None, "anna"),  # the system's
        (None, "ben", "ben"),
        ("lab 3", "ben", "lab 3"),
        ("", "ben", None),
    ],
)
def test_a_run_says_who_measured_it(tracking, tmp_path, monkeypatch, set_to, login, user):
    variables = {"MLPROJECT_USER": set_to, "MLFLOW_TRACKING_USERNAME": login, "LOGNAME": "anna"}
    for name, value in variables.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "unused")
    folder, record = filed(tmp_path, samples.run_record(config=RunConfig(campaign=tmp_path.name)))
    run_id = upload(folder, record)
    assert tracking.get_run(run_id).data.tags.get(schema.USER) == user
    [row] = pull_runs(campaign=tmp_path.name).to_dict("records")
    assert (None if pandas.isna(row["user"]) else row["user"]) == user
    assert b"anna" not in folder.record.read_bytes()
    if user is not None:
        campaign = f"campaign={tmp_path.name}"
        [run] = read_side(f"{campaign},user={user},user=nobody")
        assert (run.name, run.user) == (run_id, user)
        with pytest.raises(UserError, match="user is one of .*" + user):
            read_side(f"{campaign},user=nobody")
        made = project_run(tracking)  # MLflow's own tag is of the system's user
        other, other_record = filed(tmp_path, samples.run_record())
        other.project_run.write_text(made)
        monkeypatch.setenv("HOME", str(PROJECT.parent))
        tags = tracking.get_run(upload(other, other_record)).data.tags
        assert (tags[schema.USER], tags["mlflow.source.name"]) == (user, f"~/{PROJECT.name}")
        assert upload(other, other_record) == made


def test_a_record_of_another_folder_is_refused_and_makes_nothing(tracking, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, record = filed(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="measured in"):
        log_record(record)
    assert not (tmp_path / "records").exists()
    assert search_runs(f"tags.`{schema.RECORD_ID}` = '{record.record_id}'") == []


def tampered(tracking, store, run_id, folder):
    """A function for each thing that another writer can change of a run, and its name there."""
    record = folder / "record.json"
    record.write_text("{}")
    name = "throughput_images_per_s"
    return {
        name: lambda: tracking.log_metric(run_id, name, 9999, step=7),
        schema.VERDICT: lambda: tracking.set_tag(run_id, schema.VERDICT, "invalid"),
        schema.OUTCOME: lambda: tracking.delete_tag(run_id, schema.OUTCOME),
        "status FAILED": lambda: tracking.set_terminated(run_id, "FAILED"),
        "record.json": lambda: tracking.log_artifact(run_id, str(record)),
        "iterations.csv": lambda: [
            path.unlink() for path in store.artifact_folder.glob(f"*/{run_id}/*/iterations.csv")
        ],
    }


def test_what_another_writer_changed_is_named_and_put_right(tracking, store, tmp_path, capsys):
    folder, record = filed(tmp_path / "records")
    run_id = upload(folder, record)
    tracking.set_tag(run_id, schema.NOTE, "a reader's own words")
    sync = ["sync", "--records", str(tmp_path / "records")]
    rate = record.measurement.throughput_samples_per_s
    changes = tampered(tracking, store, run_id, tmp_path)
    for name, change in changes.items():
        change()
        [read] = pull_runs(f"attributes.run_id = '{run_id}'").to_dict("records")
        if name in ("throughput_images_per_s", schema.VERDICT):  # even before they are put right
            assert read["throughput_images_per_s"] == pytest.approx(rate)
            assert read["verdict"] != "invalid"
        assert main([*sync, "--verify"]) == 1
        assert name in capsys.readouterr().out
        assert main(sync) == 0
        out = capsys.readouterr().out
        assert f"says: {name}" in out
        assert "1 put right" in out
        if name == "throughput_images_per_s":
            assert tracking.get_run(run_id).data.metrics[name] == pytest.approx(rate)
    assert main([*sync, "--verify"]) == 0
    assert main(sync) == 0
    assert "1 there already" in capsys.readouterr().out
    tracking.log_metric(run_id, "fraction_of_peak", 0.5)  # as a report does
    assert main(sync) == 0
    assert "1 there already" in capsys.readouterr().out
    names = set(store.artifacts(run_id))
    assert {"record.json", "iterations.csv"} <= names
    assert download_record(run_id) == record
    assert tracking.get_run(run_id).info.status == "FINISHED"


@pytest.mark.parametrize("make", [samples.profile_record, samples.ceilings_record])
def test_a_profile_and_roofs_are_runs_of_their_own_kind_which_end_when_they_ended(
    tracking, tmp_path, make
):
    # of another machine: the runs of other tests on this server keep their roofs
    record = make(environment=samples.environment(cpu_model="another", label="another"))
    ended = record.created + timedelta(seconds=7.5)
    folder, record = filed(tmp_path, record.replaced(ended=ended))
    run = tracking.get_run(upload(folder, record))
    assert run.info.end_time - run.info.start_time == 7500
    assert run.data.tags[schema.KIND] == record.kind
    assert download_record(run.info.run_id) == record
    if record.kind == "ceilings":
        assert run.data.metrics == {"peak_gflops_fp32": 200.0, "peak_gb_per_s": 50.0}


def test_a_folder_of_images_is_a_dataset_and_made_up_data_are_none(tracking, tmp_path):
    images = tmp_path / "flowers"
    for place in ("rose", "tulip"):
        (images / place).mkdir(parents=True)
        (images / place / "1.png").write_bytes(place.encode())

    def inputs(data):
        folder, record = filed(tmp_path, samples.run_record(config=RunConfig(data=str(data))))
        run_id = upload(folder, record)
        assert upload(folder, record) == run_id
        return tracking.get_run(run_id).inputs.dataset_inputs

    [found] = inputs(images)
    assert (found.dataset.name, found.dataset.source_type) == ("flowers", "local")
    assert json.loads(found.dataset.profile) == {"classes": 2, "images": 2, "bytes": 9}
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "training")]
    (images / "rose" / "1.png").write_bytes(b"other")
    [other] = inputs(images)
    assert other.dataset.digest != found.dataset.digest
    assert inputs("synthetic") == inputs(tmp_path / "gone") == []


def test_an_experiment_is_marked_as_model_training_unless_somebody_chose_another(
    tracking, tmp_path, monkeypatch
):
    key, kind = schema.EXPERIMENT_KIND
    chosen = tracking.create_experiment(f"chosen {tmp_path.name}", tags={key: "their own"})
    for name, expected in (
        (f"new {tmp_path.name}", kind),
        (f"chosen {tmp_path.name}", "their own"),
    ):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
        upload(*filed(tmp_path, samples.run_record()))
        assert tracking.get_experiment_by_name(name).tags[key] == expected
    Server().mark(chosen, rewrite=True)
    assert tracking.get_experiment(chosen).tags[key] == "their own"


@pytest.mark.parametrize("outcome", ["oom", "crashed", "refused", "interrupted"])
def test_what_did_not_end_well_ends_on_the_server_with_its_reason(tracking, tmp_path, outcome):
    run = tracking.get_run(upload(*filed(tmp_path, samples.failed_record(outcome, "the reason"))))
    assert run.info.status == ("KILLED" if outcome == "interrupted" else "FAILED")
    assert (run.data.tags[schema.REASON], run.data.tags[schema.OUTCOME]) == ("the reason", outcome)


def test_a_refused_configuration_does_not_stay_running(tracking, monkeypatch):
    made = project_run(tracking)
    monkeypatch.setenv("MLFLOW_RUN_ID", made)
    end_refused_run("batch_size='0': no")
    ended = tracking.get_run(made)
    assert ended.info.status == "FAILED"
    assert ended.data.tags[schema.REASON] == "batch_size='0': no"


def test_a_store_that_was_lost_gets_every_record_again(mlproject_command, embedded, tmp_path):
    records = {filed(tmp_path / "records", samples.run_record())[1].record_id for _ in range(3)}
    assert "3 uploaded" in mlproject_command("sync")[1]
    (tmp_path / "mlflow.db").replace(tmp_path / "moved.db")
    sync = mlproject_command.start("sync")  # this process keeps the lost file open
    out, err = sync.communicate(timeout=300)
    assert sync.returncode == 0, err
    assert "3 uploaded" in out
    (tmp_path / "mlflow.db").replace(tmp_path / "again.db")
    again = f"sqlite:///{tmp_path}/again.db"
    assert {run.tags[schema.RECORD_ID] for run in search_runs(tracking_uri=again)} == records


def test_many_records_are_looked_for_in_few_searches(tracking, tmp_path):
    days = ("20310101", "20310102", "20310201", "20310202")
    ids = [f"{day}T1200{second:02}Z-abc" for day in days for second in range(3)]
    made = {one: tracking.create_run("0", tags={schema.RECORD_ID: one}).info.run_id for one in ids}
    twin = tracking.create_run("0", tags={schema.RECORD_ID: ids[0]}).info.run_id
    tracking.create_run("0", tags={schema.RECORD_ID: f"{ids[0]}-longer"})
    asked, server = [], Server()
    search = tracking.search_runs
    server.client.search_runs = lambda *args, **how: asked.append(1) or search(*args, **how)
    found = server.runs_of([*ids, "20310101T-unknown", "o'clock"])
    there = {one: {run.info.run_id for run in runs} for one, runs in found.items()}
    assert there == {one: {made[one]} | ({twin} if one == ids[0] else set()) for one in ids}
    assert len(asked) == 4


def test_a_malformed_filter_and_a_record_that_is_none_are_refused_in_one_line(tracking, tmp_path):
    with pytest.raises(TrackingError) as caught:
        search_runs("this is not a filter")
    assert "\n" not in str(caught.value)
    run = tracking.create_run("0")
    (tmp_path / "record.json").write_text('{"kind": "measurement", "__reduce__": "os.system"}')
    tracking.log_artifact(run.info.run_id, str(tmp_path / "record.json"))
    with pytest.raises(UserError, match="not of this version"):
        download_record(run.info.run_id)


# A server that fails


#: What the user reads, by what the server does.
MESSAGES = {
    "401": "MLFLOW_TRACKING_USERNAME",
    "403": "right to write",
    "429": "fails (429)",
    "500": "fails (500)",
    "503": "fails (503)",
    "hang": "does not answer",
    "lost": "connection broke",
    "half": "connection broke",
    "refuse": "connection broke",
}


def impatient(way=None):
    """Gives up at the first failure; a server that hangs is not waited for long."""
    return Server(patience_s=0.0, answer_s=1.0 if way == "hang" else 30.0)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_request_fails_a_later_upload_completes_it_once(proxy, store, tmp_path, way):
    for number in (CREATE, 7):
        folder, record = filed(tmp_path)
        proxy.fail(number, way)
        with pytest.raises(TrackingError) as caught:
            upload(folder, record, impatient(way))
        assert proxy.hit.is_set()
        assert MESSAGES[way] in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.away
        assert (way in ("401", "403")) == caught.value.denied
        proxy.heal()
        upload(folder, record)
        [run_id] = store.active(store.runs_of(record.record_id))
        assert_equals_record(store, run_id, folder, record)


@pytest.mark.parametrize("way", ["lost", "half", "refuse", "503"])
def test_a_failure_that_passes_is_not_even_noticed(proxy, store, tmp_path, monkeypatch, way):
    if way == "lost":  # a user's own setting, which may make two runs
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    folder, record = filed(tmp_path)
    proxy.fail(CREATE, way)
    run_id = upload(folder, record)
    assert proxy.hit.is_set()
    assert store.active(store.runs_of(record.record_id)) == [run_id]
    assert_equals_record(store, run_id, folder, record)


def test_an_empty_file_is_not_sent_as_a_request_without_a_length(proxy, store, tmp_path, capsys):
    folder, record = filed(tmp_path)
    (folder.path / "console.log").touch()
    (folder.path / "ncu").mkdir()
    (folder.path / "ncu" / "empty.csv").touch()
    proxy.fail(1, (411, ""), times=1000, only="chunked")
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert not proxy.hit.is_set()
    assert set(store.artifacts(assert_one_run(store, folder, record))) == {
        *("record.json", "iterations.csv", "telemetry.csv", "environment.json"),
    }
    assert main(["sync", "--records", str(tmp_path), "--verify"]) == 0


@pytest.mark.parametrize(
    ("only", "text"),
    [
        ("PUT", PAGE),  # the files are taken, and not kept
        ("PUT", "{}"),
        ("GET /api/2.0/mlflow-artifacts", PAGE),
        ("GET /api/2.0/mlflow-artifacts", "[]"),
        ("runs/create", "{}"),
        ("runs/create", PAGE),
        ("log-batch", PAGE),
        ("runs/update", PAGE),
    ],
)
def test_a_login_page_in_the_midst_of_an_upload_leaves_no_run_that_counts_as_whole(
    proxy, store, tmp_path, capsys, only, text
):
    folder, record = filed(tmp_path)
    filed(tmp_path)
    proxy.fail(1, (200, text), times=1000, only=only)
    assert main(["sync", "--records", str(tmp_path)]) == 3
    [line] = [line for line in capsys.readouterr().err.splitlines() if "mlproject:" in line]
    assert "sign in, or check the address" in line
    assert "later" not in line
    assert not any(
        schema.UPLOADED in store.tags(run_id) for run_id in store.runs_of(record.record_id)
    )
    proxy.heal()
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert_equals_record(store, *store.active(store.runs_of(record.record_id)), folder, record)


def test_a_file_that_a_proxy_refuses_for_its_size_stops_no_other_record(proxy, tmp_path, capsys):
    for _ in range(2):
        filed(tmp_path)
    proxy.fail(1, (413, PAGE), times=1, only="PUT")
    assert main(["sync", "--records", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "client_max_body_size" in told.err
    assert "1 uploaded, 1 failed" in told.out


def test_a_slow_server_that_gets_on_is_not_cut_off(proxy, store, tmp_path):
    proxy.fail(0, None)
    proxy.delay_s = 0.2
    folder, record = filed(tmp_path)
    upload(folder, record, Server(patience_s=1.0))  # the requests take more together
    assert len(proxy.requests) == REQUESTS, proxy.requests
    assert_one_run(store, folder, record)


def test_a_command_that_cannot_upload_says_so_in_one_line_and_sync_goes_on(
    proxy, store, tmp_path, monkeypatch, capsys
):
    kept = [filed(tmp_path) for _ in range(3)]
    with monkeypatch.context() as hurried:
        hurried.setattr("tracking.connection._FIRST_PAUSE_S", 60.0)
        proxy.fail(18, "503", times=1000)
        assert main(["sync", "--records", str(tmp_path)]) == 3
    [line] = [line for line in capsys.readouterr().err.splitlines() if "mlproject:" in line]
    assert "sync again later" in line
    proxy.heal()
    assert main(["sync", "--records", str(tmp_path)]) == 0
    assert "2 uploaded, 1 there already" in capsys.readouterr().out
    for folder, record in kept:
        assert_one_run(store, folder, record)


def test_a_run_that_another_upload_joined_to_its_own_is_begun_again(
    proxy, store, tmp_path, monkeypatch
):
    folder, record = filed(tmp_path)
    log, joined = Server.log, []

    def log_late(server, run_id, *args, **how):
        if len(joined) < 3:
            joined.append(run_id)
            server.client.delete_run(run_id)
        return log(server, run_id, *args, **how)

    monkeypatch.setattr(Server, "log", log_late)
    run_id = upload(folder, record)
    assert len({run_id, *joined}) == 4
    assert store.active(store.runs_of(record.record_id)) == [run_id]
    assert_equals_record(store, run_id, folder, record)


def test_an_upload_that_another_process_holds_is_left_to_it(proxy, store, tmp_path, capsys):
    _, record = filed(tmp_path)
    with uploading(RecordFolder(tmp_path / record.record_id), 0.0):
        assert main(["sync", "--records", str(tmp_path)]) == 0
        with pytest.raises(LockedError), uploading(RecordFolder(tmp_path / record.record_id), 0.0):
            pass
    assert "being uploaded by another process" in capsys.readouterr().out
    assert store.runs_of(record.record_id) == []


def test_a_folder_of_somebody_else_sends_no_file_of_this_machine(proxy, store, tmp_path):
    folder, record = filed(tmp_path / "records")
    secret = tmp_path / "id_rsa"
    secret.write_text("a key")
    (folder.path / "console.log").symlink_to(secret)
    (folder.path / "ncu").mkdir()
    (folder.path / "ncu" / "report.csv").symlink_to(secret)
    (folder.path / "perf").symlink_to(tmp_path)
    (folder.path / "ncu" / "real.csv").write_text("a,b\n")
    run_id = upload(folder, record)
    kept = store.artifacts(run_id)
    assert b"a key" not in kept.values()
    assert kept["ncu/real.csv"] == b"a,b\n"
    assert "console.log" not in kept


def test_a_deleted_run_is_found_and_gets_no_second_beside_it(tracking, store, tmp_path, capsys):
    folder, record = filed(tmp_path)
    ours = f"tags.`{schema.RECORD_ID}` = '{record.record_id}'"
    run_id = upload(folder, record)
    tracking.delete_run(run_id)
    sync = ["sync", "--records", str(tmp_path)]
    for options in ([], ["--verify"]):
        capsys.readouterr()
        assert main([*sync, *options]) == 0
        said = capsys.readouterr()
        assert "1 deleted on the server" in said.out
        assert run_id in said.err
    with pytest.raises(TrackingError, match=run_id):
        upload(folder, record)
    assert store.runs_of(record.record_id) == [run_id]
    tracking.restore_run(run_id)
    assert main([*sync, "--verify"]) == 0
    assert list(pull_runs(ours)["run_id"]) == [run_id]


def test_of_two_whole_runs_of_one_record_all_read_the_same_and_verify_names_the_other(
    tracking, store, tmp_path, capsys
):
    folder, record = filed(tmp_path)
    ours = f"tags.`{schema.RECORD_ID}` = '{record.record_id}'"
    hidden = upload(folder, record)
    tracking.set_tag(hidden, schema.RECORD_ID, "another")
    first, second = sorted((hidden, upload(folder, record)))
    tracking.set_tag(hidden, schema.RECORD_ID, record.record_id)
    assert main(["sync", "--records", str(tmp_path), "--verify"]) == 1
    assert second in capsys.readouterr().out
    assert list(pull_runs(ours)["run_id"]) == [first]
    assert list(pull_runs(f"attributes.run_id = '{second}'")["run_id"]) == [second]
    unfinished = tracking.create_run("0", tags={schema.RECORD_ID: record.record_id}).info.run_id
    assert list(pull_runs(ours)["run_id"]) == [first]
    assert unfinished in store.runs_of(record.record_id)


@pytest.mark.long
def test_machines_that_upload_at_once_lose_and_double_nothing(
    tmp_path, server, store, mlproject_command, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    machines = [tmp_path / f"machine-{number}" for number in range(4)]
    kept = [filed(records) for _ in range(5) for records in machines]
    uploads = [mlproject_command.start("sync", "--records", records) for records in machines]
    for process in uploads:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    for folder, record in kept:
        assert_one_run(store, folder, record)
