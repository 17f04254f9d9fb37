"""The costs of a model's modules: whose an op is, forward and backward, and the sums."""

import csv
import json

import pytest
import torch
from click.testing import CliRunner
from refusals import refusal
from torch.utils.checkpoint import checkpoint

from bench.config import RunConfig
from bench.cost.counted.by_module import complexity_by_module, module_rows
from commands.analyse.complexity import command

COUNTS = ("elementwise_flops", "fused_bytes", "eager_bytes")


def _counted(arch, depth=9, **changes):
    settings = {"arch": arch, "batch_size": 2, **changes}
    return complexity_by_module(RunConfig(**settings), depth=depth)


def _by_name(table):
    return {row.module: row for row in table.rows}


def _assert_sums_are_the_step(complexity, table):
    tops = [row for row in table.rows if row.depth == 0]
    assert [row.module for row in tops] == ["(model)", "(loss)", "(optimizer)"]
    assert sum(row.forward_macs for row in tops) == complexity.forward_macs
    assert sum(row.forward_flops + row.backward_flops for row in tops) == complexity.step_flops
    for name in COUNTS:
        assert sum(getattr(row, name) for row in tops) == getattr(complexity, name), name
    assert tops[0].parameters == complexity.parameters


def test_a_backward_op_belongs_to_the_module_of_its_forward_op():
    complexity, table = _counted("tiny_models:conv_norm_relu_conv", image_size=4)
    rows = _by_name(table)
    first, norm, last = rows["0"], rows["1"], rows["3"]
    images, pixels = 2, 16
    assert (first.kind, first.depth, first.parameters) == ("Conv2d", 1, 24)
    assert first.forward_macs == images * pixels * 24
    assert (first.forward_flops, first.backward_flops) == (1536, 1536)  # no gradient of the images
    assert (last.forward_flops, last.backward_flops) == (2048, 2 * 2048)
    assert (norm.kind, norm.parameters, norm.forward_flops) == ("BatchNorm2d", 16, 0)
    assert norm.elementwise_flops == (3 + 2 + 4 + 5) * images * 8 * pixels + 1  # counts its steps
    assert rows["(optimizer)"].fused_bytes == 20 * complexity.parameters
    assert rows["(loss)"].elementwise_flops > 0
    _assert_sums_are_the_step(complexity, table)


def test_tied_parameters_are_counted_once_and_named():
    complexity, table = _counted("tiny_models:tied", image_size=4)
    rows = _by_name(table)
    assert table.tied == (("3.weight", "1.weight"),)
    assert (rows["1"].parameters, rows["1"].shared_parameters) == (48 * 48 + 48, 0)
    assert (rows["3"].parameters, rows["3"].shared_parameters) == (48, 48 * 48)
    assert rows["(model)"].shared_parameters == 0
    assert rows["3"].forward_flops == rows["1"].forward_flops == 2 * 2 * 48 * 48
    _assert_sums_are_the_step(complexity, table)


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
    complexity, table = _counted(arch, depth=99, **changes)
    _assert_sums_are_the_step(complexity, table)
    for row in table.rows[:-2]:
        path = "" if row.depth == 0 else f"{row.module}."
        inner = [
            each
            for each in table.rows
            if each.depth == row.depth + 1 and each.module.startswith(path)
        ]
        for name in (*COUNTS, "forward_flops", "backward_flops", "parameters"):
            assert sum(getattr(each, name) for each in inner) <= getattr(row, name)
    layers = {row.kind for row in table.rows if row.forward_flops}
    assert {"Conv2d", "Linear", "Conv1D"} & layers
    # A layer's backward products are those of its forward pass, to the weight and to the input.
    assert all(
        row.backward_flops in (row.forward_flops, 2 * row.forward_flops)
        for row in table.rows
        if row.kind in ("Conv2d", "Linear", "Conv1D")
    )


@pytest.mark.slow
def test_what_a_checkpoint_computes_again_belongs_to_its_module():
    plain = _by_name(_counted("test_by_module:plain", image_size=4)[1])
    again = _by_name(_counted("test_by_module:checkpointed", image_size=4)[1])
    assert again["inner"].forward_flops == plain["inner"].forward_flops
    inner, recomputed = plain["inner"], again["inner"]
    assert recomputed.backward_flops == inner.backward_flops
    assert recomputed.eager_bytes > inner.eager_bytes
    assert again["outer"].eager_bytes == plain["outer"].eager_bytes


def test_sums_of_gradients_and_copies_into_them_belong_to_modules():
    rows = _by_name(_counted("test_by_module:WithSkip", image_size=4)[1])
    other = _by_name(_counted("tiny_models:tied", image_size=4)[1])  # with logits of this shape
    assert rows["(loss)"].eager_bytes == other["(loss)"].eager_bytes
    images, width = 2, 48
    # The bias, its gradient, and the sum of the two gradients of what the module was given.
    assert rows["inner"].elementwise_flops == 3 * images * width


def test_depth_bounds_the_rows_and_not_the_sums():
    deep = _counted("tiny_models:conv_relu_conv", image_size=4)[1]
    flat = _counted("tiny_models:conv_relu_conv", depth=0, image_size=4)[1]
    assert flat.rows == tuple(row for row in deep.rows if row.depth == 0)


def test_shares_and_counts_are_of_a_sample():
    complexity, table = _counted("tiny_models:conv_relu_conv", image_size=4)
    rows = {row["module"]: row for row in module_rows(complexity, table)}
    assert rows["0"]["forward_macs_per_image"] == 16 * 24
    assert rows["0"]["step_flops_per_image"] == 2 * 2 * 16 * 24
    assert rows["0"]["step_flops_share"] == 2 * 2 * 16 * 24 / (complexity.step_flops / 2)
    tops = [row for row in rows.values() if row["depth"] == 0]
    for name in ("step_flops_share", "bytes_min_share", "bytes_max_share"):
        assert sum(row[name] for row in tops) == pytest.approx(1)


def _run(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


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


def test_the_table_indents_modules_and_names_what_is_tied():
    lines = _run(*TIED).splitlines()
    assert max(map(len, lines)) <= 100
    begin = next(index for index, line in enumerate(lines) if line.startswith("Modules of"))
    assert any(line.startswith(" (model)") for line in lines[begin:])
    assert any(line.startswith("   3 ") for line in lines[begin:])
    assert "3.weight is 1.weight: its parameters are counted once, there." in lines


def test_csv_cannot_have_ops_and_modules():
    arguments = [*TIED, "--ops", "--format", "csv"]
    assert "leave out --ops or --by" in refusal(command.main, arguments, standalone_mode=False)


@pytest.mark.slow
def test_images_and_sequences_stand_in_one_table():
    pytest.importorskip("transformers")
    arguments = ["--arch", "hf:gpt2", "--arch", "alexnet", "--batch-size", "2"]
    text = _run(*arguments)
    assert "One training step in fp32, per sample" in text
    assert "128 tokens" in text
    assert "224 pixels" in text
    rows = [*csv.DictReader(_run(*arguments, "--format", "csv").splitlines())]
    assert rows[0]["forward_macs_per_sequence"]
    assert rows[0]["forward_macs_per_image"] == ""
    assert rows[1]["forward_macs_per_image"]


class _Outer(torch.nn.Module):
    def __init__(self, *, checkpointed):
        super().__init__()
        self.inner = torch.nn.Linear(48, 48)
        self.outer = torch.nn.Linear(48, 4)
        self.checkpointed = checkpointed

    def forward(self, images):
        pixels = images.flatten(1)
        if self.checkpointed:
            return self.outer(checkpoint(self._squared, pixels, use_reentrant=False))
        return self.outer(self._squared(pixels))

    def _squared(self, pixels):
        return self.inner(pixels).square()


class WithSkip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner = torch.nn.Linear(48, 48), torch.nn.Linear(48, 48)
        self.scale = torch.nn.Parameter(torch.ones(5))  # the gradient of its sum is expanded

    def forward(self, images):
        given = self.stem(images.flatten(1))
        return given + self.inner(given) * self.scale.sum()


def plain():
    return _Outer(checkpointed=False)


def checkpointed():
    return _Outer(checkpointed=True)
