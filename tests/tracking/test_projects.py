"""The environment of `mlflow run`: where MLflow looks for it, and that it is whole or not there."""

import os
from pathlib import Path

import pytest
from programs import program

from bench.errors import UserError
from tracking import projects

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")

# Makes a "Python" that answers the import check with the exit code in $IMPORTS, and "compiles";
# keeps a log.
UV = """#!/bin/sh
echo "$@" >> "$UV_LOG"
[ -e "$UV_LOG.no-network" ] && exit 2
for folder in "$@"; do :; done
[ "$1" = venv ] || exit 0
mkdir -p "$folder/bin"
printf '#!/bin/sh\\n[ "$2" = compileall ] && touch "$6/compiled"\\n' > "$folder/bin/python"
printf '[ "$1" = -c ] && echo odd >&2\\nexit %s\\n' "$IMPORTS" >> "$folder/bin/python"
chmod +x "$folder/bin/python"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("click==8.1\n")
    (folder / "python_env.yaml").write_text((PROJECT / "python_env.yaml").read_text())
    uv = program(tmp_path, "uv", UV)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(uv))
    monkeypatch.setenv("UV_LOG", str(tmp_path / "uv.log"))
    monkeypatch.setenv("IMPORTS", "0")
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "envs"))
    return folder


@pytest.fixture
def uv_log(tmp_path):
    return tmp_path / "uv.log"


def folders(project):
    return sorted(child.name for child in (project.parent / "envs").iterdir() if child.is_dir())


def test_made_once(project, uv_log, capfd):
    folder = projects.make_environment(project)
    assert "odd" not in capfd.readouterr().err.splitlines()
    assert projects.is_whole(folder)
    assert (folder / "compiled").exists()
    assert folders(project) == [folder.name]
    venv, install = uv_log.read_text().splitlines()
    assert "--relocatable" in venv
    assert install.endswith(f"-r {project / 'requirements.txt'}")
    uv_log.unlink()
    assert projects.make_environment(project) == folder
    assert not uv_log.exists()


def test_other_requirements_are_another_environment(project):
    first = projects.make_environment(project)
    (project / "requirements.txt").write_text("click==8.2\n")
    second = projects.make_environment(project)
    assert first != second
    assert projects.is_whole(first)
    assert projects.is_whole(second)


def test_what_is_half_there_is_replaced_and_what_a_killed_set_up_left_removed(project):
    folder = projects.project_environment(project)
    (folder / "lib" / "half-a-package").mkdir(parents=True)
    (folder.parent / f"{folder.name}.new-abc").mkdir(parents=True)
    projects.make_environment(project)
    assert projects.is_whole(folder)
    assert not (folder / "lib").exists()
    assert folders(project) == [folder.name]
    (folder / "bin" / "python").unlink()
    assert not projects.is_whole(folder)
    projects.make_environment(project)
    assert projects.is_whole(folder)


@pytest.mark.parametrize("imports", ["0", "1"])
def test_environment_that_mlflow_built_is_kept_if_its_packages_import(project, uv_log, imports):
    folder = projects.project_environment(project)
    answer = f'[ "$2" = compileall ] && touch "$6/compiled"\nexit {imports}'
    program(folder / "bin", "python", answer)
    projects.make_environment(project)
    assert projects.is_whole(folder)
    assert (folder / "compiled").exists()
    assert uv_log.exists() == (imports == "1")


@pytest.mark.parametrize(
    ("fault", "words"), [("network", "run `make setup` again"), ("imports", "do not import")]
)
def test_a_set_up_that_fails_leaves_nothing_and_shows_why(
    project, tmp_path, monkeypatch, capfd, fault, words
):
    if fault == "network":
        (tmp_path / "uv.log.no-network").touch()
    else:
        monkeypatch.setenv("IMPORTS", "1")
    with pytest.raises(UserError, match=words):
        projects.make_environment(project)
    assert ("odd" in capfd.readouterr().err.splitlines()) == (fault == "imports")
    assert folders(project) == []


def test_unwritable_root_names_the_variable(project, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "file"))
    with pytest.raises(UserError, match="MLFLOW_ENV_ROOT"):
        projects.make_environment(project)
