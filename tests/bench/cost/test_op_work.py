"""The work of each call: the totals by call, under names that distinguish kinds of layers."""

from collections import Counter

import pytest
import torch
from generated_steps import tiny, traced

from bench.config import RunConfig
from bench.cost import cached_ops
from bench.cost.estimate import complexity_by_module, op_work, step_complexity
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


# By module: whose an op is, forward and backward, and the sums


#: A row's counts per image, and what they sum up to in a step's complexity.
COUNTS = {
    "forward_macs_per": "forward_macs",
    "step_flops_per": "step_flops",
    "elementwise_flops_per": "elementwise_flops",
    "bytes_per_{}_min": "fused_bytes",
    "bytes_per_{}_max": "eager_bytes",
}


def _counted(arch, depth=9, **changes):
    """The complexity, and the counts of two samples by module."""
    settings = {"arch": arch, "batch_size": 2, **changes}
    complexity, modules, ties = complexity_by_module(RunConfig(**settings), depth=depth)
    each = f"per_{complexity.sample}"
    rows = {
        row["module"]: {
            name.replace(each, "per"): 2 * value if each in name else value
            for name, value in row.items()
        }
        for row in modules
    }
    return complexity, rows, ties


def _assert_sums_are_the_step(complexity, rows):
    tops = [row for row in rows.values() if row["depth"] == 0]
    assert [row["module"] for row in tops] == ["(model)", "(loss)", "(optimizer)"]
    for name, field in COUNTS.items():
        total = sum(row[name.replace("per_{}", "per")] for row in tops)
        assert total == getattr(complexity, field), name
    for name in ("step_flops_share", "bytes_min_share", "bytes_max_share"):
        assert sum(row[name] for row in tops) == pytest.approx(1)
    assert tops[0]["parameters"] == complexity.parameters


def test_a_backward_op_belongs_to_the_module_of_its_forward_op():
    complexity, rows, _ = _counted("tiny_models:conv_norm_relu_conv", image_size=4)
    first, norm, last = rows["0"], rows["1"], rows["3"]
    images, pixels = 2, 16
    assert (first["type"], first["depth"], first["parameters"]) == ("Conv2d", 1, 24)
    assert first["forward_macs_per"] == images * pixels * 24
    # No gradient of the images.
    assert (first["forward_flops_per"], first["backward_flops_per"]) == (1536, 1536)
    assert first["step_flops_share"] == 2 * 1536 / complexity.step_flops
    assert (last["forward_flops_per"], last["backward_flops_per"]) == (2048, 2 * 2048)
    assert (norm["type"], norm["parameters"], norm["forward_flops_per"]) == ("BatchNorm2d", 16, 0)
    counts_its_steps = 1
    assert norm["elementwise_flops_per"] == (3 + 2 + 4 + 5) * images * 8 * pixels + counts_its_steps
    assert rows["(optimizer)"]["bytes_per_min"] == 20 * complexity.parameters
    assert rows["(loss)"]["elementwise_flops_per"] > 0
    _assert_sums_are_the_step(complexity, rows)


def test_tied_parameters_are_counted_once_and_named():
    complexity, rows, tied = _counted("tiny_models:tied", image_size=4)
    assert tied == {"3.weight": "1.weight"}
    sizes = {name: (row["parameters"], row["shared_parameters"]) for name, row in rows.items()}
    assert (sizes["1"], sizes["3"]) == ((48 * 48 + 48, 0), (48, 48 * 48))
    assert sizes["(model)"][1] == 0
    assert rows["3"]["forward_flops_per"] == rows["1"]["forward_flops_per"] == 2 * 2 * 48 * 48
    _assert_sums_are_the_step(complexity, rows)
    flat = _counted("tiny_models:tied", 0, image_size=4)[1]
    assert flat == {name: row for name, row in rows.items() if row["depth"] == 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("resnet18", {"image_size": 64, "precision": "amp-bf16"}),
        ("timm:mobilenetv3_small_050", {"image_size": 64}),
        ("hf:gpt2", {"seq_len": 16, "optimizer": "adamw"}),
    ],
)
def test_the_rows_of_a_model_sum_up_to_its_step(arch, changes):
    if ":" in arch:
        pytest.importorskip("timm" if arch.startswith("timm") else "transformers")
    complexity, rows, _ = _counted(arch, depth=99, **changes)
    _assert_sums_are_the_step(complexity, rows)
    names = [name.replace("per_{}", "per") for name in COUNTS]
    for row in [*rows.values()][:-2]:
        path = "" if row["depth"] == 0 else f"{row['module']}."
        below = row["depth"] + 1
        inner = [each for name, each in rows.items()
                 if each["depth"] == below and name.startswith(path)]  # fmt: skip
        for name in (*names, "parameters"):
            assert sum(each[name] for each in inner) <= row[name]
    layers = [row for row in rows.values() if row["type"] in ("Conv2d", "Linear", "Conv1D")]
    assert any(row["forward_flops_per"] for row in layers)
    # A layer's backward products are those of its forward pass, to the weight and to the input.
    assert all(
        row["backward_flops_per"] in (row["forward_flops_per"], 2 * row["forward_flops_per"])
        for row in layers
    )


@pytest.mark.slow
def test_what_a_checkpoint_computes_again_belongs_to_its_module():
    plain = _counted("tiny_models:Checkpointed", image_size=4)[1]
    again = _counted("tiny_models:NonReentrant", image_size=4)[1]
    for name in ("forward_flops_per", "backward_flops_per"):
        assert again["layers"][name] == plain["layers"][name]
    assert again["layers"]["bytes_per_max"] > plain["layers"]["bytes_per_max"]
    assert again["last"]["bytes_per_max"] == plain["last"]["bytes_per_max"]


def test_sums_of_gradients_and_copies_into_them_belong_to_modules():
    rows = _counted("test_op_work:WithSkip", image_size=4)[1]
    other = _counted("tiny_models:tied", image_size=4)[1]  # with logits of this shape
    assert rows["(loss)"]["bytes_per_max"] == other["(loss)"]["bytes_per_max"]
    images, width = 2, 48
    # The bias, its gradient, and the sum of the two gradients of what the module was given.
    assert rows["inner"]["elementwise_flops_per"] == 3 * images * width


class WithSkip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner = torch.nn.Linear(48, 48), torch.nn.Linear(48, 48)
        self.scale = torch.nn.Parameter(torch.ones(5))  # the gradient of its sum is expanded

    def forward(self, images):
        given = self.stem(images.flatten(1))
        return given + self.inner(given) * self.scale.sum()
