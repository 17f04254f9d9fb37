"""What is computed once for a user, and what has to be computed again."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bench import cost
from bench.config import RunConfig
from bench.cost import cached_complexity, config_complexity, estimate
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.folders import cache_folder

SPEC = StepSpec("alexnet", batch_size=2, precision="fp32", image_size=64, cache_bytes=2**20)


@pytest.fixture
def computed(monkeypatch):
    """What was computed, not read: the specs."""
    specs = []

    def compute(spec):
        specs.append(spec)
        return step_complexity(spec)

    monkeypatch.setattr(estimate, "step_complexity", compute)
    return specs


def ask(spec=SPEC):
    return cached_complexity(spec)


def kept():
    return list((cache_folder() / "complexity").glob("*"))


@pytest.mark.slow
def test_the_same_question_is_answered_once_and_another_is_computed(computed):
    first = ask()
    assert ask() == first == step_complexity(SPEC)
    assert computed == [SPEC]
    changes = ({"batch_size": 4}, {"precision": "amp"}, {"cache_bytes": 1})
    for other in (replace(SPEC, **change) for change in changes):
        assert ask(other) == step_complexity(other)
    assert len(computed) == 4


def test_other_code_and_other_versions_compute_again(computed, monkeypatch):
    folders = []
    # read each time, as by another process
    monkeypatch.setattr(cost, "_installed", cost._installed.__wrapped__)
    ask()
    monkeypatch.setattr(
        "bench.machine.repository.code_id", lambda folder: folders.append(folder.name) or "another"
    )
    for _ in range(2):
        ask()
    assert folders == ["cost", "training", "records"] * 2
    monkeypatch.setattr(cost.metadata, "version", lambda name: "0.0")
    ask()
    monkeypatch.setenv("TIMM_FUSED_ATTN", "0")
    ask()
    assert len(computed) == 4


def test_what_no_file_gives_is_computed_again(computed, monkeypatch, tmp_path):
    for _ in range(2):  # a user's own model
        ask(replace(SPEC, arch="crashing_models:small"))
    assert (len(computed), kept()) == (2, [])
    first = ask()
    (file,) = kept()
    file.write_text('{"arch": "alexnet"}')
    assert ask() == ask() == first
    assert len(computed) == 4
    (tmp_path / "file").write_text("")  # where no file can be written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ask() == ask() == first
    assert len(computed) == 6


def test_the_newest_files_are_kept(monkeypatch):
    monkeypatch.setattr("bench.cost._MOST_FILES", 200)
    folder = cache_folder() / "complexity"
    folder.mkdir(parents=True)
    for age_s in range(250):
        file = folder / f"{age_s}.json"
        file.write_text("")
        os.utime(file, (1e9 - age_s, 1e9 - age_s))
    ask()
    names = {file.name for file in kept()}
    assert len(names) == 200
    assert names > {f"{age_s}.json" for age_s in range(199)}


@pytest.mark.slow
def test_a_cost_that_was_counted_before_is_given_without_torch():
    config = RunConfig(arch="alexnet", batch_size=2, image_size=64)
    ask_again = (
        "import sys; from bench.config import RunConfig; from bench.cost import config_complexity\n"
        "config = RunConfig(arch='alexnet', batch_size=2, image_size=64)\n"
        "print(config_complexity(config).step_flops, 'torch' in sys.modules)"
    )
    counted = config_complexity(config).step_flops
    command = [sys.executable, "-c", ask_again]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(counted), "False"]
