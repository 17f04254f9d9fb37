"""Known counts: of three transformers at two lengths each in closed form, of four of images."""

from functools import cache

import golden_models
import pytest

from bench.cost.estimate import step_complexity
from bench.records import StepSpec

#: Model, tokens: parameters, forward MAC and step FLOP per sample.
GOLDEN = {
    ("gpt2", 128): (124_439_808, 16_114_089_984, 96_684_539_904),
    ("gpt2", 1024): (124_439_808, 145_824_153_600, 874_944_921_600),
    ("bert", 128): (109_514_298, 14_249_558_016, 85_497_348_096),
    ("bert", 512): (109_514_298, 60_622_110_720, 363_732_664_320),
    ("llama", 128): (134_515_008, 17_779_654_656, 106_677_927_936),
    ("llama", 2048): (134_515_008, 420_369_924_096, 2_522_219_544_576),
}
BATCH = 2


def _spec(name, size, **changes):
    return StepSpec(f"golden_models:{name}_{size}", BATCH, "fp32", **changes)


@cache
def _complexity(name, size):
    options = {"optimizer": "adamw", "backend": "cuda", "cache_bytes": 0}
    return step_complexity(_spec(name, size, **options))


_SLOW = {("gpt2", 128), ("llama", 128)}


@pytest.mark.parametrize(
    ("name", "size"),
    [each if each in _SLOW else pytest.param(*each, marks=pytest.mark.long) for each in GOLDEN],
)
@pytest.mark.slow
def test_the_step_has_these_counts(name, size):
    parameters, macs, flops = GOLDEN[name, size]
    complexity = _complexity(name, size)
    assert complexity.parameters == parameters
    assert complexity.forward_macs == BATCH * macs
    assert complexity.step_flops == BATCH * flops
    assert complexity.compulsory_bytes < complexity.fused_bytes < complexity.eager_bytes
    assert complexity.tokens_per_sample == size
    assert GOLDEN[name, size] == (*getattr(golden_models, name)(size), 6 * macs)


@pytest.mark.parametrize(
    ("arch", "seq_len", "golden"),
    [
        ("hf:gpt2", 128, ("gpt2", 128)),
        pytest.param("hf:bert-base-uncased", 128, ("bert", 128), marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_a_model_by_its_name_has_the_same_counts(arch, seq_len, golden):
    complexity = step_complexity(StepSpec(arch, BATCH, "fp32", seq_len=seq_len))
    counted = (complexity.parameters, complexity.forward_macs, complexity.step_flops)
    parameters, macs, flops = GOLDEN[golden]
    assert counted == (parameters, BATCH * macs, BATCH * flops)


@pytest.mark.parametrize(
    "name", ["gpt2", *(pytest.param(each, marks=pytest.mark.long) for each in ("bert", "llama"))]
)
@pytest.mark.slow
def test_adamw_and_a_tied_weight(name):
    """The words' embedding gives the logits too: one weight, whose gradient has two parts."""
    complexity = _complexity(name, 128)
    parameters, memory = complexity.parameters, complexity.memory
    tensors = (memory.optimizer_bytes - 8 * parameters) / 4  # each has a count of its steps
    assert tensors == {"gpt2": 148, "bert": 202, "llama": 272}[name]
    assert memory.gradients_bytes == 4 * parameters
    positions = {"gpt2": 0, "bert": 8 * 128, "llama": 0}[name]  # a buffer's copy that is saved
    assert memory.weights_bytes == 4 * parameters + positions
    update = complexity.phases["optimizer"]
    assert update.elementwise_flops == pytest.approx(14 * parameters, rel=1e-5)
    # Weight, gradient and two moments read; weight and two moments written.
    for moved in (update.fused_bytes, update.eager_bytes):
        assert moved == pytest.approx(28 * parameters, rel=1e-5)
    calls = {(op.op, op.phase): op.calls for op in complexity.ops}
    # Of words, of positions, and BERT's of segments.
    embeddings = {"gpt2": 2, "bert": 3, "llama": 1}[name]
    assert calls["embedding", "forward"] == embeddings
    assert calls["embedding_dense_backward", "backward"] == embeddings


# Models of images, each from its layers' shapes by hand; see docs/roofs.md


#: arch: parameters, forward MAC and training-step FLOP per image, saved for backward in MB (fp32).
OF_IMAGES = {
    "resnet18": (11_689_512, 1_814_073_344, 10_648_412_160, 22),
    "resnet50": (25_557_032, 4_089_184_256, 24_299_077_632, 86),
    "vgg16": (138_357_544, 15_470_264_320, 92_648_177_664, 73),
    "mobilenet_v2": (3_504_872, 300_774_272, 1_782_969_600, 78),
}
#: Multiply-adds of the first layer, the only one without a gradient of its input.
FIRST_LAYER_MACS = {
    "resnet18": 112**2 * 64 * 3 * 7**2,
    "resnet50": 112**2 * 64 * 3 * 7**2,
    "vgg16": 224**2 * 64 * 3 * 3**2,
    "mobilenet_v2": 112**2 * 32 * 3 * 3**2,
}


@pytest.mark.parametrize("arch", OF_IMAGES)
@pytest.mark.slow
def test_parameters_flops_and_what_is_saved_are_exact(arch):
    parameters, forward_macs, step_flops, saved_mb = OF_IMAGES[arch]
    complexity = step_complexity(StepSpec(arch, batch_size=32, precision="fp32"))
    assert complexity.parameters == parameters
    assert complexity.forward_macs == forward_macs * 32
    assert complexity.step_flops == step_flops * 32
    assert complexity.step_flops_per_sample == step_flops
    forward, backward, optimizer = complexity.phases.values()
    assert forward.flops == 2 * forward_macs * 32
    assert backward.flops == 2 * forward.flops - 2 * FIRST_LAYER_MACS[arch] * 32
    assert (optimizer.flops, optimizer.elementwise_flops) == (0, 6 * parameters)
    assert optimizer.fused_bytes == optimizer.eager_bytes == 20 * parameters
    memory = complexity.memory
    assert round(memory.activations_bytes / 32 / 1e6) == saved_mb
    assert memory.weights_bytes == memory.gradients_bytes == memory.optimizer_bytes
    assert memory.weights_bytes == 4 * parameters
