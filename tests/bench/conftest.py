"""What tests of several folders stand on: images, a machine's files, programs and rights."""

import gc
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from programs import program as write_program

from bench.images import generate_image_folder
from bench.machine import gpu_drivers


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")


@pytest.fixture
def frozen_heap():
    """Looking through all objects, such as a collection, takes those that the test makes alone."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder that is first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


@pytest.fixture
def program(programs):
    """Return a function that puts a shell script on PATH, before all else."""

    return partial(write_program, programs)


@pytest.fixture
def only_programs(program, programs, monkeypatch):
    """As `program`, on a PATH that holds nothing else."""
    monkeypatch.setenv("PATH", str(programs))
    return program


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a function that writes files below a root that looks like a machine's, and is ours."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr("bench.machine.ROOT", root)

    def write(texts):
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.fixture
def library(monkeypatch):
    """Return a function by which a GPU's library opens as told: `nvml`, `amdsmi` or `driver`."""
    return lambda name, opened: monkeypatch.setattr(gpu_drivers, f"open_{name}", opened)


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """A generated folder of 3 classes x 6 images, seed 0; not to be written to."""
    folder = tmp_path_factory.mktemp("generated") / "photos"
    generate_image_folder(folder, classes=3, images_per_class=6)
    return folder


@pytest.fixture
def photos(generated, tmp_path):
    """A copy of the generated folder that a test may damage."""
    return Path(shutil.copytree(generated, tmp_path / "photos"))
