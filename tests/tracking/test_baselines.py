"""Named baselines on a real server: what a name means, and that it stays so."""

import json
import secrets
from datetime import datetime, timedelta, timezone

import pytest
import samples
from mlflow.tracking import MlflowClient
from stored_runs import filed

from bench.errors import UserError
from tracking import schema
from tracking.baselines import all_baselines, find_baseline, set_baseline
from tracking.connection import Server, TrackingError
from tracking.upload.upload import upload

pytestmark = pytest.mark.slow


@pytest.fixture
def name(server, monkeypatch):
    """A name of this test's own on the server that all tests share."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    return f"main-{secrets.token_hex(4)}"


def measured(tmp_path, campaign, repeat=1):
    record = samples.run_record(
        config=samples.run_record().config.model_copy(
            update={"campaign": campaign, "repeat": repeat}
        )
    )
    return upload(*filed(tmp_path / "records", record))


def test_a_baseline_stays_what_it_was_set_to(mlproject_command, tmp_path, name):
    first = measured(tmp_path, name)
    code, out, _ = mlproject_command("baseline", "set", name, f"campaign={name}")
    assert (code, out) == (
        0,
        f"baseline {name}: 1 run of 1 configuration (campaign={name})\n",
    )
    second = measured(tmp_path, name, repeat=2)
    assert find_baseline(name).run_ids == (first,)
    code, out, _ = mlproject_command(
        "compare", f"baseline={name}", f"run={second}", "--format", "json"
    )
    (one,) = json.loads(out)["comparisons"]
    assert (code, one["a_runs"], one["b_runs"]) == (0, [first], [second])
    mlproject_command("baseline", "set", name, f"campaign={name}")
    assert set(find_baseline(name).run_ids) == {first, second}
    listed = mlproject_command("baseline", "list")[1]
    assert any(line.split()[:2] == [name, f"campaign={name}"] for line in listed.splitlines())
    assert mlproject_command("baseline", "remove", name)[:2] == (
        0, f"baseline {name}: removed; its 2 runs stay\n",
    )  # fmt: skip
    code, _, err = mlproject_command("compare", f"baseline={name}", f"run={second}")
    assert (code, err.count("\n")) == (2, 1)
    assert f"baseline={name!r}: not set on this server" in err


def test_a_deleted_run_is_named_with_the_baseline_that_holds_it(mlproject_command, tmp_path, name):
    gone, stays = measured(tmp_path, name), measured(tmp_path, name, repeat=2)
    mlproject_command("baseline", "set", name, f"run={gone}")
    Server().client.delete_run(gone)
    code, _, err = mlproject_command("compare", f"baseline={name}", f"run={stays}")
    assert code == 2
    assert f"baseline={name!r}, set at 20" in err
    assert f"run {gone}: no tracked measurement has this id" in err


def gone(*_):
    raise ConnectionError("the network is gone")


def test_a_write_that_fails_halfway_leaves_the_old_list_and_the_next_clears_up(name, monkeypatch):
    many = [secrets.token_hex(16) for _ in range(400)]
    set_baseline(name, "campaign=x", many)
    set_baseline(f"{name}.0", "campaign=y", many[:1])  # a name that begins like the other
    with monkeypatch.context() as cut:
        cut.setattr("tracking.connection._FIRST_PAUSE_S", 60.0)
        cut.setattr(MlflowClient, "set_terminated", gone)
        with pytest.raises(TrackingError):
            set_baseline(name, "campaign=z", many[:2])
    assert find_baseline(name).run_ids == tuple(many)
    set_baseline(name, "campaign=z", many[:2])
    assert find_baseline(name).run_ids == tuple(many[:2])
    assert find_baseline(f"{name}.0").run_ids == tuple(many[:1])
    assert len(list(Server().search(f"tags.`{schema.BASELINE}` = '{name}'"))) == 1


def test_of_two_experiments_the_one_that_the_settings_name_counts(name, monkeypatch):
    for where in ("one", "two"):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{name}-{where}")
        set_baseline(name, f"campaign={where}", ["a" * 32])
    assert [one.side for one in all_baselines()] == ["campaign=two"]
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{name}-one")
    assert find_baseline(name).side == "campaign=one"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "a name", "campaign=x"), "no measurement matches"),
        (("set", "main", "records={records}"), "is on disk; a baseline is of tracked runs"),
        (("set", "main", "records={imported}"), "is on disk; a baseline is of tracked runs"),
        (("remove", "none-such"), "baseline='none-such': not set on this server"),
    ],
)
def test_what_cannot_be_set_is_one_line(mlproject_command, tmp_path, name, arguments, message):
    filed(tmp_path / "records")
    (ledger := tmp_path / "ledger.csv").write_text("arch,batch_size,images_per_s\nmynet,8,10\n")
    imported = tmp_path / "imported"
    mlproject_command("import", ledger, "--records", imported, "--no-track")
    words = [word.format(records=tmp_path / "records", imported=imported) for word in arguments]
    code, _, err = mlproject_command("baseline", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    with pytest.raises(UserError, match="give up to 64 letters"):
        set_baseline("a name", "x", ["a" * 32])


# `mlproject trend --accept`: a level that is meant fails nobody's gate


NOON = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def nights(server, tmp_path, monkeypatch):
    """Upload nights of a configuration; return what chooses them, and the next night's upload."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLPROJECT_USER", "ada")
    name = f"trend-{secrets.token_hex(4)}"
    made = []

    def measure(*steps_s):
        for step_s in steps_s:
            number = len(made)
            config = samples.run_record().config.model_copy(
                update={"campaign": f"{name}-{number}", "env": name}
            )
            record = samples.run_record(
                config,
                created=NOON + timedelta(days=number),
                environment=samples.environment(label=name),
                measurement=samples.measurement(times_s=(step_s,) * 20),
            )
            made.append(upload(*filed(tmp_path / "records", record)))

    return f"env={name}", measure, str(tmp_path / "records")


def test_a_level_is_accepted_by_name_and_a_later_worse_one_fails_again(nights, mlproject_command):
    side, measure, folder = nights
    measure(1.0, 1.001, 0.999, 1.0, 1.3, 1.301, 1.299, 1.3)
    code, printed, _ = mlproject_command("trend", side)
    assert code == 1
    label = printed.partition(":")[0]
    wrong = mlproject_command("trend", side, "--accept", "vgg16", "--because", "so")
    assert wrong[::2] == (2, f"mlproject: accept='vgg16': worse is {label}\n")
    assert mlproject_command("trend", side, "--accept", label)[0] == 2
    accepted = mlproject_command("trend", side, "--accept", label, "--because", "new loss")
    assert accepted[0] == 0
    assert "worse: by more than 2 %; accepted by ada: new loss" in accepted[1]
    assert "8 there already" in "".join(mlproject_command("sync", "--records", folder)[1:])
    measure(1.302)
    assert mlproject_command("trend", side)[0] == 0
    measure(1.7, 1.701, 1.699, 1.7)
    code, printed, _ = mlproject_command("trend", side)
    assert code == 1
    assert "accepted" not in printed
