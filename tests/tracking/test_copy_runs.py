"""Runs from a laptop's embedded store to a shared server: each once, whole, with its own times."""

import math
import os

import pytest
import samples
from faulty_proxy import faulty_proxy
from mlflow.entities import Metric
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from stored_runs import assert_equals_record, filed

from bench.config import RunConfig
from bench.errors import UserError
from mlproject import main
from tracking import schema
from tracking.retry import RetryPolicy
from tracking.store import TrackingError, open_client
from tracking.upload.copy_runs import Copier, source_uri
from tracking.upload.upload import log_all, upload

pytestmark = pytest.mark.slow


@pytest.fixture
def laptop(tmp_path, monkeypatch, embedded):
    """An embedded store, as MLflow's settings name it."""
    monkeypatch.chdir(tmp_path)
    return embedded


def any_run(client, tmp_path, name="any", experiment="0", points=20, params=3, tags=None):
    """A run that this project did not make, with everything a run may hold."""
    run = client.create_run(experiment, start_time=1000, tags=tags, run_name=name)
    run_id = run.info.run_id
    loss = [Metric("loss", 1 / (step + 1), 2000 + step, step) for step in range(points)]
    named = {f"p{number}": f"value {number}" for number in range(params)}
    log_all(client, RetryPolicy(5.0), run_id, loss, named, {"team": "a | b"})
    client.log_metric(run_id, "broken", math.nan, timestamp=5, step=0)
    (tmp_path / "plot.svg").write_text("<svg/>")
    client.log_artifact(run_id, str(tmp_path / "plot.svg"), "figures/deep")
    client.set_terminated(run_id, "FAILED", end_time=9000)
    return run_id


def one_copier(uri):
    """A copier from the settings' store to `uri`, and the one run that it finds."""
    copier = Copier(source_uri(None, uri), uri)
    *_, run = copier.runs()
    return copier, run


def copies(store, run_id):
    return store.active(store.runs_of(run_id, schema.COPIED_FROM))


def test_a_record_becomes_the_same_run_there(laptop, server, store, tmp_path):
    record = samples.run_record(config=RunConfig(campaign="c1"), telemetry=samples.telemetry())
    folder, record = filed(tmp_path / "records", record)
    upload(folder, record)
    copier, run = one_copier(server)
    assert copier.copy(run) == "copied"
    [there] = store.runs_of(record.record_id)
    assert_equals_record(store, there, folder, record)
    assert copier.copy(run) == "there already"
    assert upload(folder, record, server) == there
    assert store.runs_of(record.record_id) == [there]


def test_any_run_becomes_the_same_run_there_in_an_experiment_of_the_same_name(
    laptop, server, store, tmp_path
):
    elsewhere = open_client(server)
    experiment = laptop.create_experiment(f"nights {tmp_path.name}", (tmp_path / "files").as_uri())
    parent = any_run(laptop, tmp_path, "parent", experiment, points=1500, params=120)
    child = any_run(laptop, tmp_path, "child", experiment, tags={"mlflow.parentRunId": parent})
    copier = Copier(source_uri(None, server), server)
    states = {copier.copy(run) for run in copier.runs()}
    assert states == {"copied"}
    [there] = copies(store, parent)
    assert store.info(there) == ("FAILED", 1000, 9000, "parent")
    assert store.params(there) == {f"p{number}": f"value {number}" for number in range(120)}
    points = [point for point in store.metrics(there) if point[0] == "loss"]
    assert [(step, at) for _, step, at, _ in points] == [(i, 2000 + i) for i in range(1500)]
    assert math.isnan(elsewhere.get_run(there).data.metrics["broken"])
    assert store.tags(there)["team"] == "a | b"
    assert store.artifacts(there) == {"figures/deep/plot.svg": b"<svg/>"}
    where = elsewhere.get_run(there).info.experiment_id
    assert elsewhere.get_experiment(where).name == f"nights {tmp_path.name}"
    [child_there] = copies(store, child)
    assert store.tags(child_there)["mlflow.parentRunId"] == there
    back = Copier(server, os.environ["MLFLOW_TRACKING_URI"])  # they are known on their way back
    [copied] = [run for run in back.runs() if run.info.run_id == there]
    assert back.copy(copied) == "there already"


def test_a_run_that_goes_on_is_left(laptop, server):
    laptop.create_run("0")
    copier, run = one_copier(server)
    assert copier.copy(run) == "still running"


@pytest.mark.long
def test_whatever_answer_is_lost_the_next_copy_completes_it_once(
    laptop, proxied, server, store, tmp_path, monkeypatch
):
    proxy, uri = proxied
    monkeypatch.setattr("tracking.upload.copy_runs.AWAY_LIMIT_S", 0.0)
    number = 0
    while True:
        number += 1
        run_id = any_run(laptop, tmp_path, points=1500, params=120)
        copiers = [Copier(source_uri(None, uri), uri) for _ in range(2)]
        [run] = [run for run in copiers[0].runs() if run.info.run_id == run_id]
        proxy.fail(number, "lost")
        try:
            copiers[0].copy(run)
        except TrackingError:
            assert proxy.hit.is_set()
        proxy.heal()
        if not proxy.hit.is_set():  # more than there are requests
            break
        copiers[1].runs()
        copiers[1].copy(run)
        [there] = copies(store, run_id)
        assert store.info(there)[0] == "FAILED"
        assert store.tags(there)[schema.COPIED] == "true"
        assert len(store.metrics(there)) == len(laptop.get_metric_history(run_id, "loss")) + 1
        assert store.artifacts(there) == {"figures/deep/plot.svg": b"<svg/>"}
    assert number > 10


def test_a_create_whose_answer_is_lost_is_looked_for_before_it_is_repeated(
    laptop, proxied, store, tmp_path
):
    proxy, uri = proxied
    first, second = (any_run(laptop, tmp_path) for _ in range(2))
    copier = Copier(source_uri(None, uri), uri)
    runs = {run.info.run_id: run for run in copier.runs()}
    proxy.fail(0, None)
    copier.copy(runs[first])
    [create] = [at for at, line in enumerate(proxy.requests) if line.endswith("/runs/create")]
    proxy.fail(create, "lost")  # by then the experiment is known, which took a request
    copier.copy(runs[second])
    assert proxy.requests[create - 1].endswith("/runs/create")
    assert proxy.hit.is_set()
    assert len(copies(store, second)) == 1


def test_the_command_copies_what_was_asked_for_and_no_run_twice(
    laptop, server, store, tmp_path, capsys
):
    kept = [
        filed(tmp_path / "records", samples.run_record(config=RunConfig(campaign=name)))
        for name in ("mine", "mine", "other")
    ]
    for folder, record in kept:
        upload(folder, record)
    assert main(["sync", "--to", server, "--campaign", "mine"]) == 0
    assert "2 copied" in capsys.readouterr().out
    assert store.runs_of(kept[2][1].record_id) == []
    assert main(["sync", "--to", server]) == 0  # records first, then the runs, which are known
    out = capsys.readouterr().out
    assert "3 there already" in out
    for folder, record in kept:
        [there] = store.active(store.runs_of(record.record_id))
        assert_equals_record(store, there, folder, record)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--from", "sqlite:///{tmp}/nowhere.db", "--to", "{server}"], "no such store"),
        (["--from", "{server}", "--to", "{server}"], "same store"),
        (["--campaign", "c"], "--to or --from"),
        (["--campaign", "c'x", "--to", "{server}"], "label"),
        (["--older-than", "1h"], "--reap"),
        (["--reap", "--older-than", "soon"], "24h"),
    ],
)
def test_a_wrong_value_is_one_line(laptop, server, tmp_path, capsys, arguments, told):
    filled = [each.format(tmp=tmp_path, server=server) for each in arguments]
    assert main(["sync", *filled]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "nowhere.db").exists()


def test_an_artifact_whose_name_leads_out_is_refused(laptop, server, tmp_path, monkeypatch):
    any_run(laptop, tmp_path)
    copier, run = one_copier(server)
    bad = type("Bad", (), {"path": "../../outside.txt", "is_dir": False})
    monkeypatch.setattr(copier._from.client, "list_artifacts", lambda *_: [bad])
    with pytest.raises(UserError, match="leads out"):
        copier.copy(run)


def test_a_store_of_artifacts_that_mlflow_does_not_know_is_one_run_s_failure(
    laptop, server, tmp_path, monkeypatch
):
    any_run(laptop, tmp_path)
    copier, run = one_copier(server)

    def unknown(uri, **_):
        return get_artifact_repository("tape://reel/7")

    monkeypatch.setattr("tracking.upload.copy_runs.get_artifact_repository", unknown)
    with pytest.raises(TrackingError, match="tape"):
        copier.copy(run)


def test_a_source_that_goes_away_is_said_by_its_own_name(laptop, server, tmp_path, monkeypatch):
    monkeypatch.setattr("tracking.upload.copy_runs.AWAY_LIMIT_S", 0.0)
    with faulty_proxy(server) as (proxy, uri):
        copier = Copier(uri, os.environ["MLFLOW_TRACKING_URI"])
        proxy.fail(1, "503", times=100)
        with pytest.raises(TrackingError, match=uri.rpartition(":")[2]):
            copier.runs()
