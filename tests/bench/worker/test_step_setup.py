"""A step is what its configuration says, whatever else the model's own code does."""

import pytest
import torch
from unusual_models import Volume

from bench.config import RunConfig
from bench.errors import UnsupportedError, UserError
from bench.records.journal import JournalWriter
from bench.worker.step_setup import StepSetup, read_switches


@pytest.fixture(autouse=True)
def switches_restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False


@pytest.fixture
def setup_of(tmp_path):
    def made(model, **changes):
        known = {"backend": "cpu", "batch_size": 2, "cudnn_benchmark": True}
        config = RunConfig(arch=f"unusual_models:{model}", **{**known, **changes})
        return StepSetup(config, JournalWriter(tmp_path / "journal.jsonl"))

    return made


def test_a_models_file_does_not_choose_the_arithmetic(setup_of):
    threads, setup = torch.get_num_threads(), setup_of("sets_switches")
    with setup.opened() as ready:
        ready.step()
        found = read_switches()
    asked = {name: "ieee" for name in found if name.endswith("fp32_precision")}
    assert asked
    assert found == found | asked | {
        "cudnn.benchmark": "True",
        "cudnn.deterministic": "False",
        "default dtype": "torch.float32",
        "threads": str(threads),
    }
    assert setup.resolved.threads == threads
    assert setup.changed_switches() == ()


def test_what_a_step_sets_while_it_runs_is_in_the_record(setup_of):
    setup = setup_of("sets_switches_in_its_step")
    assert setup.changed_switches() == ()
    with setup.opened() as ready:
        ready.step()
    changed = setup.changed_switches()
    assert {"cuda.matmul.fp32_precision to tf32", "cudnn.benchmark to False"} < set(changed)
    assert any(one.startswith("threads to ") for one in changed)


def test_what_holds_within_a_step_alone_is_in_the_record_where_a_step_was_looked_into(setup_of):
    setup = setup_of("SetsBack")
    with setup.opened() as ready, setup.looked_into():
        ready.step()
    assert read_switches()["cudnn.conv.fp32_precision"] != "tf32"
    within = {f"cudnn.{kind}.fp32_precision to tf32" for kind in ("conv", "rnn")}
    assert within | {"cudnn.deterministic to True"} < set(setup.changed_switches())


def test_the_kernels_of_depthwise_convolutions_are_chosen_and_read(setup_of):
    with setup_of("SetsBack", depthwise_kernel="native").opened():
        assert read_switches()["cudnn.depthwise_kernel"] == "native"


@pytest.mark.parametrize("channels_last", ["true", "false"])
def test_a_model_with_weights_of_five_dimensions_takes_the_layout_of_images(
    setup_of, channels_last
):
    with setup_of("volume", channels_last=channels_last).opened() as ready:
        assert torch.isfinite(ready.step())
    weight = Volume.newest.flat.weight
    asked = torch.channels_last if channels_last == "true" else torch.contiguous_format
    assert weight.is_contiguous(memory_format=asked)


def test_complex_weights_are_trained_by_a_plain_optimizer(setup_of, tmp_path):
    setup = setup_of("spectrum")
    with setup.opened() as ready:
        assert torch.isfinite(ready.step())
    assert setup.resolved.fused_optimizer is False
    assert "fused_optimizer=auto" in (tmp_path / "journal.jsonl").read_text()


@pytest.mark.parametrize(
    ("model", "precision", "mode"),
    [
        ("double", "fp32", "fp64"),
        ("double", "amp-bf16", "fp64"),  # which autocast leaves as they are
        ("half", "fp32", "bf16"),
        ("half", "amp-fp16", "fp16"),
        ("volume", "amp-bf16", "bf16"),
    ],
)
def test_weights_of_another_type_decide_the_arithmetic(setup_of, model, precision, mode):
    setup = setup_of(model, precision=precision)
    with setup.opened() as ready:
        assert torch.isfinite(ready.step())
    assert setup.resolved.math_mode == setup.complexity().math_mode == mode
    own = setup.resolved.departure(precision) == "own-arithmetic"
    assert own == (mode != precision.removeprefix("amp-"))
    assert model != "double" or setup.complexity().step_flops == 2 * 2 * 2 * 8 * 10
    assert model != "half" or setup.complexity().memory.weights_bytes == 2 * (8 * 10 + 10)


@pytest.mark.parametrize(
    ("changes", "error", "remedy"),
    [
        ({"model": "spectrum", "fused_optimizer": "true"}, UnsupportedError, "=auto"),
        ({"model": "table"}, UserError, "sparse=False"),
        ({"model": "table", "optimizer": "adamw"}, UserError, "sparse=False"),
    ],
)
def test_what_no_optimizer_takes_is_refused_with_a_remedy(setup_of, changes, error, remedy):
    with pytest.raises(error, match=remedy), setup_of(**changes).opened():
        pass
