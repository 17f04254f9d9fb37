"""Real git repositories in a temporary folder."""

import subprocess

import pytest

from bench.machine.repository import repository_facts


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=no"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "bench").mkdir(parents=True)
    (folder / "bench/__init__.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_changed_file_is_dirty_and_a_new_one_is_not(project):
    (project / "records.json").write_text("{}")
    commit = git(project, "rev-parse", "HEAD")
    assert repository_facts(project).values == {"git_commit": commit, "git_dirty": False}
    (project / "bench/__init__.py").write_text("changed = True")
    assert repository_facts(project).values == {"git_commit": commit, "git_dirty": True}


def test_an_environment_inside_another_repository_has_no_commit(project):
    installed = project / ".venv/site-packages"
    (installed / "bench").mkdir(parents=True)
    (installed / "bench/__init__.py").write_text("")
    found = repository_facts(installed)
    assert found.values == {"git_commit": None, "git_dirty": None}
    assert "not a git work tree" in found.missing["git_commit"]


def test_a_plain_folder_has_no_commit(tmp_path):
    found = repository_facts(tmp_path)
    assert found.values["git_commit"] is None
    assert "not a git repository" in found.missing["git_commit"]


def test_without_git_the_reason_is_git(project, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert repository_facts(project).missing["git_dirty"] == "no program git here"


def test_a_hooks_variables_do_not_lead_astray(project, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert repository_facts(project).values["git_commit"] is not None
