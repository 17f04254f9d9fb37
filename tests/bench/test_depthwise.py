"""What runs in fp32 beside autocast, and what it costs in the model of a step's traffic."""

import pytest
import torch
from small_models import batch_normed

from bench.complexity import step_complexity
from bench.config import RunConfig, parse_config
from bench.devices import open_device
from bench.errors import UserError
from bench.precision import keep_depthwise_in_fp32, open_precision
from bench.resolve import resolve


def types_of_convolutions(model):
    """The types that each convolution computes in and hands on, under autocast to bf16."""
    types = []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(
                lambda layer, given, output: types.append((given[0].dtype, output.dtype))
            )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 3, 32, 32))
    return types


def test_only_strided_depthwise_convolutions_are_kept():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),  # strided
        torch.nn.Conv2d(16, 16, 3, groups=16),  # depthwise
        torch.nn.Conv2d(16, 32, 3, groups=4, stride=2),  # grouped
        torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3, groups=32, stride=(1, 2))),  # both
        torch.nn.Conv2d(64, 8, 1),
    )
    keep_depthwise_in_fp32(model)
    low, high = torch.bfloat16, torch.float32
    assert types_of_convolutions(model) == [
        *((high, low), (low, low), (low, low)),
        (high, high),
        (low, low),  # what is kept in fp32 hands on bf16
    ]


def test_weights_and_their_order_stay():
    model = batch_normed()
    before = list(model.parameters())
    keep_depthwise_in_fp32(model)
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("precision", "asked", "used"),
    [
        ("amp", "auto", True),
        ("amp", "true", True),
        ("amp", "false", False),
        ("fp32", "auto", False),
    ],
)
def test_auto_keeps_them_under_amp_on_a_cpu(precision, asked, used):
    device = open_device("cpu")
    config = RunConfig(precision=precision, depthwise_fp32=asked)
    assert resolve(config, device, open_precision(precision, device)).depthwise_fp32 is used


def test_there_is_nothing_to_keep_in_fp32():
    with pytest.raises(UserError, match=r"depthwise_fp32=true .* precision=fp32"):
        parse_config({"depthwise_fp32": "true", "precision": "fp32"})


def test_the_cost_model_counts_the_fp32_copies():
    plain, kept = (
        step_complexity(
            "small_models:batch_normed",
            batch_size=4,
            image_size=32,
            precision="amp",
            depthwise_fp32=choice,
        )
        for choice in (False, True)
    )
    assert kept.step_flops == plain.step_flops
    assert kept.eager_bytes > plain.eager_bytes
    assert kept.memory.activations_bytes > plain.memory.activations_bytes
