"""The same step as other projects and other counters count it."""

import json

import pytest
from click.testing import CliRunner

from bench.cost.compared import FORMULAS, against, as_others
from bench.cost.estimate import step_complexity
from bench.errors import UserError
from bench.records import StepSpec
from commands.complexity import COUNTERS, PROJECTS, Complexity

#: torchvision's, a model of each family, and four of transformers.
MODELS = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet50"),
    *("resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_0", "swin_t", "vgg16", "vit_b_16"),
    *("wide_resnet50_2", "hf:gpt2", "hf:bert", "hf:vit", "hf:qwen3_moe"),
)
QUICK = ("mobilenet_v2", "hf:gpt2")


def _reasons(counter, arch):
    return {(row["ops"], row["reason"]): row["difference"]
            for row in against(counter, StepSpec(arch, 2, "fp32"))}  # fmt: skip


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(
    "arch",
    [arch if arch in QUICK else pytest.param(arch, marks=pytest.mark.long) for arch in MODELS],
)
@pytest.mark.slow
def test_each_difference_has_a_reason(counter, arch):
    reasons = _reasons(counter, arch)
    assert "not explained" not in {reason for _, reason in reasons}
    if counter == "fvcore":
        assert reasons  # it counts norms or pooling, and no fused attention


@pytest.mark.slow
def test_differences_by_hand():
    """MobileNet's depthwise weights; of ViT's attention 12 layers, heads of 64, 197 tokens."""
    [((ops, _), more)] = _reasons("torch", "mobilenet_v2").items()
    spec = StepSpec("mobilenet_v2", 2, "fp32")
    assert (ops, more) == ("convolution_backward", sum(_backward_of_depthwise(spec)))
    scores = 2 * 12 * 12 * 197 * 197 * 64
    assert scores * 2 in _reasons("torch", "vit_b_16").values()
    assert -2 * scores in _reasons("fvcore", "vit_b_16").values()


def _backward_of_depthwise(spec):
    from bench.cost.estimate import op_work

    for call in op_work(spec):
        if call.op == "convolution_backward" and call.label.startswith("depthwise"):
            yield call.flops // 2 * (call.shapes[1][1] - 1)  # half of it is of the weight


@pytest.mark.slow
def test_gpt2_as_others_count_it_by_hand():
    """GPT-2 of S = 128 tokens; see golden_models: N, V words and P positions of width 768."""
    spec = StepSpec("hf:gpt2", 2, "fp32", seq_len=128)
    found = step_complexity(spec)
    rows = {row["as"]: row for row in as_others(spec, found, PROJECTS)}
    parameters, words, positions, pairs = 124_439_808, 50_257 * 768, 1024 * 768, 12 * 12 * 768 * 128
    products = 12 * 12 * 768**2
    per_token = {
        "palm": 6 * parameters + pairs,
        "megatron": 6 * products + pairs // 2 + 6 * 768 * 50_304,  # 393 x 128 words
        "torchtitan": 6 * parameters + pairs,
        "nanogpt": 6 * (parameters - positions) + pairs,
        "hf": 6 * (parameters - words - positions),
    }
    assert rows.keys() == per_token.keys() == FORMULAS.keys()
    for name, row in rows.items():
        assert row["step_flops_per_sequence"] == 128 * per_token[name]
        assert row["of_counted"] == pytest.approx(128 * per_token[name] * 2 / found.step_flops)


@pytest.mark.slow
def test_mixtral_as_others_count_it_by_hand(tmp_path):
    """Two layers of width 8: 2 heads of 4, 1 of keys, 2 of 4 experts of 12, a window of 4."""
    transformers = pytest.importorskip("transformers")
    transformers.MixtralConfig(
        vocab_size=100, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, head_dim=4,
        num_key_value_heads=1, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=4,
    ).save_pretrained(tmp_path)  # fmt: skip
    spec = StepSpec(f"hf:{tmp_path}", 1, "fp32", seq_len=16)
    rows = as_others(spec, step_complexity(spec), PROJECTS)
    expert, attention, norms, router = 3 * 8 * 12, 8 * 8 * 2 + 8 * 4 * 2, 2 * 8, 8 * 4
    others = 2 * (attention + norms + router) + 8
    pairs = 12 * 2 * 8 * 16
    assert {row["as"]: row["step_flops_per_sequence"] / 16 for row in rows} == {
        "palm": 6 * (others + 2 * 4 * expert + 2 * 100 * 8) + pairs,
        "megatron": 6 * (2 * attention + 2 * 2 * expert + 128 * 8) + pairs / 2,
        "torchtitan": 6 * (others + 2 * 2 * expert + 100 * 8) + 12 * 2 * 8 * 4,
        "nanogpt": 6 * (others + 2 * 4 * expert + 2 * 100 * 8) + pairs,
        "hf": 6 * (others + 2 * 4 * expert + 100 * 8),
    }


def test_a_formula_of_language_models_has_no_number_for_others():
    spec = StepSpec("tiny_models:conv_relu_conv", 2, "fp32", image_size=4)
    [row] = as_others(spec, step_complexity(spec), ["palm"])
    assert "step_flops_per_image" not in row
    assert "language models" in row["why"]


def test_the_command_shows_both():
    arguments = ["--arch", "tiny_models:conv_relu_conv", "--image-size", "4", "--batch-size", "2"]
    others = ["--as", "palm,hf", "--against", "torch,fvcore"]
    result = CliRunner().invoke(Complexity.command(), [*arguments, *others, "--format", "json"])
    [row] = json.loads(result.stdout)
    assert [other["as"] for other in row["as"]] == ["palm", "hf"]
    # the pooling of 4 channels of 4 x 4 numbers, for each of 2 images
    assert [(each["ops"], each["difference"]) for each in row["against"]] == [
        ("adaptive_avg_pool2d", 2 * 4 * 16)
    ]


@pytest.mark.parametrize("option", ["--as", "--against"])
def test_an_unknown_name_is_refused(option):
    with pytest.raises(UserError, match="'deepspeed'"):
        Complexity.command().main([option, "deepspeed"], standalone_mode=False)
