"""`mlproject trend --accept` on a real server: a level that is meant fails nobody's gate."""

import secrets
from datetime import datetime, timedelta, timezone

import pytest
import samples
from stored_runs import filed

from tracking.upload.upload import upload

pytestmark = pytest.mark.slow
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
