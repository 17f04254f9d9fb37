"""The set-up in a clone: real environments, pip once; uv and the project are stand-ins."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from programs import program

from bootstrap.setup import INPUTS, OURS, STAMP, child_environment

PROJECT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")

# Writes down what it is asked for; waits at the named pipe `gate` where there is one, after
# saying so through `arrived`; "installs" the project's command where that is asked for.
UV = """#!/bin/sh
echo "$@" >> "$CLONE/uv.log"
touch "$CLONE/.venv/half"
if [ -p "$CLONE/gate" ]; then echo here > "$CLONE/arrived"; read line < "$CLONE/gate"; fi
[ -e "$CLONE/no-network" ] && exit 2
rm "$CLONE/.venv/half"
touch "$CLONE/.venv/lib/installed.py"
case "$*" in *"-e ."*) touch "$CLONE/.venv/bin/mlproject";; esac
"""
PROJECTS = """
import os, pathlib
link = pathlib.Path(os.environ["CLONE"], "link")
link.unlink(missing_ok=True)
link.symlink_to(pathlib.Path(os.environ["CLONE"], ".venv"))
with open(os.path.join(os.environ["CLONE"], "uv.log"), "a") as log:
    log.write("link\\n")
print(link)
"""
#: Python's own `venv`; in the place of pip, which takes seconds, what brings the stand-in for uv.
VENV = """
import pathlib, sys
sys.path.pop(0)  # from here on `venv` is Python's own
import venv
venv.create(sys.argv[1], symlinks=True)
[site] = pathlib.Path(sys.argv[1]).glob("lib/python*/site-packages")
(site / "pip.py").write_text(pathlib.Path("a_pip.py").read_text())
"""
PIP = """
import os, pathlib, shutil, sys
shutil.copy(pathlib.Path(os.environ["CLONE"], "a_uv"), pathlib.Path(sys.executable).with_name("uv"))
"""
RUNTIME = ["-r requirements.txt", "--no-deps --no-build-isolation -e . -e contrib", "link"]
DEV = ["-r requirements-dev.txt", *RUNTIME[1:]]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder of which pip installs the stand-in for uv."""
    folder = tmp_path_factory.mktemp("wheels")
    info = "uv-0.13.8.dist-info"
    with zipfile.ZipFile(folder / "uv-0.13.8-py3-none-any.whl", "w") as wheel:
        script = zipfile.ZipInfo("uv-0.13.8.data/scripts/uv")
        script.external_attr = 0o100755 << 16
        wheel.writestr(script, UV)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 0.13.8\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


class Clone:
    """A copy of the set-up with stand-ins for what it starts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.venv = folder, folder / ".venv"
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "CLONE": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for name, text in (("venv.py", VENV), ("a_pip.py", PIP)):
            (folder / name).write_text(text)
        program(folder, "a_uv", UV)
        shutil.copytree(PROJECT / "bootstrap", folder / "bootstrap")
        (folder / "contrib").mkdir()
        for name in INPUTS:
            (folder / name).write_text("uv==0.13.8\n")
        (folder / "tracking").mkdir()
        (folder / "tracking" / "__init__.py").touch()
        (folder / "tracking" / "projects.py").write_text(PROJECTS)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bootstrap", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def set_up(self, *arguments: str) -> tuple[int, str]:
        """Exit code and error output."""
        process = self.start(*arguments)
        _, errors = process.communicate()
        return process.returncode, errors

    def calls(self) -> list[str]:
        """What was started since the last question, less the paths."""
        log = self.folder / "uv.log"
        if not log.exists():
            return []
        lines = log.read_text().replace(f"{self.venv}/bin/", "").splitlines()
        log.unlink()
        return [line.removeprefix("pip install --python python --quiet ") for line in lines]

    def start_to_uv(self) -> subprocess.Popen[str]:
        """A set-up whose uv waits, half-way through its work."""
        os.mkfifo(self.folder / "gate")
        os.mkfifo(self.folder / "arrived")
        process = self.start()
        arrived = ["timeout", "120", "cat", self.folder / "arrived"]
        assert subprocess.run(arrived, capture_output=True).stdout == b"here\n"
        return process

    def let_go(self) -> None:
        gate = self.folder / "gate"
        with gate.open("w") as pipe:
            gate.unlink()  # only the one that waits there has it
            pipe.write("go\n")


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path.resolve() / "clone")


@pytest.mark.slow
def test_makes_everything_once_compiles_it_and_mends_the_link(clone, wheels):
    (clone.folder / "venv.py").unlink()  # with a real pip
    clone.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    code, errors = clone.set_up()
    assert code == 0, errors
    assert clone.calls() == RUNTIME
    assert [*(clone.venv / "lib" / "__pycache__").glob("installed.*.pyc")]
    [own] = (clone.folder / "tracking" / "__pycache__").glob("projects.*.pyc")
    before, module = own.read_bytes(), clone.folder / "tracking" / "projects.py"
    module.write_text(PROJECTS + "changed = True\n")
    os.utime(module, (2e9, 2e9))  # bytecode knows its source by the second of its last change
    assert clone.set_up() == (0, "")
    assert own.read_bytes() != before
    assert clone.calls() == []
    elsewhere = clone.folder / "another-clone"
    elsewhere.mkdir()
    for lead in (elsewhere, clone.folder / "gone"):
        (clone.folder / "link").unlink()
        (clone.folder / "link").symlink_to(lead)
        assert clone.set_up()[0] == 0
        assert (clone.folder / "link").resolve() == clone.venv
    assert elsewhere.exists()

    # new requirements and the tools for tests come on top, and stay
    (clone.venv / "a-package-of-mine").touch()
    clone.calls()
    assert clone.set_up("--dev")[0] == 0
    assert clone.calls() == DEV
    assert clone.set_up() == (0, "")
    (clone.folder / "python_env.yaml").write_text("changed")
    assert clone.set_up()[0] == 0
    assert clone.calls() == DEV
    assert (clone.venv / "a-package-of-mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_the_second_of_two_waits_and_starts_afresh_where_the_first_was_killed(clone, killed):
    first = clone.start_to_uv()
    if killed:
        first.kill()
        first.wait()
        assert not (clone.venv / STAMP).exists()
    (clone.venv / "half-a-package").touch()
    second = clone.start()
    assert "waiting for it" in second.stderr.readline()
    clone.let_go()
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert first.wait() == (-signal.SIGKILL if killed else 0)
    assert ("unfinished" in errors) == killed
    assert (clone.venv / "half-a-package").exists() != killed
    assert clone.calls() == ["-r requirements.txt"] * killed + RUNTIME


@pytest.mark.slow
def test_an_environment_that_cannot_be_kept_is_replaced(clone, tmp_path):
    def another_python():
        stamp = clone.venv / STAMP
        stamp.write_text(stamp.read_text().replace(sys.version.split()[0], "3.9.1"))

    def its_python_is_gone():
        python = clone.venv / "bin" / "python"
        python.unlink()
        python.symlink_to("/no/such/python")

    def the_clone_was_moved():
        clone.folder = shutil.move(clone.folder, tmp_path / "moved")
        clone.venv = clone.folder / ".venv"
        clone.environ["CLONE"] = clone.environ["HOME"] = str(clone.folder)

    kept = tmp_path / "kept"
    (kept / "lib").mkdir(parents=True)
    clone.set_up()
    for change in (another_python, its_python_is_gone, the_clone_was_moved):
        (clone.venv / "of-before").symlink_to(kept)
        (clone.venv / "lib" / "of-before").symlink_to(kept)
        change()
        clone.calls()
        code, errors = clone.set_up()
        assert (code, "of another Python or place" in errors) == (0, True), change
        assert clone.calls() == RUNTIME
        assert not (clone.venv / "of-before").is_symlink()
        assert [child.name for child in kept.iterdir()] == ["lib"]  # never through a link


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("somebody else's environment", "remove it or move it away"),
        ("a file of that name", "File exists"),
        ("a file is missing", "python_env.yaml"),
        ("a link", "is a link"),
    ],
)
def test_what_set_up_cannot_use_is_one_line_and_stays(clone, tmp_path, fault, words):
    somebodys = tmp_path / "somebody's"
    match fault:
        case "a file of that name":
            clone.venv.touch()
        case "a file is missing":
            (clone.folder / "python_env.yaml").unlink()
        case "a link":
            somebodys.mkdir()
            (somebodys / OURS).touch()
            clone.venv.symlink_to(somebodys)
        case "somebody else's environment":
            (clone.venv / "lib").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    code, errors = clone.set_up()
    assert code == 1
    [line] = errors.splitlines()
    assert line.startswith("set-up: ")
    assert words in line
    assert {*before} <= {*tmp_path.rglob("*")}


@pytest.mark.slow
def test_failure_is_one_line_and_the_next_one_starts_afresh(clone):
    (clone.folder / "no-network").touch()
    code, errors = clone.set_up()
    assert code == 1
    assert errors.splitlines()[-1].startswith("set-up: uv could not install requirements.txt")
    assert "Traceback" not in errors
    (clone.folder / "no-network").unlink()
    assert clone.set_up()[0] == 0
    assert not (clone.venv / "half").exists()
    (clone.venv / STAMP).unlink()
    (clone.folder / "a_uv").unlink()
    code, errors = clone.set_up()
    assert (code, "set-up: pip could not fetch uv==0.13.8" in errors) == (1, True)


@pytest.mark.slow
def test_without_a_gpu_cuda_is_left_out_and_comes_once_it_is_asked_for(clone):
    listed = ["uv==0.13.8", "nvidia-cublas==1 ; x", "nvidia-ml-py==1", "triton==1", "torch==1"]
    (clone.folder / "requirements.txt").write_text("\n".join(listed))
    clone.environ["UV_TORCH_BACKEND"] = "cpu"
    code, errors = clone.set_up()
    assert code == 0, errors
    left_out = clone.venv / "left-out.txt"
    assert clone.calls()[0] == f"-r requirements.txt --excludes {left_out}"
    assert left_out.read_text().split() == ["nvidia-cublas", "triton"]
    del clone.environ["UV_TORCH_BACKEND"]
    assert clone.set_up()[0] == 0
    assert clone.calls()[0] == "-r requirements.txt"


def test_old_python_is_refused_with_its_version(clone):
    pretend = "import sys, runpy; sys.version_info = (3, 9, 1); runpy.run_module('bootstrap')"
    done = subprocess.run(
        [sys.executable, "-c", pretend], cwd=clone.folder, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "needs Python 3.10" in done.stderr
    assert sys.executable in done.stderr


def test_settings_that_would_send_packages_elsewhere_are_dropped(monkeypatch):
    names = "PIP_USER PIP_TARGET PIP_REQUIRE_VIRTUALENV VIRTUAL_ENV UV_DEFAULT_INDEX"
    for name in names.split():
        monkeypatch.setenv(name, "1")
    environ = child_environment()
    assert environ["PIP_USER"] == environ["PIP_REQUIRE_VIRTUALENV"] == "0"
    assert not {"PIP_TARGET", "VIRTUAL_ENV"} & environ.keys()
    assert environ["UV_DEFAULT_INDEX"] == "1"
