"""What every rented machine does after set-up, with stand-ins for the command line."""

import os
import subprocess

import pytest
from rented_machine import asked, make_project

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")


@pytest.fixture
def facts(tmp_path):
    folder = tmp_path / "facts"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path, facts):
    """Start the script in a project that is set up; give its process."""
    project = make_project(tmp_path / "project")
    environ = {
        **os.environ,
        "FACTS": str(facts),
        "MLFLOW_TRACKING_URI": "https://example.org",
        "MLPROJECT_RECORDS": str(tmp_path / "records"),
    }
    subprocess.run(["make", "setup"], cwd=project, env=environ, check=True)

    def start(*words, **more):
        given = {name: value for name, value in (environ | more).items() if value is not None}
        return subprocess.Popen(
            [project / "deploy" / "measure.sh", *words],
            env=given,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def test_it_looks_measures_roofs_and_sweeps_with_the_words_it_was_given(start, facts):
    assert start("classic", "--campaign", "two words").wait() == 0
    assert asked(facts) == [
        "doctor",
        "ceilings --backend cuda --if-missing",
        "sweep classic --campaign two words",
    ]


def test_without_a_server_nothing_is_tracked_and_roofs_that_fail_do_not_cost_the_sweep(
    start, facts
):
    (facts / "ceilings-code").write_text("1")
    assert start("classic", MLFLOW_TRACKING_URI=None).wait() == 0
    assert asked(facts)[1:] == [
        "ceilings --backend cuda --if-missing --no-track",
        "sweep --no-track classic",
    ]


@pytest.mark.parametrize(
    ("sweep_code", "sync_code", "code"), [(2, 0, 2), (130, 0, 130), (3, 0, 0), (3, 3, 3)]
)
def test_the_sweeps_exit_code_is_its_own_unless_a_sync_uploads_the_rest(
    start, facts, sweep_code, sync_code, code
):
    (facts / "sweep-code").write_text(str(sweep_code))
    (facts / "sync-code").write_text(str(sync_code))
    assert start("classic").wait() == code
    assert ("sync" in asked(facts)) == (sweep_code == 3)
