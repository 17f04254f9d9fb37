"""What is installed: the wheel, its names beside others of those names, what a script imports."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from programs import copy_project

import mlproject

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = {"analysis", "bench", "campaigns", "commands", "tracking"}


def python(*arguments, cwd, path="", executable=sys.executable):
    return subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, without what an earlier build left in it."""
    clone = copy_project(tmp_path_factory.mktemp("clone"))
    out = tmp_path_factory.mktemp("dist")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    built = python("-m", "pip", "wheel", *options, out, clone, cwd=out)
    assert built.returncode == 0, built.stderr
    [file] = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `python` of a fresh environment with the wheel, beside the packages that it needs."""
    place = tmp_path_factory.mktemp("environment")
    python("-m", "venv", "--without-pip", place, cwd=place)
    fresh = place / "bin" / "python"
    [site] = place.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    options = ("install", "--quiet", "--no-deps", "--no-index", "--ignore-installed")
    done = python("-m", "pip", "--python", fresh, *options, wheel, cwd=place)
    assert done.returncode == 0, done.stderr
    return fresh


@pytest.mark.slow
def test_a_wheel_has_our_packages_alone_and_a_text_without_links_to_files(wheel):
    with zipfile.ZipFile(wheel) as parts:
        names = parts.namelist()
        [metadata] = [name for name in names if name.endswith("METADATA")]
        about = message_from_bytes(parts.read(metadata))
    assert {name.split("/")[0] for name in names} == {
        "mlproject.py", metadata.split("/")[0], *PACKAGES
    }  # fmt: skip
    assert {f"{package}/py.typed" for package in PACKAGES} < set(names)
    assert "uv" not in " ".join(about.get_all("Requires-Dist")).split()
    assert "mlproject run --arch" in about.get_payload()
    assert "](" not in about.get_payload()


@pytest.mark.long
def test_an_installed_wheel_measures_and_reports_in_an_empty_folder(installed, tmp_path):
    tiny = "--backend cpu --batch-size 2 --image-size 32 --iters 3 --warmup-iters 1"
    for line in (
        "--help",
        f"run --arch squeezenet1_1 {tiny}",
        "sweep smoke --dry-run",
        "report",
    ):
        command = installed.with_name("mlproject"), *line.split()
        done = python(*command, cwd=tmp_path, executable=installed)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert "has the name of" not in done.stderr
    assert (tmp_path / "reports" / "latest" / "report.html").exists()


@pytest.fixture
def others(tmp_path):
    """A folder with packages and modules of our names, and without what we need of them."""
    for name in ("bench", "tracking"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "commands.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["-m", "mlproject", "counters", "--help"], "here"),
        (["-c", "import sys, mlproject; sys.exit(mlproject.main(['counters', '--help']))"], "path"),
        (["-c", "from mlproject import RunConfig; print('Usage:', RunConfig())"], "here"),
    ],
)
def test_others_of_our_names_in_front_are_named_and_ours_are_used(
    others, tmp_path_factory, arguments, place
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = str(PROJECT) if place == "here" else os.pathsep.join([str(others), str(PROJECT)])
    done = python(*arguments, cwd=others if place == "here" else elsewhere, path=path)
    assert (done.returncode, "Usage:" in done.stdout) == (0, True), done.stderr
    assert [line.partition(" has ")[0] for line in done.stderr.splitlines()] == [
        f"mlproject: {others / name}" for name in ("bench", "commands.py", "tracking")
    ]


def test_another_of_our_names_that_is_imported_already_ends_the_import(others):
    done = python("-c", "import bench, mlproject", cwd=others, path=str(PROJECT))
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: mlproject: {others / 'bench'} has the name of")
    assert "rename it" in said


@pytest.mark.slow
def test_every_name_of_a_script_is_there():
    for name in mlproject.__all__:
        assert getattr(mlproject, name)
