"""The set-up, with uv and the project's own packages replaced by scripts that keep a log."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import program
from refusals import refusal

from bootstrap import installer
from bootstrap.installer import INPUTS, OURS, STAMP, Place, SetupError

PROJECT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")

# Writes down what it is asked for; waits at the named pipe `gate` where there is one, after
# saying so through `arrived`; "installs" the project's command where that is asked for.
UV = """#!/bin/sh
[ "$1" = --version ] && echo "uv 0.13.8" && exit
echo "$@" >> "$CLONE/uv.log"
touch "$CLONE/.venv/half"
if [ -p "$CLONE/gate" ]; then echo here > "$CLONE/arrived"; read line < "$CLONE/gate"; fi
[ -e "$CLONE/no-network" ] && exit 2
rm "$CLONE/.venv/half"
touch "$CLONE/.venv/lib/installed.py"
echo "a template, {{ no Python }}" > "$CLONE/.venv/lib/template.py"
case "$*" in *"-e ."*) touch "$CLONE/.venv/bin/mlproject";; esac
"""

PROJECTS = """
import os, pathlib
whole = pathlib.Path(os.environ["CLONE"], "envs", "whole")
whole.parent.mkdir(exist_ok=True)
whole.touch()
with open(os.path.join(os.environ["CLONE"], "uv.log"), "a") as log:
    log.write("project environment\\n")
print(whole)
"""


class Clone:
    """A copy of the set-up with stand-ins for what it starts."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.venv = folder / ".venv"
        shutil.copytree(PROJECT / "bootstrap", folder / "bootstrap")
        for name in INPUTS:
            (folder / name).write_text("uv==0.13.8\n")
        (folder / "tracking").mkdir()
        (folder / "tracking" / "__init__.py").touch()
        (folder / "tracking" / "projects.py").write_text(PROJECTS)
        program(programs, "uv", UV)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        path = f"{self.programs}:/usr/bin:/bin"
        return subprocess.Popen(
            [sys.executable, "-m", "bootstrap", *arguments],
            cwd=self.folder,
            env={
                "PATH": path,
                "HOME": str(self.folder),
                "CLONE": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
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

    def hold_uv(self) -> None:
        """Let the next uv wait, half-way through its work."""
        os.mkfifo(self.folder / "gate")
        os.mkfifo(self.folder / "arrived")

    def wait_for_uv(self) -> None:
        assert (self.folder / "arrived").read_text() == "here\n"

    def let_go(self) -> None:
        gate = self.folder / "gate"
        with gate.open("w") as pipe:
            gate.unlink()  # only the one that waits there has it
            pipe.write("go\n")


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "clone").mkdir()
    return Clone((tmp_path / "clone").resolve(), tmp_path / "programs")


RUNTIME = ["-r requirements.txt", "--no-deps --no-build-isolation -e .", "project environment"]
DEV = ["-r requirements-dev.txt", *RUNTIME[1:]]


@pytest.mark.slow
def test_makes_everything_once_and_what_is_lost_again(clone):
    code, errors = clone.set_up()
    assert code == 0, errors
    assert clone.calls() == RUNTIME
    assert (clone.venv / "bin" / "python").exists()
    assert clone.set_up() == (0, "")
    assert clone.calls() == []
    (clone.folder / "envs" / "whole").unlink()
    assert clone.set_up()[0] == 0
    assert "project environment" in clone.calls()
    assert (clone.folder / "envs" / "whole").exists()


@pytest.mark.slow
def test_new_requirements_are_added_to_the_environment_that_is_there(clone):
    clone.set_up()
    (clone.venv / "a-package-of-mine").touch()
    (clone.folder / "requirements.txt").write_text("uv==0.13.8\nnew==1\n")
    clone.calls()
    assert clone.set_up()[0] == 0
    assert clone.calls() == RUNTIME
    assert (clone.venv / "a-package-of-mine").exists()
    clone.hold_uv()  # killed in the middle, and the requirements as before
    (clone.folder / "requirements.txt").write_text("uv==0.13.8\n")
    second = clone.start()
    clone.wait_for_uv()
    second.kill()
    second.wait()
    clone.let_go()
    (clone.folder / "requirements.txt").write_text("uv==0.13.8\nnew==1\n")
    code, errors = clone.set_up()
    assert code == 0
    assert "unfinished" in errors
    assert not (clone.venv / "half").exists()


@pytest.mark.slow
def test_packages_and_own_modules_are_compiled_where_python_writes_no_bytecode(clone):
    clone.set_up()
    compiled = [path.name for path in (clone.venv / "lib" / "__pycache__").iterdir()]
    assert [name.split(".")[0] for name in compiled] == ["installed"]
    [own] = (clone.folder / "tracking" / "__pycache__").glob("projects.*.pyc")
    before = own.read_bytes()
    module = clone.folder / "tracking" / "projects.py"
    module.write_text(PROJECTS + "changed = True\n")
    os.utime(module, (2e9, 2e9))  # bytecode knows its source by the second of its last change
    clone.calls()
    assert clone.set_up() == (0, "")
    assert own.read_bytes() != before
    assert clone.calls() == []


@pytest.mark.slow
def test_tools_for_tests_come_on_top_and_stay(clone):
    clone.set_up()
    clone.calls()
    assert clone.set_up("--dev")[0] == 0
    assert clone.calls() == DEV
    assert clone.set_up() == (0, "")
    (clone.folder / "python_env.yaml").write_text("changed")
    assert clone.set_up()[0] == 0
    assert clone.calls() == DEV


@pytest.mark.slow
def test_two_at_once_do_the_work_once(clone):
    clone.hold_uv()
    first = clone.start()
    clone.wait_for_uv()
    second = clone.start()
    assert "waiting for it" in second.stderr.readline()
    clone.let_go()
    assert first.wait() == 0
    assert second.wait() == 0
    assert clone.calls() == RUNTIME


@pytest.mark.slow
def test_after_a_kill_the_next_one_waits_for_what_is_left_running_and_starts_afresh(clone):
    clone.hold_uv()
    first = clone.start()
    clone.wait_for_uv()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (clone.venv / "half").exists()
    assert not (clone.venv / STAMP).exists()
    (clone.venv / "half-a-package").touch()

    second = clone.start()
    assert "waiting for it" in second.stderr.readline()
    clone.let_go()
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert "unfinished" in errors
    assert not (clone.venv / "half-a-package").exists()
    assert clone.calls() == ["-r requirements.txt", *RUNTIME]


@pytest.mark.slow
def test_an_environment_that_cannot_be_kept_is_replaced(clone, tmp_path):
    clone.set_up()

    def replaced():
        """The complaints of a set-up that replaces the environment."""
        (clone.venv / "of-before").touch()
        clone.calls()
        code, errors = clone.set_up()
        assert code == 0
        assert clone.calls() == RUNTIME
        assert (clone.venv / "bin" / "python").exists()
        assert not (clone.venv / "of-before").exists()
        return errors

    stamp = clone.venv / STAMP
    stamp.write_text(stamp.read_text().replace(sys.version.split()[0], "3.9.1"))
    assert "of another Python or place" in replaced()
    python = clone.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    replaced()
    moved = tmp_path / "moved"
    shutil.move(clone.folder, moved)
    clone.folder, clone.venv = moved, moved / ".venv"
    assert "of another Python or place" in replaced()
    assert str(moved) in json.loads((clone.venv / STAMP).read_text())["home"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("somebody else's environment", "remove it or move it away"),
        ("a file of that name", "set-up: cannot write"),
        ("a file is missing", "python_env.yaml"),
    ],
)
def test_what_set_up_cannot_use_is_one_line_and_stays(clone, fault, words):
    if fault == "somebody else's environment":
        (clone.venv / "lib").mkdir(parents=True)
    elif fault == "a file of that name":
        clone.venv.touch()
    else:
        (clone.folder / "python_env.yaml").unlink()
    code, errors = clone.set_up()
    assert code == 1
    [line] = errors.splitlines()
    assert words in line
    if fault == "somebody else's environment":
        assert [child.name for child in clone.venv.iterdir()] == ["lib"]


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


def test_old_python_is_refused_with_its_version(clone):
    pretend = "import sys, runpy; sys.version_info = (3, 9, 1); runpy.run_module('bootstrap')"
    done = subprocess.run(
        [sys.executable, "-c", pretend], cwd=clone.folder, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "needs Python 3.10" in done.stderr
    assert sys.executable in done.stderr


# How uv is found, on machines that have less and less.

PIP = """#!/bin/sh
case "$*" in
"-m pip --version") echo "pip 23";;
"-m pip install"*)
    echo "WARNING: a setting of this machine" >&2
    [ -e "$CLONE/no-network" ] && echo "no route to an index" && exit 2
    while [ "$1" != --target ]; do shift; done
    mkdir -p "$2/bin"
    cp {uv} "$2/bin/uv";;
*) exit 1;;
esac
"""
NO_PIP = "#!/bin/sh\nexit 1\n"
ENSUREPIP = '#!/bin/sh\n[ "$*" = "-m ensurepip --version" ] && echo "pip 23"\n'


class Machine:
    """A machine without uv; its interpreter is to be written by the test."""

    def __init__(self, clone: Clone) -> None:
        self.place = Place(clone.folder)
        self.place.folder.mkdir()
        self.programs = clone.programs
        (clone.programs / "uv").unlink()
        self.fetched = self.place.folder / "installer" / "bin" / "uv"
        self.with_pip = PIP.format(uv=program(clone.folder, "fetched-uv", UV))

    def python(self, text: str) -> None:
        program(self.programs, "python", text)

    def obtain(self) -> Path:
        with self.place.claimed() as lock:
            return installer.obtain_uv(self.place, installer.Runner(self.place, lock))


@pytest.fixture
def machine(clone, monkeypatch):
    machine = Machine(clone)
    which = shutil.which  # the machine that the test runs on may have a uv in /usr/bin
    monkeypatch.setattr(shutil, "which", lambda name: which(name, path=str(machine.programs)))
    monkeypatch.setattr(installer, "BASE_PYTHON", clone.programs / "python")
    monkeypatch.setenv("CLONE", str(clone.folder))
    return machine


def test_uv_on_path_is_used(machine):
    uv = program(machine.programs, "uv", UV)
    assert machine.obtain() == uv


@pytest.mark.parametrize("says", ["exit 127", "echo uv 0.4.30", None])
def test_uv_that_fails_or_is_old_or_the_environments_own_is_passed_over(machine, says):
    (machine.place.folder / OURS).touch()
    machine.python(machine.with_pip)
    if says is None:
        machine.programs = program(machine.place.script("uv").parent, "uv", UV).parent
    else:
        program(machine.programs, "uv", says)
    assert machine.obtain() == machine.fetched


def test_what_an_installer_says_is_shown_only_if_it_fails(machine, clone, capfd):
    machine.python(machine.with_pip)
    (clone.folder / "no-network").touch()
    assert "pip could not fetch uv" in refusal(machine.obtain, error=SetupError)
    shown = capfd.readouterr().err
    assert "WARNING: a setting of this machine" in shown
    assert "no route to an index" in shown
    (clone.folder / "no-network").unlink()
    assert machine.obtain() == machine.fetched
    assert capfd.readouterr().err == "set-up: fetching uv 0.13.8\n"


def test_pip_of_the_environment_fetches_uv_where_the_interpreter_has_none(machine):
    (machine.place.folder / OURS).touch()
    machine.python(ENSUREPIP)
    unpacks = machine.with_pip.replace("*) exit 1", '"-m ensurepip");;\n*) exit 1')
    program(machine.place.script("python").parent, "python", unpacks)
    assert machine.obtain() == machine.fetched


def test_neither_uv_nor_pip_nor_ensurepip_is_one_line_with_the_remedy(machine):
    machine.python(NO_PIP)
    assert "sudo apt install python3-venv" in refusal(machine.obtain, error=SetupError)


def test_settings_that_would_send_packages_elsewhere_are_dropped(monkeypatch):
    for name, value in {
        "PIP_USER": "1",
        "PIP_TARGET": "/elsewhere",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "VIRTUAL_ENV": "/another",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
    }.items():
        monkeypatch.setenv(name, value)
    environ = installer.child_environment()
    assert environ["PIP_USER"] == environ["PIP_REQUIRE_VIRTUALENV"] == "0"
    assert "PIP_TARGET" not in environ
    assert "VIRTUAL_ENV" not in environ
    assert environ["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"


def test_an_environment_counts_as_unfinished_before_anything_is_removed(clone, monkeypatch):
    clone.set_up()
    place = Place(clone.folder)
    assert place.stamp() is not None
    stamps = []
    monkeypatch.setattr(shutil, "rmtree", lambda folder: stamps.append(place.stamp()))
    (clone.venv / "a-folder").mkdir()
    place.empty()
    assert set(stamps) == {None}


def test_an_environment_that_is_a_link_is_left_as_it_is(clone, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / OURS).write_text("")
    (other / "python").write_text("of somebody")
    clone.venv.symlink_to(other)
    code, errors = clone.set_up()
    assert code != 0
    assert "is a link" in errors
    assert {path.name for path in other.iterdir()} == {OURS, "python"}
