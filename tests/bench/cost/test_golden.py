"""Known counts of four models, each from its layers' shapes by hand; see docs/complexity.md."""

import pytest
import torch
from fvcore.nn import FlopCountAnalysis

from bench.cost import StepSpec, step_complexity
from bench.training.models import build_model

#: arch: parameters, forward MAC and training-step FLOP per image, saved for backward in MB (fp32).
GOLDEN = {
    "resnet18": (11_689_512, 1_814_073_344, 10_648_412_160, 22),
    "resnet50": (25_557_032, 4_089_184_256, 24_299_077_632, 86),
    "vgg16": (138_357_544, 15_470_264_320, 92_648_177_664, 73),
    "mobilenet_v2": (3_504_872, 300_774_272, 1_782_969_600, 78),
}


@pytest.mark.parametrize("arch", GOLDEN)
@pytest.mark.parametrize("batch_size", [1, 32])
def test_parameters_macs_and_flops_are_exact(arch, batch_size):
    parameters, forward_macs, step_flops, _ = GOLDEN[arch]
    complexity = step_complexity(StepSpec(arch, batch_size=batch_size, precision="fp32"))
    assert complexity.parameters == parameters
    assert complexity.forward_macs == forward_macs * batch_size
    assert complexity.step_flops == step_flops * batch_size
    assert complexity.step_flops_per_image == step_flops


@pytest.mark.parametrize("precision", ["amp", "amp-fp16", "tf32"])
def test_precision_changes_no_flop(precision):
    complexity = step_complexity(StepSpec("resnet18", batch_size=8, precision=precision))
    assert complexity.step_flops_per_image == GOLDEN["resnet18"][2]


@pytest.mark.parametrize("arch", GOLDEN)
def test_memory_saved_for_the_backward_pass(arch):
    memory = step_complexity(StepSpec(arch, batch_size=32, precision="fp32")).memory
    assert round(memory.activations_bytes / 32 / 1e6) == GOLDEN[arch][3]
    assert memory.weights_bytes == memory.gradients_bytes == memory.optimizer_bytes
    assert memory.weights_bytes == 4 * GOLDEN[arch][0]


@pytest.mark.parametrize(
    "arch", ["resnet18", *(pytest.param(a, marks=pytest.mark.slow) for a in list(GOLDEN)[1:])]
)
def test_fvcore_counts_the_same_macs(arch):
    analysis = FlopCountAnalysis(build_model(arch), torch.empty(1, 3, 224, 224))
    analysis.unsupported_ops_warnings(False)
    by_operator = analysis.by_operator()
    assert by_operator["conv"] + by_operator["linear"] == GOLDEN[arch][1]
