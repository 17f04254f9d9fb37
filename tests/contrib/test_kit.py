"""The kit for machines without a network: what it refuses, and one that is packed and used."""

import csv
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from refusals import refusal
from uv import find_uv_bin

import mlproject
from bench.doctor import package_checks
from bench.machine.repository import code_id, repository_facts
from bootstrap.setup import Place, SetupError
from commands.console import options
from contrib import kit as kits

PROJECT = Path(__file__).resolve().parent.parent.parent
KIT = {
    "python_version": ".".join(map(str, sys.version_info[:2])),
    "machine": platform.machine(),
    "git_commit": "c" * 40,
    "git_dirty": False,
    "code_id": code_id(),
    "left_out": kits.LEFT_OUT,
}


def refused(kit, folder):
    (folder / kits.KIT).write_text(json.dumps(kit))
    return refusal(kits.set_up, Place(folder, -1), False, error=SetupError)


def test_another_python_or_processor_is_refused_with_the_kit_to_pack(tmp_path):
    this = KIT["python_version"]
    assert f"make kit PYTHON_VERSION={this}" in refused(KIT | {"python_version": "3.9"}, tmp_path)
    assert "on riscv64" in refused(KIT | {"machine": "riscv64"}, tmp_path)


@pytest.fixture
def versions(monkeypatch):
    """What is said of packages: a version, or None where one is not installed."""
    installed, known = importlib.metadata.version, {}

    def version(name):
        found = known[name] if name in known else installed(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return known


def test_a_python_without_torch_or_with_an_old_one_is_refused(tmp_path, versions):
    versions["torch"] = "2.10.1+cu130"
    assert "torch 2.10.1+cu130 of" in refused(KIT, tmp_path)
    versions["torchvision"] = None
    assert "has no torchvision: start the set-up with the Python that" in refused(KIT, tmp_path)


@pytest.fixture
def unpacked(tmp_path):
    """What of a kit says where its code is from, without a work tree."""
    shutil.copytree(PROJECT / "bench", tmp_path / "bench")
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    (tmp_path / kits.KIT).write_text(json.dumps(KIT))
    return tmp_path


def test_records_name_the_commit_of_a_kit_and_say_that_it_was_changed(unpacked):
    assert repository_facts(unpacked) == {"git_commit": "c" * 40, "git_dirty": False}
    with (unpacked / "bench" / "__init__.py").open("a") as file:
        file.write("changed = True\n")
    assert repository_facts(unpacked) == {"git_commit": "c" * 40, "git_dirty": True}


def test_the_doctor_asks_for_nothing_that_a_kit_leaves_out(unpacked, versions):
    versions.update(dict.fromkeys(kits.LEFT_OUT))
    assert [check.status for check in package_checks(unpacked)] == ["ok", "ok"]
    assert "mlflow is not installed" in list(package_checks(PROJECT))[1].detail


@pytest.mark.slow
def test_a_trace_is_read_without_what_a_kit_leaves_out(tmp_path):
    modules = {"markdown-it-py": "markdown_it"}
    hidden = [modules.get(name, name) for name in kits.LEFT_OUT]
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    (tmp_path / "trace.json").write_text(json.dumps([event]))
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden!r})); "
        "import mlproject; sys.exit(mlproject.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "trace", tmp_path / "trace.json"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "add" in done.stdout


@pytest.mark.parametrize("given", [[], ["--track"]])
def test_without_mlflow_records_stay_on_disk_and_nobody_is_promised_more(
    given, monkeypatch, tmp_path, capsys
):
    find_spec = importlib.util.find_spec

    def without(name, package=None):
        return None if name == "mlflow" else find_spec(name, package)

    for module in (options, importlib.util):
        monkeypatch.setattr(module, "find_spec", without)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("commands.run.launch_ceilings", stop)
    code = mlproject.main(["ceilings", "--backend", "cpu", "--records", str(tmp_path), *given])
    assert code == (2 if given else 130)  # refused before anything is measured
    refusal = "--track: this environment has no MLflow; leave it out"
    words = refusal if given else "no MLflow here: records stay on disk"
    assert words in capsys.readouterr().err


def test_a_command_that_needs_what_is_not_installed_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "commands.tune", None)
    with pytest.raises(ModuleNotFoundError):  # our own: a fault
        mlproject.main(["tune"])

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name == "commands.tune":
                raise ModuleNotFoundError("No module named 'scipy.special'", name="scipy.special")

    monkeypatch.delitem(sys.modules, "commands.tune")
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert mlproject.main(["tune"]) == 2
    assert "scipy is not installed in this environment" in capsys.readouterr().err


def other_python():
    """Python 3.12 where there is one: other than ours, as on another machine."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in ["python3.12", *map(str, root.glob("versions/3.12*/bin/python3"))]:
        try:
            done = subprocess.run(
                [python, "-c", "import sys; print(sys.executable)"], capture_output=True
            )
        except OSError:
            continue
        if done.returncode == 0:
            return "3.12", done.stdout.decode().strip()
    return KIT["python_version"], sys.executable


@pytest.fixture
def there():
    """A fresh Python with the oldest torch, and neither pip nor anything else."""
    version, python = other_python()
    uv = [find_uv_bin(), "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*uv, "venv", "--python", python, folder], check=True)
        fresh = Path(folder, "bin", "python")
        packages = ["torch==2.11.*", "torchvision==0.26.*"]
        subprocess.run([*uv, "pip", "install", "--python", fresh, *packages], check=True)
        yield version, fresh


@pytest.mark.long
@pytest.mark.timeout(1200)  # 5 GB may come first, and an acceptance takes up to 8 minutes
@pytest.mark.skipif(sys.platform != "linux", reason="a kit is for Linux")
def test_a_kit_measures_without_a_network_and_home_tracks_and_reports(
    there, tmp_path, embedded, mlproject_command
):
    version, python = there
    target = ["--python-version", version, "--machine", platform.machine()]
    pack = [sys.executable, "-m", "contrib.kit", *target, "--out", tmp_path]
    subprocess.run(pack, check=True, cwd=PROJECT)
    [file] = tmp_path.glob("*.tar.gz")
    assert file.stat().st_size < 60e6
    subprocess.run(["tar", "xf", file], check=True, cwd=tmp_path)
    folder = tmp_path / "mlproject-kit"
    nowhere = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "all")}
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **nowhere}

    def done(*command, cwd):
        ended = subprocess.run(command, cwd=cwd, env=bare, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended

    assert "torch 2.11" in done(python, "-m", "bootstrap", cwd=folder).stderr
    out = tmp_path / "brought"
    small = ["--set", "arch=squeezenet1_1", "--set", "batch_size=2", "--backend=cpu"]
    sweep = [folder / ".venv/bin/mlproject", "sweep", "acceptance", "--minutes=8", *small]
    runs = json.loads(done(*sweep, f"--records={out}", "--format=json", cwd=tmp_path).stdout)
    [fp32] = [run for run in runs if "fp32" in run["configuration"]]
    assert fp32["outcome"] == "ok"
    assert fp32["throughput_images_per_s"] > 0
    code, printed, _ = mlproject_command("sync", "--records", out)
    assert code == 0
    assert f"{len(runs) + 1} uploaded" in printed
    code, printed, _ = mlproject_command("report", "--no-log")
    assert "squeezenet1_1" in printed
    assert code in (0, 1)  # 1: a busy machine's numbers may be impossible, which it says


# The lowest versions that pyproject.toml allows are those that measure, track and report


SMALL = ("--arch=squeezenet1_1", "--batch-size=2", "--image-size=64", "--warmup-iters=1")


@pytest.mark.long
@pytest.mark.timeout(1800)  # 5 GB may come first
def test_the_lowest_versions_measure_track_and_report(tmp_path):
    uv = [find_uv_bin(), "--quiet"]
    pins, python = tmp_path / "lowest.txt", tmp_path / "e" / "bin" / "python"
    compiled = [*uv, "pip", "compile", "--resolution", "lowest-direct", "--output-file", pins]
    subprocess.run([*compiled, "--python", sys.executable, PROJECT / "pyproject.toml"], check=True)
    subprocess.run([*uv, "venv", "--python", sys.executable, tmp_path / "e"], check=True)
    subprocess.run([*uv, "pip", "install", "--python", python, "-r", pins], check=True)

    def command(*words, codes=(0,)):
        line = [python, PROJECT / "mlproject.py", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in codes, done.stderr
        return done.stdout

    assert "python           ok" in command("doctor")
    command("run", "--backend=cpu", *SMALL, "--iters=3")
    # 1: a busy machine's numbers may be impossible, which it says
    assert "squeezenet1_1" in command("report", "--no-log", codes=(0, 1))
    assert (tmp_path / "reports" / "latest" / "report.html").is_file()
    [run] = csv.DictReader(io.StringIO(command("pull", "--roofs")))
    assert (run["arch"], run["outcome"]) == ("squeezenet1_1", "ok")
    command("pull", "--out", "runs.parquet")
