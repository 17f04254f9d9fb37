"""Real git repositories in a temporary folder."""

import os
import subprocess
import sys

import pytest

from bench.errors import Unknown
from bench.machine.repository import has_changed, model_code, repository_facts


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


def test_a_changed_file_is_dirty_and_a_new_one_is_not(project, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as a hook has it
    (project / "records.json").write_text("{}")
    assert repository_facts(project)["git_dirty"] is False
    (project / "bench/__init__.py").write_text("changed = True")
    monkeypatch.delenv("GIT_DIR")
    commit = git(project, "rev-parse", "HEAD")
    assert repository_facts(project) == {"git_commit": commit, "git_dirty": True}


def test_what_no_repository_tracks_has_no_commit_and_the_reason(project, tmp_path, monkeypatch):
    installed = project / ".venv/site-packages"
    (installed / "bench").mkdir(parents=True)
    (installed / "bench/__init__.py").write_text("")
    why = Unknown(f"{installed} is installed, not a git work tree")
    assert repository_facts(installed) == {"git_commit": why, "git_dirty": why}
    assert "not a git repository" in repository_facts(tmp_path)["git_commit"].reason
    monkeypatch.setenv("PATH", "")
    assert repository_facts(project)["git_dirty"] == Unknown("no program git here")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A user's repository, in its folder: a model in a package, and what it imports."""
    folder = tmp_path / "mine"
    (folder / "nets").mkdir(parents=True)
    (folder / "nets/__init__.py").write_text("")
    (folder / "nets/net.py").write_text("import torch\nfrom . import layers\nfrom nets import x\n")
    (folder / "nets/layers.py").write_text("def gelu():\n    import kernels\n")
    (folder / "kernels.py").write_text("")
    (folder / "unrelated.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "")
    return folder


def code_of(arch="nets.net:net"):
    return model_code(arch)


def test_the_code_of_a_model_is_its_module_and_what_that_imports_from_here(model):
    first = code_of()
    assert first.modules == ("kernels", "nets", "nets.layers", "nets.net")
    assert (first.git_commit, first.git_dirty) == (git(model, "rev-parse", "HEAD"), False)
    assert not has_changed("nets.net:net", first.digest)
    layers = model / "nets/layers.py"
    layers.write_bytes(layers.read_bytes().replace(b"\n", b"\r\n"))
    assert code_of().digest == first.digest
    assert "__init__.py" in " ".join(code_of("mypy:main").modules)  # of an installed package: all


@pytest.mark.parametrize(
    ("file", "text", "is_another"),
    [
        ("nets/net.py", "changed = 1\n", True),
        ("nets/layers.py", "changed = 1\n", True),
        ("kernels.py", "changed = 1\n", True),
        ("kernels.py", "", False),
        ("unrelated.py", "changed = 1\n", False),
    ],
)
def test_a_change_of_what_is_imported_is_another_code(model, file, text, is_another):
    first = code_of()
    (model / file).write_text(text)
    second = code_of()
    assert (second.digest != first.digest) == is_another
    assert has_changed("nets.net:net", first.digest) == is_another
    assert second.git_dirty == bool(text)
    assert second.git_commit == first.git_commit


def test_installed_packages_on_the_path_are_no_code_of_the_model(model, tmp_path, monkeypatch):
    first = code_of()
    installed = tmp_path / "lib/site-packages"
    (installed / "torch").mkdir(parents=True)
    (installed / "torch/__init__.py").write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, (installed, shared)), *sys.path]))
    assert code_of() == first
    (shared / "torch.py").write_text("")
    assert "torch" in code_of().modules


def test_what_git_does_not_track_has_no_commit_and_a_digest_all_the_same(model):
    (model / "new.py").write_text("net = 1\n")
    found = code_of("new:net")
    assert (found.git_commit, found.git_dirty) == (None, None)
    assert "new.py" in found.missing["git_commit"]
    assert found.digest


@pytest.mark.parametrize(("arch", "reason"), [("resnet18", "no model"), ("no_such:net", "no file")])
def test_a_model_without_a_file_has_no_code_and_the_reason(model, arch, reason):
    assert reason in model_code(arch).reason
    assert not has_changed(arch, "another")
