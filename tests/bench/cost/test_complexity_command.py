"""`mlproject complexity`, as a user calls it."""

import csv
import json
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner
from worker_processes import output_of

from bench import cost
from bench.config import RunConfig
from bench.cost import cached_complexity, estimate
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.folders import cache_folder
from commands.complexity import Complexity

#: Beside those whose value the test knows.
KEYS = {
    "recomputed_flops_per_image",
    "causal_skipped_flops_per_image",
    "elementwise_flops_per_image",
    "bytes_per_image_min",
    "bytes_per_image_max",
    "bytes_per_image_compulsory",
    "activations_per_image",
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "peak_bytes",
    "intensity_min",
    "intensity_max",
    "method",
}


def _run(*arguments):
    result = CliRunner().invoke(Complexity.command(), arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.slow
def test_json_has_a_row_per_model_and_batch_size_and_is_exact_and_complete():
    arguments = ["--arch", "resnet18", "--arch", "alexnet", "--format", "json", "--ops"]
    rows = json.loads(_run(*arguments, "--batch-size", "32", "--batch-size", "64"))
    assert [(row["arch"], row["batch_size"]) for row in rows] == [
        (arch, batch_size) for arch in ("resnet18", "alexnet") for batch_size in (32, 64)
    ]
    row = rows[0]
    exact = {
        "arch": "resnet18",
        "batch_size": 32,
        "image_size": 224,
        "precision": "fp32",
        "parameters": 11_689_512,
        "forward_macs_per_image": 1_814_073_344,
        "step_flops_per_image": 10_648_412_160,
    }
    assert row.keys() >= KEYS | exact.keys()
    assert {key: row[key] for key in exact} == exact
    assert all(type(row[key]) is type(exact[key]) for key in exact)
    assert 0 < row["bytes_per_image_compulsory"] < row["bytes_per_image_min"]
    assert row["bytes_per_image_min"] < row["bytes_per_image_max"]
    assert row["intensity_min"] == pytest.approx(10_648_412_160 / row["bytes_per_image_max"])
    for kind in ("intensity_min", "intensity_max"):
        assert row[kind] < rows[1][kind]  # that of the larger batch
    assert sum(op["flops"] for op in row["ops"]) == 32 * row["step_flops_per_image"]


def test_csv_has_the_rows_of_json_and_with_ops_a_row_per_op():
    arguments = ["--arch", "tiny_models:conv_relu_conv", "--image-size", "4", "--batch-size", "2"]
    [expected] = json.loads(_run(*arguments, "--format", "json"))
    [row] = csv.DictReader(_run(*arguments, "--format", "csv").splitlines())
    assert row == {name: "" if value is None else str(value) for name, value in expected.items()}
    assert (row["forward_flops_per_image"], row["backward_flops_per_image"]) == ("1792", "2816")
    assert float(row["optimizer_bytes_per_image_min"]) == 20 * 56 / 2
    ops = [*csv.DictReader(_run(*arguments, "--format", "csv", "--ops").splitlines())]
    assert {op["phase"] for op in ops} == {"forward", "backward", "optimizer"}
    assert sum(int(op["flops"]) for op in ops) == 2 * expected["step_flops_per_image"]


TIED = ("--arch", "tiny_models:tied", "--image-size", "4", "--by", "module", "--depth", "1")


def test_json_and_csv_have_a_row_per_module():
    [row] = json.loads(_run(*TIED, "--format", "json"))
    assert [each["module"] for each in row["modules"]] == [
        *("(model)", "0", "1", "2", "3", "(loss)", "(optimizer)")
    ]
    assert row["tied_parameters"] == {"3.weight": "1.weight"}
    rows = [*csv.DictReader(_run(*TIED, "--format", "csv").splitlines())]
    named = {"arch": "tiny_models:tied", "image_size": "4", "batch_size": "32", "precision": "fp32"}
    for given, expected in zip(rows, row["modules"], strict=True):
        words = {name: "" if value is None else str(value) for name, value in expected.items()}
        assert given == {"tokens_per_sample": "", **named, **words}


@pytest.mark.slow
def test_the_step_is_that_of_a_cpu_unless_cuda_is_asked_for():
    def row(*arguments):
        small = ["--arch", "alexnet", "--image-size", "64", "--format", "json"]  # it has dropout
        (found,) = json.loads(_run(*small, *arguments))
        return found

    usual, cpu, cuda = row(), row("--backend", "cpu"), row("--backend", "cuda")
    assert usual == cpu
    assert "as on a CPU" in cpu["method"]
    assert "as on CUDA" in cuda["method"]
    assert cuda["bytes_per_image_max"] < cpu["bytes_per_image_max"]
    assert cuda["step_flops_per_image"] == cpu["step_flops_per_image"]


def test_a_wrong_value_is_refused_before_torch_is_imported():
    program = (
        "import sys\n"
        "from commands.complexity import Complexity\n"
        "try: Complexity.command().main(['--precision', 'fp31'], standalone_mode=False)\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)\n"
    )
    assert output_of(program) == "UserError False\n"


# What is computed once for a user, and what has to be computed again


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
    spec = StepSpec.of(RunConfig(arch="alexnet", batch_size=2, image_size=64))
    ask_again = (
        "import sys; from bench.cost import cached_complexity\n"
        "from bench.config import RunConfig; from bench.records import StepSpec\n"
        "spec = StepSpec.of(RunConfig(arch='alexnet', batch_size=2, image_size=64))\n"
        "print(cached_complexity(spec).step_flops, 'torch' in sys.modules)"
    )
    counted = cached_complexity(spec).step_flops
    assert output_of(ask_again).split() == [str(counted), "False"]
