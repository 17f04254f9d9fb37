"""The environment of `mlflow run`: the folder in which MLflow looks for it is a link."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refusal

from tracking.projects import link_environment, project_environment, quieten

PROJECT = Path(__file__).resolve().parents[2]
VARIABLE = "MLFLOW_LOGGING_LEVEL"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there MLflow finds no such folder")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("click==8.1\n")
    (folder / "python_env.yaml").write_text((PROJECT / "python_env.yaml").read_text())
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "envs"))
    return folder


def environment(folder):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return folder


def test_the_link_leads_to_the_environment_that_was_set_up_last(project, tmp_path):
    here, elsewhere = environment(project / ".venv"), environment(tmp_path / "other" / ".venv")
    link = link_environment(project, elsewhere)
    assert link.resolve() == elsewhere
    for _ in range(2):
        assert link_environment(project, here) == link
        assert link.resolve() == here
    assert [*link.parent.iterdir()] == [link]
    assert (elsewhere / "bin" / "python").exists()
    (project / "requirements.txt").write_text("click==8.2\n")
    assert link_environment(project, here) != link


def test_a_link_to_what_is_gone_is_made_anew_and_a_folder_stays(project, tmp_path, capsys):
    here = environment(project / ".venv")
    link = project_environment(project)
    link.parent.mkdir()
    link.symlink_to(tmp_path / "gone")
    assert link_environment(project, here).resolve() == here
    link.unlink()
    environment(link)
    assert link_environment(project, here) == link
    assert (link / "bin" / "python").exists()
    assert not link.is_symlink()
    assert "remove it to use .venv" in capsys.readouterr().err


def test_a_root_that_cannot_be_written_names_the_variable(project, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "file"))
    assert "MLFLOW_ENV_ROOT" in refusal(link_environment, project, project / ".venv")


@pytest.mark.parametrize("level", [None, "INFO"])
def test_an_environment_of_the_set_up_has_no_chatter_unless_it_is_asked_for(tmp_path, level):
    quieten(tmp_path)
    quieten(tmp_path / "not there")
    code = "import os, site, sys; site.addsitedir(sys.argv[1]); print(os.environ[sys.argv[2]])"
    environ = {"PATH": os.environ["PATH"]} | ({VARIABLE: level} if level else {})
    words = [sys.executable, "-S", "-c", code, str(tmp_path), VARIABLE]
    assert subprocess.check_output(words, env=environ, text=True).strip() == (level or "WARNING")
