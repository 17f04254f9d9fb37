"""The work of each call: the totals by call, under names that distinguish kinds of layers."""

from collections import Counter

import pytest
import torch
from generated_steps import tiny, traced

from bench.cost import cached_ops
from bench.cost.estimate import op_work, step_complexity
from bench.records import StepSpec
from bench.records.complexity import plain_label

SUMMED = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")


@pytest.mark.parametrize(
    "spec",
    [
        StepSpec("resnet18", 2, "amp-fp16"),
        tiny("other_norms", fused_optimizer=False),
        tiny("other_norms", precision="amp-fp16"),
        tiny("tied", precision="amp"),
        tiny("frozen_stem"),
        tiny("biased_conv", precision="amp-fp16"),
    ],
)
@pytest.mark.slow
def test_the_calls_add_up_to_the_ops_and_to_the_step(spec):
    calls, step = op_work(spec), step_complexity(spec)
    for op in step.ops:
        same = [call for call in calls if (call.op, call.phase) == (op.op, op.phase)]
        assert len(same) == op.calls
        assert all(sum(getattr(c, name) for c in same) == getattr(op, name) for name in SUMMED)
    assert len({(op.op, op.phase) for op in step.ops}) == len(step.ops)
    assert sum(op.calls for op in step.ops) == len(calls)
    assert step.phases["forward"].flops == 2 * step.forward_macs
    assert [*step.phases] == ["forward", "backward", "optimizer"]
    for listed in (cached_ops(spec), cached_ops(spec)):  # counted, and read where it is kept
        assert sum(op.calls for op in listed.ops) == len(calls) >= len(listed.ops)
        for field in SUMMED:
            total = sum(op.calls * getattr(op, field) for op in listed.ops)
            assert total == sum(getattr(call, field) for call in calls)
        assert listed.memory == step.memory
    totals = {"flops": step.step_flops} | {field: getattr(step, field) for field in SUMMED[1:]}
    for parts in (calls, step.phases.values()):
        assert totals == {f: sum(getattr(part, f) for part in parts) for f in SUMMED}
    assert step.compulsory_bytes <= step.fused_bytes < step.eager_bytes


@pytest.mark.parametrize(
    ("layer", "label"),
    [
        (torch.nn.Conv2d(4, 8, 7, stride=2), "convolution 7x7 stride 2"),
        (torch.nn.Conv2d(4, 8, (1, 3), stride=(1, 2)), "convolution 1x3 stride 1x2"),
        (torch.nn.Conv2d(4, 8, 3, groups=2), "grouped convolution 3x3"),
        (torch.nn.Conv2d(4, 8, 3, groups=4), "depthwise convolution 3x3"),
        (torch.nn.Conv2d(4, 8, 3, dilation=2), "convolution 3x3 dilation 2"),
        (torch.nn.ConvTranspose2d(4, 8, 2, stride=2), "transposed convolution 2x2 stride 2"),
    ],
)
def test_a_convolution_is_named_by_what_sets_its_intensity(layer, label):
    images = torch.zeros(1, 4, 8, 8, requires_grad=True)
    _, tracer = traced(lambda: layer(images), lambda result: result.sum().backward())
    found = [call.label for call in tracer.calls if call.op.startswith("convolution")]
    assert found == [label, label]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("native_batch_norm_backward", "batch_norm"),
        ("cudnn_batch_norm", "batch_norm"),
        ("hardtanh_", "hardtanh"),
        ("threshold_backward", "relu"),
        ("_log_softmax_backward_data", "log_softmax"),
        ("nll_loss_forward", "nll_loss"),
        ("max_pool2d_with_indices_backward", "max_pool2d"),
        ("_to_copy", "cast"),
        ("addmm", "linear"),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("_", "_"),
    ],
)
def test_an_op_is_named_after_its_layer(name, label):
    assert plain_label(name) == label


def test_shapes_are_those_of_tensors_alone():
    matrix, number = torch.ones(2, 3), torch.tensor(2.0)
    _, tracer = traced(lambda: (torch.cat([matrix, matrix]), matrix * number))
    shapes = {call.op: call.shapes for call in tracer.calls}
    assert (shapes["cat"], shapes["mul"]) == ((), ((2, 3),))


def test_accumulated_batches_repeat_forward_and_backward_and_add_gradients():
    once = op_work(tiny("conv_relu_conv"))
    thrice = op_work(tiny("conv_relu_conv"), grad_accum_steps=3)
    counts = [Counter((call.op, call.phase) for call in calls) for calls in (once, thrice)]
    assert counts[1]["convolution", "forward"] == 3 * counts[0]["convolution", "forward"]
    assert counts[1]["_fused_sgd_", "optimizer"] == 1
    # Both weights' gradients are added twice; each loss is divided by three.
    assert counts[1]["add_", "backward"] == 4
    assert counts[1]["div", "backward"] == 3 * counts[0]["div", "backward"] + 3 * 2
    assert sum(call.flops for call in thrice) == 3 * sum(call.flops for call in once)
