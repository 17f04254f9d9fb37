"""What runs in fp32 beside autocast, and what it costs in the model of a step's traffic."""

from dataclasses import replace

import pytest
import torch
from small_models import resolved
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config import RunConfig
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.records.journal import JournalWriter
from bench.training.devices import open_device
from bench.training.step import keep_depthwise_in_fp32, open_precision
from bench.worker.step_setup import StepSetup


class Convolutions(TorchDispatchMode):
    """The type that each convolution is computed in, in their order."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            self.types.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


class Users(torch.nn.Conv2d):
    """A convolution of somebody's own."""


def test_only_strided_depthwise_convolutions_are_kept():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),  # strided
        torch.nn.Conv2d(16, 16, 3, groups=16),  # depthwise
        torch.nn.Conv2d(16, 32, 3, groups=4, stride=2),  # grouped
        torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3, groups=32, stride=(1, 2))),  # both
        Users(64, 64, 3, groups=64, stride=2),
        torch.nn.Conv2d(64, 8, 1),
    )
    modules, weights = dict(model.named_modules()), dict(model.named_parameters())
    assert keep_depthwise_in_fp32(model)
    assert dict(model.named_modules()) == modules
    assert all(weights[name] is weight for name, weight in model.named_parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16), Convolutions() as seen:
        output = model(torch.randn(2, 3, 64, 64))
    low, high = torch.bfloat16, torch.float32
    assert seen.types == [low, low, low, high, low, low]
    assert output.dtype == low


@pytest.mark.slow
def test_the_cost_model_counts_the_fp32_copies():
    known = {"batch_size": 4, "image_size": 32, "precision": "amp"}
    spec = StepSpec("small_models:batch_normed", **known)
    plain, kept = (
        step_complexity(replace(spec, depthwise_fp32=choice)) for choice in (False, True)
    )
    assert kept.step_flops == plain.step_flops
    assert kept.eager_bytes > plain.eager_bytes
    assert kept.memory.activations_bytes > plain.memory.activations_bytes


@pytest.mark.slow
def test_a_layer_kept_in_fp32_compiles_into_one_graph():
    layer = torch.nn.Conv2d(4, 4, 3, stride=2, groups=4)
    keep_depthwise_in_fp32(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    images = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(images), layer(images))
        assert layer(images).dtype == torch.bfloat16  # as the layers beside it expect


@pytest.mark.parametrize(("model", "in_use"), [("batch_normed", True), ("linear", False)])
def test_what_was_in_use_says_whether_the_model_has_any(tmp_path, model, in_use):
    config = RunConfig(
        arch=f"small_models:{model}",
        backend="cpu",
        precision="amp-bf16",
        batch_size=1,
        cudnn_benchmark=False,  # of this process: other tests' stays
    )
    setup = StepSetup(config, JournalWriter(tmp_path / "journal.jsonl"))
    with setup.opened() as ready:
        assert ready.resolved.depthwise_fp32 is in_use
    assert setup.resolved == ready.resolved


@pytest.mark.parametrize(
    ("precision", "asked", "on_a_cpu", "elsewhere"),
    [
        ("amp-bf16", "auto", True, False),
        ("amp-bf16", "true", True, True),
        ("amp-bf16", "false", False, False),
        ("fp32", "auto", False, False),
    ],
)
def test_auto_keeps_them_under_amp_on_a_cpu(monkeypatch, precision, asked, on_a_cpu, elsewhere):
    device = open_device("cpu")
    known = RunConfig(precision=precision, depthwise_fp32=asked), device
    assert resolved(*known, open_precision(precision, device)).depthwise_fp32 is on_a_cpu
    monkeypatch.setattr(device, "prefers_fp32_depthwise", False)
    assert resolved(*known, open_precision(precision, device)).depthwise_fp32 is elsewhere
