"""This project's runs from a laptop's embedded store to a shared server: each once, and whole."""

import shutil
import sqlite3
from contextlib import closing

import pytest
import samples
from stored_runs import assert_equals_record, filed

from bench.config import RunConfig
from bench.errors import UserError
from mlproject import main
from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.upload.copy_runs import Copier, source_uri
from tracking.upload.upload import upload

pytestmark = pytest.mark.slow


@pytest.fixture
def laptop(tmp_path, monkeypatch, embedded):
    """An embedded store, as MLflow's settings name it."""
    monkeypatch.chdir(tmp_path)
    return embedded


def one_copier(uri):
    """A copier from the settings' store to `uri`, and the one run that it finds."""
    copier = Copier(source_uri(None, uri), uri)
    *_, run = copier.runs()
    return copier, run


def test_what_a_run_carries_beside_its_record_goes_along(laptop, server, tmp_path, monkeypatch):
    experiment = laptop.create_experiment(f"nights {tmp_path.name}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setenv("MLPROJECT_USER", "who measured")
    run_id = upload(*filed(tmp_path / "records", samples.run_record()))
    monkeypatch.setenv("MLPROJECT_USER", "who copies")
    laptop.set_tag(run_id, "team", "a | b")
    laptop.set_tag(run_id, schema.BOUND, "memory")
    laptop.log_metric(run_id, "fraction_of_peak", 0.25)
    laptop.log_metric(run_id, "throughput_images_per_s", 9999, step=3)
    copier, run = one_copier(server)
    assert copier.copy(run) == "copied"
    elsewhere = Server(server).client
    where = elsewhere.get_experiment_by_name(f"nights {tmp_path.name}")
    [there] = elsewhere.search_runs([where.experiment_id])
    assert (there.data.tags["team"], there.data.tags[schema.BOUND]) == ("a | b", "memory")
    assert there.data.tags[schema.USER] == "who measured"
    assert there.data.metrics["fraction_of_peak"] == 0.25
    assert there.data.metrics["throughput_images_per_s"] != 9999


def test_runs_of_other_programs_and_those_that_go_on_are_left(laptop, server, store, tmp_path):
    laptop.create_run("0", tags={"team": "theirs"})
    laptop.create_run("0", tags={schema.KIND: "measurement", schema.RECORD_ID: "20310101T-x"})
    assert Copier(source_uri(None, server), server).runs() == []


@pytest.mark.parametrize("number", [4, 9])
def test_a_copy_whose_answer_is_lost_is_completed_by_the_next(
    laptop, proxied, store, tmp_path, monkeypatch, number
):
    proxy, uri = proxied
    folder, record = filed(tmp_path / "records", samples.run_record())
    upload(folder, record)
    with monkeypatch.context() as hurried:
        hurried.setattr("tracking.connection._FIRST_PAUSE_S", 60.0)
        proxy.fail(number, "lost")
        with pytest.raises(TrackingError):
            Copier.copy(*one_copier(uri))
    proxy.heal()
    assert Copier.copy(*one_copier(uri)) == "copied"
    [there] = store.active(store.runs_of(record.record_id))
    assert_equals_record(store, there, folder, record)


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
        assert upload(folder, record, Server(server)) == there


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


@pytest.fixture
def theirs(laptop, tmp_path, monkeypatch):
    """A store of somebody else with one run of a record, beside its file: a copier's arguments."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    shutil.copy(tmp_path / "mlflow.db", folder / "their.db")
    monkeypatch.chdir(folder)
    uri = f"sqlite:///{folder}/their.db"
    experiment = Server(uri).client.create_experiment("e")
    with monkeypatch.context() as there:
        there.setenv("MLFLOW_EXPERIMENT_ID", experiment)
        upload(*filed(tmp_path / "their records", samples.run_record()), Server(uri))
    return uri


def test_a_store_of_somebody_else_gives_what_lies_beside_it(theirs, server):
    copier = Copier(theirs, server)
    [run] = copier.runs()
    assert copier.copy(run) == "copied"


@pytest.mark.parametrize("how", ["elsewhere", "up", "a link", "a linked file"])
def test_a_store_of_somebody_else_names_no_file_of_this_machine(
    theirs, server, store, tmp_path, capsys, how
):
    beside = tmp_path / "theirs"
    [artifacts] = beside.glob("mlruns/*/*/artifacts")
    kept = tmp_path / "theirs" / "secret"  # not even beside the store, outside of its runs
    shutil.move(artifacts, kept)
    if how == "a link":
        artifacts.symlink_to(kept)
    elif how == "a linked file":
        shutil.copytree(kept, artifacts)
        (artifacts / "console.log").symlink_to(kept / "record.json")
    else:
        named = kept if how == "elsewhere" else artifacts.parent / "../../../secret"
        with closing(sqlite3.connect(beside / "their.db")) as database, database:
            database.execute("UPDATE runs SET artifact_uri = ?", (str(named),))
    [run] = Copier(theirs, server).runs()
    assert main(["sync", "--from", theirs, "--to", server]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "beside its file" in line
    assert store.runs_of(run.data.tags[schema.RECORD_ID]) == []


def test_an_artifact_whose_name_leads_out_is_refused(laptop, server, tmp_path, monkeypatch):
    upload(*filed(tmp_path / "records", samples.run_record()))
    copier, run = one_copier(server)
    bad = type("Bad", (), {"path": "../../outside.txt", "is_dir": False})
    monkeypatch.setattr(
        "mlflow.store.artifact.local_artifact_repo.LocalArtifactRepository.list_artifacts",
        lambda *_: [bad],
    )
    with pytest.raises(UserError, match="leads out"):
        copier.copy(run)
